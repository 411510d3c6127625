"""The socket on which requests arrive sends small answers at once."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from keyscale.api.errors import SettingInvalidError
from keyscale.api.settings import Settings
from keyscale.api.web.serve import listen

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
