"""The web server: its socket sends small answers at once, and it reads no endless headers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest
import trustme
import uvicorn
from fastapi import FastAPI

from keyscale.api.errors import SettingInvalidError
from keyscale.api.settings import Settings
from keyscale.api.web.serve import listen, server_config

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
        assert asyncio.run(delay_is_off(listener, server_side, client))


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingInvalidError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen(Settings(home=tmp_path, host="127.0.0.1", port=port))


def test_headers_that_do_not_end_are_cut_off_before_they_fill_the_memory(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, host="127.0.0.1", port=0)
    server = uvicorn.Server(server_config(FastAPI(), settings))
    with listen(settings) as listener:
        listener.listen()  # so that the client need not wait until the server does
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with socket.create_connection(listener.getsockname()[:2], timeout=20) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                endless = b"".join(b"x%d: %s\r\n" % (number, b"y" * 1_000_000) for number in range(50))
                with pytest.raises(ConnectionError):
                    client.sendall(endless)
        finally:
            server.should_exit = True
            thread.join()
