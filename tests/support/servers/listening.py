"""Where processes can be reached from."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable


def listening_addresses(processes: Iterable[psutil.Process]) -> set[str]:
    """The addresses that any of them listens on. Short-lived workers among them come and go meanwhile."""
    found: set[str] = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a zombie is none, either
            listening = [one for one in process.net_connections(kind="tcp") if one.status == psutil.CONN_LISTEN]
            found.update(one.laddr.ip for one in listening)
    return found
