"""The connections of clients: limited in number and in waiting time.

The control plane keeps files for its own use.
"""

from __future__ import annotations

import resource
import socket
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import HttpInvalidError
from ..problem import problem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

OPEN_FILES_MAX = 65_536
OWN_FILES = 256
"""Files that are kept for the database, logs, uploads and the store."""
HEAD_BYTES_MAX = 64 << 10
"""Bytes of a request's line and headers, or of anything else around its body, such as trailers."""
HEAD_S_MAX = 30.0
"""How long a client may take to send the head of a request, including the first request of its connection."""
BODY_S_MAX = 60.0
"""How long it may take for a body, besides the time for `BODY_BYTES_PER_S_MIN`."""
BODY_BYTES_PER_S_MIN = 8 << 10
POLL_S = 5.0
_COMPARED_MAX = 100


def raise_open_files() -> None:
    """Raises the number of files that this process may open.

    The maximum is `OPEN_FILES_MAX`; systems begin with about a thousand.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max() -> int:
    """Returns the maximum number of connected clients.

    It depends on the number of files that this process may open.
    """
    return _files_max(OWN_FILES)


class Listener(socket.socket):
    """A socket on which clients connect.

    Beyond a number of open files it cuts new connections.

    Connections without TLS handshake do not belong to the web server yet, and so count for no other limit.
    """

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection.

        Raises:
            BlockingIOError: No connection is waiting, or it was cut.
        """
        accepted, address = super().accept()
        if accepted.fileno() < _files_max(OWN_FILES // 2):  # a new file gets the lowest free number
            return accepted, address
        accepted.close()
        raise BlockingIOError


class LimitedHttpProtocol(HttpToolsProtocol):
    """A client's connection, cut if its request exceeds a limit.

    The limits are for the time to send a request, and for the size of its head.

    When full, closes the connection that has been idle longest; if all are busy, the new connection is cut. Without the
    limit the process runs out of open files: asyncio then fails to accept again and again, logs each failure until the
    disk is full, and answers no request, not even of drivers.

    The parser has no limit of its own for anything but bodies.
    """

    _bytes_around_bodies = 0
    _since_s = 0.0
    _received_bytes = 0
    _unread_since_s: float | None = None
    _next_poll: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= connections_max():
            waiting = _longest_waiting(self.connections)
            if waiting is None:
                self.transport = transport
                transport.abort()
                return
            waiting.cut()
        super().connection_made(transport)
        self._since_s = self.loop.time()
        self._poll_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_poll is not None:
            self._next_poll.cancel()
        if self.flow is not None:  # otherwise it was cut immediately
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        self._bytes_around_bodies += len(data)
        super().data_received(data)
        if self._bytes_around_bodies > HEAD_BYTES_MAX:
            self.cut()
        if self.cycle is not before:  # the head of a request has come
            self._since_s, self._received_bytes = self.loop.time(), 0
        self._received_bytes += len(data)

    def send_400_response(self, msg: str) -> None:
        """Refuses bytes that are not HTTP, and ends the connection."""
        answer = problem(HttpInvalidError(msg))
        answer.headers["Connection"] = "close"
        head = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def on_body(self, body: bytes) -> None:
        self._bytes_around_bodies = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_around_bodies = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._since_s = self.loop.time()
        super().on_response_complete()

    def waits_since_s(self) -> float | None:
        """Returns since when it waits for its client to send.

        The client sends a head or a body. Returns None if it does not wait.
        """
        if self.transport.get_write_buffer_size():  # of the answer before
            return None
        waits = self._waits_for_head() or (self.cycle.more_body and not self.flow.read_paused)
        return self._since_s if waits else None

    def pause_writing(self) -> None:
        self._unread_since_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since_s = None
        super().resume_writing()

    def stands_since_s(self) -> float | None:
        """Returns since when it waits for its client's next action.

        Returns None if it does not wait.
        """
        return self.waits_since_s() if self._unread_since_s is None else self._unread_since_s

    def cut(self) -> None:
        """Ends the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _waits_for_head(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None until the first request
        return cycle is None or cycle.response_complete

    def _poll_later(self) -> None:
        self._next_poll = self.loop.call_later(POLL_S, self._poll)

    def _poll(self) -> None:
        since_s = self.waits_since_s()
        allowed_s = HEAD_S_MAX if self._waits_for_head() else BODY_S_MAX + self._received_bytes / BODY_BYTES_PER_S_MIN
        if since_s is not None and self.loop.time() - since_s > allowed_s:
            self.cut()
        else:
            self._poll_later()


def _longest_waiting(connections: Iterable[Any]) -> LimitedHttpProtocol | None:
    """Returns the connection that has waited longest among some connections.

    Some are enough: with too many connections, most of them wait. Checking all would take long.
    """
    waiting = [(each.stands_since_s(), each) for each in islice(connections, _COMPARED_MAX)]
    return min(((since_s, each) for since_s, each in waiting if since_s is not None), default=(0, None), key=_first)[1]


def _first(pair: tuple[float, Any]) -> float:
    return pair[0]


def _files_max(kept: int) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else max(soft // 2, soft - kept)
