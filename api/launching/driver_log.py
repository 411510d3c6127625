"""The log of a driver: files that its supervisor writes, and that requests read meanwhile.

    driver.log      the newest part
    driver.log.<n>  the part before, if there is one, which begins with byte n of all that the driver has written

Of older output nothing is kept. The offset of a byte never changes, whatever is no longer kept before it.
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
        """Appends; what does not fit on a full disk is lost, and the driver goes on."""
        with contextlib.suppress(OSError):
            if (size := os.fstat(self._descriptor).st_size) >= PART_BYTES_MAX:
                self._begin_part(size)
            while text:
                text = text[os.write(self._descriptor, text) :]

    def _begin_part(self, size: int) -> None:
        """Begins a new part; one that cannot be begun, on a full disk, is tried again with the next text.

        Readers see that a part has ended by its new name, so nothing is deleted before it has that.
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
    """A driver's log as it was when it was opened, whatever its writer does.

    Attributes:
        begin: The offset of the first byte that is kept.
        end: The offset after the last one.
        parts: Its parts, the older one first.
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
    """Opens the log of a run for reading; it is empty if there is none."""
    file = directory / LOG_FILE
    with ExitStack() as opened:
        while True:  # until nothing was renamed meanwhile, which takes as long as it takes to write a part
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
    """Whether a path still leads to a file that was opened, or to no plain one if there was none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return file is None
    if file is None:
        return not stat.S_ISREG(found.st_mode)
    return os.path.samestat(found, os.fstat(file.fileno()))


def _older_parts(file: Path) -> list[tuple[int, Path]]:
    """Returns the parts that have ended, with the offsets where they begin; the newest is the last."""
    names = [(path.name.removeprefix(f"{LOG_FILE}."), path) for path in file.parent.glob(f"{LOG_FILE}.*")]
    return sorted((int(name), path) for name, path in names if name.isdecimal())
