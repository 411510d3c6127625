"""An application in this process whose clients call its ASGI interface, without a server and sockets."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from urllib.parse import unquote

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from anyio.from_thread import BlockingPortal
    from fastapi import FastAPI
    from starlette.types import Message, Scope

ADDRESS = "127.0.0.1"
REQUEST_SECONDS = 60.0


class RunningApplication:
    """An application that has been started, and may have several clients.

    Args:
        app: The application.
        portal: The event loop in which it answers, in another thread.
    """

    def __init__(self, app: FastAPI, portal: BlockingPortal) -> None:
        self._app, self._portal = app, portal

    def new_client(self) -> httpx.Client:
        """Returns a client without a token, with cookies of its own."""
        transport = _Transport(self._app, self._portal)
        return httpx.Client(base_url=f"http://{ADDRESS}", transport=transport, timeout=REQUEST_SECONDS, trust_env=False)


@contextmanager
def running_application(app: FastAPI, portal: BlockingPortal) -> Iterator[RunningApplication]:
    """Starts an application, and ends it afterwards."""
    with portal.wrap_async_context_manager(app.router.lifespan_context(app)):
        yield RunningApplication(app, portal)


class _Transport(httpx.BaseTransport):
    """Hands a request to an application, and the parts of the answer to the client as they come."""

    def __init__(self, app: FastAPI, portal: BlockingPortal) -> None:
        self._app, self._portal = app, portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(self._app, self._portal, request)
        start = exchange.next_message()
        return httpx.Response(start["status"], headers=start["headers"], stream=_Body(exchange))


class _Body(httpx.SyncByteStream):
    """The body of an answer."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        while True:
            message = self._exchange.next_message()
            yield message.get("body", b"")
            if not message.get("more_body"):
                return

    def close(self) -> None:
        self._exchange.leave()


class _Exchange:
    """A request and the messages of its answer."""

    def __init__(self, app: FastAPI, portal: BlockingPortal, request: httpx.Request) -> None:
        self._app, self._portal = app, portal
        self._scope = _scope_of(request)
        self._timeout_s: float | None = request.extensions.get("timeout", {}).get("read")
        self._body: bytes | None = b"".join(_parts_of(request))
        self._messages: SimpleQueue[Message | Exception] = SimpleQueue()
        self._is_over = asyncio.Event()
        portal.start_task_soon(self._run)

    def next_message(self) -> Message:
        """Waits for the next message; raises the exception of an application that did not finish its answer."""
        try:
            message = self._messages.get(timeout=self._timeout_s)
        except Empty:
            raise httpx.ReadTimeout("the application does not answer in time") from None
        if isinstance(message, Exception):
            raise message
        return message

    def leave(self) -> None:
        """Goes away, as a client that closes its connection does."""
        if not self._is_over.is_set():
            self._portal.call(self._is_over.set)

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - a server would log it; the client has the answer, or raises it
            self._messages.put(error)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._is_over.is_set():
            return
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._is_over.set()
        self._messages.put(message)


def _parts_of(request: httpx.Request) -> Iterable[bytes]:
    assert isinstance(request.stream, httpx.SyncByteStream)
    return request.stream


def _scope_of(request: httpx.Request) -> Scope:
    path, _, query = request.url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": (ADDRESS, 50000),
        "server": (ADDRESS, 80),
    }
