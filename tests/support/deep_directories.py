"""Directories that are deeper than a path may be long, or a stack high."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def deepened(*directories: Path, levels: int = 1200) -> Iterator[None]:
    """Makes a chain of directories in each directory, with a file of one byte at its end; deletes what is left of it.

    Nothing may be left: pytest could not delete it.
    """
    try:
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
            _deepen(directory, levels)
        yield
    finally:
        subprocess.run(["rm", "-rf", "--", *(str(directory / "d") for directory in directories)], check=True)


def _deepen(directory: Path, levels: int) -> None:
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
