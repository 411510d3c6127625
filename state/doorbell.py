"""How a process asks another one for a directory that it holds: a FIFO in the directory, which wakes the holder."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NOBODY_LISTENS = {errno.ENXIO, errno.ENOENT}


class Doorbell:
    """The end of the process that holds the directory: it costs nothing until somebody rings.

    Once rung it stays so until it is closed; the next holder's has not been rung.

    Args:
        path: Of the FIFO; made if it is missing. There is one holder at a time.
    """

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # For writing, too: else it would be readable, without a byte, as soon as the first one who rang has closed it.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Readable once it was rung: for whoever waits for several."""
        return self._descriptor

    @property
    def was_rung(self) -> bool:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Listen no more; once only."""
        os.close(self._descriptor)


def ring(path: Path) -> None:
    """Ask whoever holds the directory for it; nothing happens if nobody listens, so ask again while it is held."""
    try:
        bell = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOBODY_LISTENS:
            return
        raise
    try:
        # It was rung so often that nothing more fits in; or who held the directory has just let go of it.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(bell, b"!")
    finally:
        os.close(bell)
