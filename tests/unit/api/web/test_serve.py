"""The web server: its socket sends small answers at once, and it reads nothing endless but bodies."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from fastapi import FastAPI, Request

from keyscale.api.errors import SettingInvalidError
from keyscale.api.settings import Settings
from keyscale.api.web.connections import HEAD_BYTES_MAX
from keyscale.api.web.serve import listen
from tests.support.control_plane.web_server import web_server
from tests.support.coroutines import run_coroutine

if TYPE_CHECKING:
    from pathlib import Path


async def delay_is_off(
    listener: socket.socket, server_side: ssl.SSLContext | None, client: ssl.SSLContext | None
) -> int:
    """Accepts a connection as the web server does; returns the accepted socket's TCP_NODELAY."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection: socket.socket = writer.get_extra_info("socket")
        accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(answer, sock=listener, ssl=server_side):
        host, port = listener.getsockname()[:2]
        _, writer = await asyncio.open_connection(host, port, ssl=client)
        try:
            return await asyncio.wait_for(accepted, 10)
        finally:
            writer.close()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_small_answer_does_not_wait_for_an_acknowledgement(tmp_path: Path, host: str, is_tls: bool) -> None:
    server_side = client = None
    if is_tls:
        authority = trustme.CA()
        server_side, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        authority.issue_cert(host).configure_cert(server_side)
        authority.configure_trust(client)
    with listen(Settings(home=tmp_path, host=host, port=0)) as listener:
        assert run_coroutine(delay_is_off(listener, server_side, client))


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingInvalidError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen(Settings(home=tmp_path, host="127.0.0.1", port=port))


ENDLESS = {
    "headers": (b"GET / HTTP/1.1\r\nHost: a\r\n", [b"x%d: %s\r\n" % (number, b"y" * 1000) for number in range(50_000)]),
    "a header": (b"GET / HTTP/1.1\r\nHost: a\r\nx: ", [b"y" * 1_000_000] * 50),
    "a path": (b"GET /", [b"y" * 1_000_000] * 50),
    "trailers": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
        [b"x%d: %s\r\n" % (number, b"y" * 1000) for number in range(50_000)],
    ),
    "a chunk's extension": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        [b"y" * 1_000_000] * 50,
    ),
}


@pytest.mark.parametrize("part", ENDLESS)
def test_what_is_around_a_body_and_does_not_end_is_cut_off_before_it_fills_the_memory(
    tmp_path: Path, part: str
) -> None:
    begin, endless = ENDLESS[part]
    with web_server(tmp_path, FastAPI()) as address, socket.create_connection(address, timeout=20) as client:
        client.sendall(begin)
        with pytest.raises(ConnectionError):
            client.sendall(b"".join(endless))


def test_a_body_of_many_small_chunks_is_read_whole_and_its_trailers_are_no_headers(tmp_path: Path) -> None:
    app = FastAPI()

    @app.post("/")
    async def describe(request: Request) -> dict[str, Any]:
        body = await request.body()
        return {"bytes": len(body), "names": sorted(name.decode() for name, _ in request.scope["headers"])}

    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"1;of=many\r\nx\r\n" * 50_000 + b"0\r\nAuthorization: Bearer x\r\nX-Last: x\r\n\r\n"
    with web_server(tmp_path, app) as address, socket.create_connection(address, timeout=60) as client:
        client.sendall(head + chunks)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {
        "bytes": 50_000,
        "names": ["connection", "host", "transfer-encoding"],
    }


def test_a_connection_is_kept_for_any_number_of_requests(tmp_path: Path) -> None:
    app = FastAPI()

    @app.get("/")
    async def answer() -> str:
        return "here"

    with web_server(tmp_path, app) as address, closing(HTTPConnection(*address, timeout=20)) as client:
        for _ in range(2 * HEAD_BYTES_MAX // 1000):
            client.request("GET", "/", headers={"X-Padding": "x" * 1000})
            if client.getresponse().read() != b'"here"':
                pytest.fail("the request was not answered")
