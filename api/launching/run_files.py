"""Files of a run's directory, read with care.

A job that runs as the control plane's user can put anything in their place: a pipe, from which a reader waits forever,
a link, a folder, or gigabytes. Only a plain, small file counts; anything else is as if it were not there.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TEXT_BYTES_MAX = 1 << 20


def open_plain(path: Path) -> IO[bytes] | None:
    """Opens a plain file for reading; returns None without a plain file.

    Raises:
        OSError: The file cannot be opened, for example with too many open files.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, a socket
            return None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


def read_text(path: Path) -> str | None:
    """Returns the text of a plain file.

    Returns None if the file is missing, not plain, not UTF-8, not readable, or longer than `TEXT_BYTES_MAX`.

    Raises:
        OSError: The file cannot be opened or read for another reason.
    """
    try:
        file = open_plain(path)
        if file is None:
            return None
        with file:
            content = file.read(TEXT_BYTES_MAX + 1)
        return content.decode() if len(content) <= TEXT_BYTES_MAX else None
    except (PermissionError, UnicodeDecodeError):
        return None
