"""A way to PostgreSQL that can be cut, as a network is cut: what is sent then arrives late, and nobody is told."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOCKET_NAME = ".s.PGSQL.5432"
_CHUNK_BYTES = 1 << 16


class DatabaseLink:
    """Passes the bytes of every connection on, both ways.

    Args:
        directory: For its socket; a short path.
        database_url: The server's, on a Unix socket.
    """

    def __init__(self, directory: Path, database_url: str) -> None:
        address, _, host = database_url.partition("?host=")
        self.url = f"{address}?host={quote(str(directory))}"
        self._server = str(Path(unquote(host)) / _SOCKET_NAME)
        self._is_whole = threading.Event()
        self._is_whole.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / _SOCKET_NAME))
        self._listener.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._is_whole.clear()

    def mend(self) -> None:
        self._is_whole.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mend()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._is_whole.wait()
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            server.connect(self._server)
            there = threading.Thread(target=self._pass_on, args=(client, server), daemon=True)
            there.start()
            self._pass_on(server, client)
            there.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the other end has closed the connection
            while chunk := source.recv(_CHUNK_BYTES):
                self._is_whole.wait()
                target.sendall(chunk)
        self._is_whole.wait()  # not even the end of a process is seen through a cut
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def database_link(database_url: str) -> Iterator[DatabaseLink]:
    """Makes a link to a server, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="keyscale-link-") as directory:
        link = DatabaseLink(Path(directory), database_url)
        try:
            yield link
        finally:
            link.close()
