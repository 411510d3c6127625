"""The space that the files of a job take on this host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system
_NAMES_AT_ONCE = 15  # of 255 bytes each: a call takes a path of at most 4,096 bytes, and directories nest deeper


def disk_use_bytes(directory: Path) -> int:
    """Returns the space of all files in a directory and below.

    A file with several names counts once. Links are not followed, and what cannot be read does not count.
    """
    blocks, seen, left = 0, set[tuple[int, int]](), [os.path.realpath(directory)]
    while left:
        place = left.pop()
        try:
            opened = _opened(place)
        except OSError:  # it has just been deleted
            continue
        try:
            with os.scandir(opened) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        left.append(f"{place}/{entry.name}")
                    elif status.st_nlink > 1:
                        if (status.st_dev, status.st_ino) in seen:
                            continue
                        seen.add((status.st_dev, status.st_ino))
                    blocks += status.st_blocks
        finally:
            os.close(opened)
    return blocks * _BLOCK_BYTES


def _opened(directory: str) -> int:
    """Opens a directory, however long its path is."""
    names = directory.split("/")
    opened: int | None = None
    for begin in range(0, len(names), _NAMES_AT_ONCE):
        part = "/".join(names[begin : begin + _NAMES_AT_ONCE])
        before = opened
        try:
            opened = os.open(part or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=before)
        finally:
            if before is not None:
                os.close(before)
    assert opened is not None  # noqa: S101 - a path has a name
    return opened
