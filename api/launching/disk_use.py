"""The space that the files of a job take on this host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system


def disk_use_bytes(directory: Path) -> int:
    """Returns the space of all files in a directory and below.

    A file with several names counts once. Links are not followed, and what cannot be read does not count.
    """
    blocks, seen, left = 0, set[tuple[int, int]](), [os.fspath(directory)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                found = list(entries)
        except OSError:  # it has just been deleted
            continue
        for entry in found:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if entry.is_dir(follow_symlinks=False):
                left.append(entry.path)
            elif status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
            blocks += status.st_blocks
    return blocks * _BLOCK_BYTES
