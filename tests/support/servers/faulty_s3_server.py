"""An S3 server that can be made to fail: away, slow, refusing, losing or cutting answers, getting requests twice."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING, Any, NoReturn

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, make_server

from tests.support.servers.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


class Fault(StrEnum):
    """The fault of a server that answers."""

    SLOW = "slow"
    ERRORS = "errors"
    LOST_ANSWERS = "lost answers"
    CUT_ANSWERS = "cut answers"
    REPEATED_REQUESTS = "repeated requests"


FAULTY_SHARE = 0.25
SLOW_SECONDS = 0.5
_LOG_ENTRY = re.compile(r"/(?P<path>[^/]+/log/\d+\.json)$")


class FaultyS3Server:
    """A server that keeps its data and its port while it is away.

    Args:
        seed: Chooses the requests that meet a fault.
        history: A directory in which it keeps a copy of each log entry, which jobs delete in time.

    Attributes:
        fault: The fault that a part of all requests meet; None for none.
        share: The part of all requests.
        hits: How many requests have met a fault.
        rewritten: Paths of log entries that were written more than once, which nothing may do.
    """

    def __init__(self, seed: int, history: Path) -> None:
        self.fault: Fault | None = None
        self.share = FAULTY_SHARE
        self.hits = 0
        self.rewritten: list[str] = []
        self._history = history
        self._chance = random.Random(seed)
        self._application = DomainDispatcherApplication(create_backend_app)
        self._port = 0
        self._server: BaseWSGIServer | None = None
        self.start()

    @property
    def server(self) -> S3Server:
        return S3Server(f"http://127.0.0.1:{self._port}")

    def start(self) -> None:
        self._server = make_server("127.0.0.1", self._port, self._answer, threaded=True)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="s3", daemon=True).start()

    def stop(self) -> None:
        """Goes away, as if it were killed: requests under way are carried out without an answer, later ones refused."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        server = self._server
        answer = [] if server is None else self._with_fault(environ, start_response)
        if server is None or server is not self._server:  # a connection may outlive the server that accepted it
            _hang_up(environ)
        return answer

    def _with_fault(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self.fault is None or self._chance.random() > self.share:
            return self._carry_out(environ, start_response)
        self.hits += 1
        if self.fault is Fault.SLOW:
            time.sleep(SLOW_SECONDS)
        elif self.fault is Fault.ERRORS:
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"]
        elif self.fault is Fault.CUT_ANSWERS:
            return _cut(b"".join(self._carry_out(environ, start_response)), environ)
        else:
            body = _body(environ)
            list(self._carry_out({**environ, "wsgi.input": BytesIO(body)}, lambda *_: lambda _: None))
            if self.fault is Fault.LOST_ANSWERS:
                _hang_up(environ)
            environ["wsgi.input"] = BytesIO(body)
        return self._carry_out(environ, start_response)

    def _carry_out(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        entry = _LOG_ENTRY.search(environ["PATH_INFO"]) if environ["REQUEST_METHOD"] == "PUT" else None
        if entry is None:
            return self._application(environ, start_response)  # type: ignore[no-any-return]  # moto has no types
        body = _body(environ)

        def started(status: str, *rest: Any) -> Any:
            if status.startswith("200"):
                self._keep(entry["path"], body)
            return start_response(status, *rest)

        return self._application({**environ, "wsgi.input": BytesIO(body)}, started)  # type: ignore[no-any-return]

    def _keep(self, path: str, body: bytes) -> None:
        copy = self._history / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            with copy.open("xb") as file:
                file.write(body)
        except FileExistsError:
            self.rewritten.append(path)


def _body(environ: dict[str, Any]) -> bytes:
    return bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))


def _cut(answer: bytes, environ: dict[str, Any]) -> Iterator[bytes]:
    yield answer[: len(answer) // 2]
    _hang_up(environ)


def _hang_up(environ: dict[str, Any]) -> NoReturn:
    with contextlib.suppress(OSError):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError
