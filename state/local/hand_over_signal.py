"""The signal that requests a directory from another process: a FIFO."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NOBODY_LISTENS = {errno.ENXIO, errno.ENOENT}


class HandOverSignal:
    """The holder's end of the signal, which costs nothing until a request.

    A request lasts until the signal is closed; the next holder starts without a request.

    Args:
        path: The FIFO, which is made if missing. There is one holder at a time.
    """

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Also open for writing: otherwise it would be readable, without a byte, once the first requester closes it.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Returns a descriptor that becomes readable with a request.

        A caller can wait for several at once.
        """
        return self._descriptor

    @property
    def is_requested(self) -> bool:
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Stops listening; may be called only once."""
        os.close(self._descriptor)


def request_hand_over(path: Path) -> None:
    """Asks the holder of a directory to hand it over.

    Without a listening holder nothing happens, so repeat the request while the directory is held.

    Args:
        path: The FIFO.
    """
    try:
        fifo = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOBODY_LISTENS:
            return
        raise
    try:
        # The FIFO is full of earlier requests, or the holder has just released the directory.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(fifo, b"!")
    finally:
        os.close(fifo)
