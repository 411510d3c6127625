"""The log of a driver.

Its supervisor writes the files, and requests read them meanwhile.

    driver.log      the newest part
    driver.log.<n>  the part before, if any, which begins with byte n of the driver's whole output

Older output is deleted. The offset of a byte never changes, even when earlier bytes are deleted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from .run_files import open_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LOG_FILE = "driver.log"
PART_BYTES_MAX = 64 << 20
"""The size at which a new part begins, so that a driver that prints without end cannot fill the disk."""


class LogWriter:
    """Appends to the log of a driver, which has no other writer.

    Args:
        directory: The run's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / LOG_FILE
        self._begin = 0
        self._descriptor = self._open()

    def write(self, text: bytes) -> None:
        """Appends text; on a full disk, the rest is lost.

        The driver continues.
        """
        with contextlib.suppress(OSError):
            if (size := os.fstat(self._descriptor).st_size) >= PART_BYTES_MAX:
                self._begin_part(size)
            while text:
                text = text[os.write(self._descriptor, text) :]

    def _begin_part(self, size: int) -> None:
        """Begins a new part.

        On a full disk, the next text tries again.

        Readers see by its new name that a part has ended, so nothing is deleted before the rename.
        """
        with contextlib.suppress(FileNotFoundError):  # an earlier try has renamed it
            self._file.rename(self._file.with_name(f"{LOG_FILE}.{self._begin}"))
        for begin, path in _older_parts(self._file):
            if begin < self._begin:
                path.unlink(missing_ok=True)
        descriptor = self._open()
        os.close(self._descriptor)
        self._descriptor, self._begin = descriptor, self._begin + size

    def _open(self) -> int:
        return os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log that is open for reading."""

    begin: int
    end: int
    file: IO[bytes]


@dataclass(frozen=True, slots=True)
class DriverLog:
    """A driver's log as of its opening.

    Later writes do not change it.

    Attributes:
        begin: The offset of the first remaining byte.
        end: The offset after the last byte.
        parts: Its parts, oldest first.
    """

    begin: int
    end: int
    parts: Sequence[LogPart]

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Returns the bytes from an offset on, which is not below `begin`."""
        content = b""
        for part in self.parts:
            at = offset + len(content)
            if part.begin <= at < part.end:
                part.file.seek(at - part.begin)
                content += part.file.read(min(part.end - at, bytes_max - len(content)))
        return content


@contextmanager
def open_log(directory: Path) -> Iterator[DriverLog]:
    """Opens a run's log for reading; a missing log is empty."""
    file = directory / LOG_FILE
    with ExitStack() as opened:
        while True:  # until nothing was renamed meanwhile, which takes as long as writing a part
            newest = _opened(file, opened)
            older = _older_parts(file)
            before = _opened(older[-1][1], opened) if older else None
            if _is_still(file, newest):
                break
        parts = [] if before is None else [_part(older[-1][0], before)]
        if newest is not None:
            parts.append(_part(parts[-1].end if parts else 0, newest))
        yield DriverLog(parts[0].begin if parts else 0, parts[-1].end if parts else 0, parts)


def _part(begin: int, file: IO[bytes]) -> LogPart:
    return LogPart(begin, begin + os.fstat(file.fileno()).st_size, file)


def _opened(file: Path, opened: ExitStack) -> IO[bytes] | None:
    plain = open_plain(file)
    return None if plain is None else opened.enter_context(plain)


def _is_still(path: Path, file: IO[bytes] | None) -> bool:
    """Returns whether a path still leads to the opened file.

    Without an opened file, the path must lead to no plain file.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return file is None
    if file is None:
        return not stat.S_ISREG(found.st_mode)
    return os.path.samestat(found, os.fstat(file.fileno()))


def _older_parts(file: Path) -> list[tuple[int, Path]]:
    """Returns the ended parts with their offsets, oldest first."""
    names = [(path.name.removeprefix(f"{LOG_FILE}."), path) for path in file.parent.glob(f"{LOG_FILE}.*")]
    return sorted((int(name), path) for name, path in names if name.isdecimal())
