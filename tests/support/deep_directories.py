"""Directories that are deeper than a path may be long, or a stack high."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def deepen(directory: Path, levels: int = 1200) -> None:
    """Makes a chain of directories in a directory, with a file of one byte at its end."""
    descriptor = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor)
    os.write(file, b"x")
    os.close(file)
    os.close(descriptor)
