"""The limits of connections: however many wait, those that send requests are served, and no file is missing."""

from __future__ import annotations

import asyncio
import json
import resource
import select
import socket
import threading
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from keyscale.api.web import connections
from keyscale.api.web.connections import (
    OPEN_FILES_MAX,
    OWN_FILES,
    LimitedHttpProtocol,
    connections_max,
    raise_open_files,
)
from tests.support.control_plane.web_server import web_server
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@contextmanager
def server(tmp_path: Path) -> Iterator[tuple[str, int]]:
    app = FastAPI()
    app.get("/stream")(slow_stream)
    app.post("/body")(take_body)
    app.get("/large")(large_stream)
    with web_server(tmp_path, app) as address:
        yield address


async def slow_stream() -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        while True:
            yield "x"
            await asyncio.sleep(0.1)

    return StreamingResponse(lines())


async def large_stream() -> StreamingResponse:
    return StreamingResponse(iter([b"x" * (64 << 10)] * 1000))


async def take_body(request: Request) -> int:
    return len(await request.body())


def is_cut(client: socket.socket) -> bool:
    """Whether the server has closed a connection; its answers are read and forgotten."""
    waiting = select.poll()  # not select(), which knows no descriptors above 1,023
    waiting.register(client, select.POLLIN)
    while waiting.poll(0):
        try:
            if not client.recv(1 << 16):
                return True
        except ConnectionError:
            return True
    return False


def is_answered(client: HTTPConnection) -> bool:
    """Sends a request; returns whether the server answers, rather than cuts the connection."""
    try:
        client.request("GET", "/openapi.json")
        answer = client.getresponse()
        return answer.status == 200 and bool(answer.read())
    except (ConnectionError, HTTPException):
        return False


def test_a_connection_beyond_the_limit_is_cut_and_has_room_once_another_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "connections_max", lambda: 3)
    with server(tmp_path) as (host, port), ExitStack() as opened:

        def client() -> HTTPConnection:
            return opened.enter_context(closing(HTTPConnection(host, port, timeout=20)))

        streaming = [client() for _ in range(3)]
        for each in streaming:
            each.request("GET", "/stream")
            assert each.getresponse().status == 200
        assert not is_answered(client())
        streaming[0].close()
        wait_until(lambda: is_answered(client()), what="room for another connection")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"POST /body HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nx",
    ],
)
def test_connections_that_wait_for_their_clients_make_room_for_others_the_longest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "connections_max", lambda: 5)
    with server(tmp_path) as address, ExitStack() as opened:
        idle = []
        for _ in range(5):
            idle.append(opened.enter_context(socket.create_connection(address, timeout=20)))
            idle[-1].sendall(sent)
        for _ in range(3):
            client = opened.enter_context(closing(HTTPConnection(*address, timeout=20)))
            wait_until(lambda: is_answered(client), what="an answer")  # noqa: B023 - called at once
        wait_until(lambda: [is_cut(each) for each in idle] == [True] * 3 + [False] * 2, what="the cuts")


def test_an_answered_connection_waits_for_its_client_since_the_end_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "connections_max", lambda: 2)
    begun, released = threading.Event(), threading.Event()

    def held() -> str:
        begun.set()
        released.wait(20)
        return "done"

    app = FastAPI()
    app.get("/held")(held)
    with web_server(tmp_path, app) as address, ExitStack() as opened:
        first, second, third = (opened.enter_context(closing(HTTPConnection(*address, timeout=20))) for _ in range(3))
        first.request("GET", "/held")
        assert begun.wait(20)
        assert is_answered(second)
        released.set()
        assert first.getresponse().read() == b'"done"'
        cut, kept = second.sock, first.sock
        wait_until(lambda: is_answered(third), what="an answer")
        wait_until(lambda: is_cut(cut), what="the cut of the connection that has waited longer")
        assert not is_cut(kept)


@pytest.mark.parametrize(
    ("sent", "is_slow"),
    [
        (b"", True),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", True),
        (b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET", True),
        (b"POST /body HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nx", True),
        (b"POST /body HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", True),
        (b"GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", False),
    ],
)
def test_a_client_that_takes_too_long_to_send_a_request_loses_its_connection_and_no_other_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, *, is_slow: bool
) -> None:
    for name in ("HEAD_S_MAX", "BODY_S_MAX"):
        monkeypatch.setattr(connections, name, 0.5)
    monkeypatch.setattr(connections, "POLL_S", 0.1)
    with server(tmp_path) as address, socket.create_connection(address, timeout=20) as client:
        client.sendall(sent)
        if is_slow:
            wait_until(lambda: is_cut(client), what="the cut")
            return
        with socket.create_connection(address, timeout=20) as other:  # is as old, and is cut
            wait_until(lambda: is_cut(other), what="the cut of another one")
        assert not is_cut(client)


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET /stream HTTP/1.1\r\nHost: x\r\nName: a\x01b\r\n\r\n"])
def test_bytes_that_are_not_http_are_refused_with_a_problem(tmp_path: Path, sent: bytes) -> None:
    with server(tmp_path) as address, socket.create_connection(address, 10) as client:
        client.sendall(sent)
        answer = HTTPResponse(client)
        answer.begin()
        assert (answer.status, answer.headers["Content-Type"]) == (400, "application/problem+json")
        assert json.loads(answer.read())["code"] == "HTTP_INVALID"
        assert client.recv(1) == b""


def test_a_large_body_that_comes_fast_enough_may_take_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_S_MAX", 0.2)
    monkeypatch.setattr(connections, "POLL_S", 0.05)
    monkeypatch.setattr(connections, "BODY_BYTES_PER_S_MIN", 10)
    with server(tmp_path) as address, socket.create_connection(address, timeout=20) as client:
        client.sendall(b"POST /body HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1000)
        with socket.create_connection(address, timeout=20) as other:
            monkeypatch.setattr(connections, "HEAD_S_MAX", 0.5)
            wait_until(lambda: is_cut(other), what="the cut of another one")
        client.sendall(b"x")
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_a_connection_for_which_there_is_no_file_is_cut_before_its_tls_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(tmp_path) as address, socket.create_connection(address, timeout=20) as before:
        before.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert before.recv(100).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
        with socket.create_connection(address, timeout=20) as late:
            wait_until(lambda: is_cut(late), what="the cut")
        before.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert before.recv(100)


@pytest.mark.parametrize(
    ("limit", "left"), [(100, 50), (1024, 1024 - OWN_FILES), (resource.RLIM_INFINITY, OPEN_FILES_MAX)]
)
def test_some_files_are_kept_for_the_control_planes_own_work(
    monkeypatch: pytest.MonkeyPatch, limit: int, left: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert connections_max() == left


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, 1 << 20), (OPEN_FILES_MAX, 1 << 20)),
        ((1024, resource.RLIM_INFINITY), (OPEN_FILES_MAX, resource.RLIM_INFINITY)),
        ((1 << 20, 1 << 20), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_a_small_limit_of_open_files_is_raised_and_a_large_one_stays(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], after: tuple[int, int] | None
) -> None:
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    raise_open_files()
    assert given == ([] if after is None else [after])


def test_clients_that_read_no_answer_make_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "connections_max", lambda: 5)
    with server(tmp_path) as address, ExitStack() as opened:
        for _ in range(5):
            unread = opened.enter_context(socket.create_connection(address, timeout=20))
            unread.sendall(b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert unread.recv(1)  # and no more
        client = partial(HTTPConnection, *address, timeout=20)
        wait_until(lambda: is_answered(opened.enter_context(closing(client()))), what="an answer")


class Clock:
    """A connection without a socket, on a clock of the test: its loop, its transport and its flow."""

    def __init__(self) -> None:
        self.now_s, self.unsent_bytes, self.polls, self.is_cut = 0.0, 0, 0, False
        self.read_paused = False
        self.protocol = LimitedHttpProtocol.__new__(LimitedHttpProtocol)
        self.protocol.loop = self.protocol.transport = self.protocol.flow = cast("Any", self)
        self.protocol.connections = {self.protocol}
        self.protocol.cycle = cast("Any", None)

    def time(self) -> float:
        return self.now_s

    def call_later(self, after_s: float, poll: object) -> None:
        assert (after_s, poll) == (connections.POLL_S, self.protocol._poll)
        self.polls += 1

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        self.is_cut = True

    def pause_writing(self) -> None:
        """Lets the application wait."""

    def resume_writing(self) -> None:
        """Lets the application go on."""

    def request(self, *, is_answered: bool, more_body: bool) -> None:
        cycle = SimpleNamespace(response_complete=is_answered, more_body=more_body)
        self.protocol.cycle = cast("Any", cycle)

    def poll(self, now_s: float) -> bool:
        """Looks at a time; returns whether the connection is cut."""
        self.now_s = now_s
        self.protocol._poll()
        assert (self.polls == 0) is self.is_cut is not bool(self.protocol.connections)
        self.polls = 0
        return self.is_cut


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_connection_waits_for_its_client_while_the_client_has_to_send(clock: Clock) -> None:
    protocol = clock.protocol
    protocol._since_s = 7.0
    found = [protocol.waits_since_s()]
    for is_answered, more_body in ((False, True), (False, False), (True, False), (True, True)):
        clock.request(is_answered=is_answered, more_body=more_body)
        found.append(protocol.waits_since_s())
    assert found == [7.0, 7.0, None, 7.0, 7.0]
    clock.unsent_bytes = 1
    assert protocol.waits_since_s() is None, "the client has to read first"
    clock.unsent_bytes, clock.read_paused = 0, True
    clock.request(is_answered=False, more_body=True)
    assert protocol.waits_since_s() is None, "the application does not read"


def test_a_connection_stands_still_since_its_client_stopped_reading(clock: Clock) -> None:
    clock.request(is_answered=False, more_body=False)
    assert clock.protocol.stands_since_s() is None
    clock.now_s = 9.0
    clock.protocol.pause_writing()
    clock.now_s = 11.0
    assert clock.protocol.stands_since_s() == 9.0
    clock.protocol.resume_writing()
    assert clock.protocol.stands_since_s() is None


def test_a_head_has_its_time_and_a_body_as_much_more_as_it_has_come(clock: Clock) -> None:
    assert not clock.poll(connections.HEAD_S_MAX)
    clock.request(is_answered=False, more_body=True)
    clock.protocol._received_bytes = 10 * connections.BODY_BYTES_PER_S_MIN
    assert not clock.poll(connections.BODY_S_MAX + 10)
    clock.request(is_answered=False, more_body=False)
    assert not clock.poll(1e6), "the application takes its time"
    clock.protocol._since_s = 1e6
    clock.request(is_answered=False, more_body=True)
    assert clock.poll(1e6 + connections.BODY_S_MAX + 10.1)


def test_a_head_that_does_not_come_in_its_time_ends_the_connection(clock: Clock) -> None:
    assert clock.poll(connections.HEAD_S_MAX + 0.1)


def test_each_request_has_the_time_for_its_own_bytes(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpToolsProtocol, "data_received", lambda *_: None)
    clock.protocol.data_received(b"x" * 10)
    clock.now_s = 5.0
    monkeypatch.setattr(HttpToolsProtocol, "data_received", lambda *_: clock.request(is_answered=False, more_body=True))
    clock.protocol.data_received(b"y" * 3)
    assert (clock.protocol._since_s, clock.protocol._received_bytes) == (5.0, 3)
    monkeypatch.setattr(HttpToolsProtocol, "data_received", lambda *_: None)
    clock.now_s = 6.0
    clock.protocol.data_received(b"z" * 4)
    assert (clock.protocol._since_s, clock.protocol._received_bytes) == (5.0, 7)
    assert not clock.is_cut
    clock.protocol.data_received(b"x" * connections.HEAD_BYTES_MAX)
    assert clock.is_cut, "more around bodies than a head may have"


@pytest.mark.parametrize("is_open", [True, False])
def test_a_connection_that_has_ended_is_not_looked_at_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(HttpToolsProtocol, "connection_lost", lambda *_: noted.append("ended"))
    clock.protocol._next_poll = cast("Any", SimpleNamespace(cancel=lambda: noted.append("cancelled")))
    if not is_open:
        clock.protocol.flow = cast("Any", None)
    clock.protocol.connection_lost(None)
    assert noted == ["cancelled", *(["ended"] if is_open else [])]


def test_an_answered_request_begins_the_time_for_the_next_head(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpToolsProtocol, "on_response_complete", lambda *_: None)
    clock.request(is_answered=True, more_body=False)
    clock.now_s = 100.0
    clock.protocol.on_response_complete()
    assert clock.protocol.waits_since_s() == 100.0
    assert not clock.poll(100 + connections.HEAD_S_MAX)
    assert clock.poll(100.1 + connections.HEAD_S_MAX)
