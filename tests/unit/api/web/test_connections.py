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
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from keyscale.api.web import connections
from keyscale.api.web.connections import OPEN_FILES_MAX, OWN_FILES, connections_max, raise_open_files
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
