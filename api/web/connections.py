"""The connections of clients: as many as leave the control plane files to open for its own work."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

OPEN_FILES_MAX = 65_536
OWN_FILES = 256
"""Files that are kept for the database, logs, uploads and the store."""


def raise_open_files() -> None:
    """Lets this process open as many files as it may, up to `OPEN_FILES_MAX`; systems begin with about a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max() -> int:
    """Returns how many clients may be connected at once, given how many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    return max(soft // 2, soft - OWN_FILES)


class LimitedHttpProtocol(H11Protocol):
    """A client's connection. It is cut at once if there are too many.

    Once no file is left to open, asyncio fails to accept without end, and logs each failure: the log fills the disk,
    and nobody is answered any more, not even drivers.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) < connections_max():
            super().connection_made(transport)
            return
        self.transport = transport
        transport.abort()
