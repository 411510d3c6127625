"""Removes a directory tree safely, whatever it contains."""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str | Path, *, dir_fd: int | None = None) -> int:
    """Deletes a directory tree without following links.

    A missing directory is ignored. The tree may have any depth: inner directories are moved to the top before they are
    deleted, so that stack, open files and path lengths do not grow with the depth.

    Args:
        path: The directory.
        dir_fd: An open directory that the path is relative to.

    Returns:
        The size of the deleted files in bytes.

    Raises:
        OSError: Some of the tree could not be deleted. The rest was.
    """
    try:
        top = os.open(path, _DIRECTORY, dir_fd=dir_fd)
    except FileNotFoundError:
        return 0
    try:
        removal = _Removal(top)
        removal.run()
    finally:
        os.close(top)
    if removal.failure is not None:
        raise removal.failure
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path, dir_fd=dir_fd)
    return removal.size_bytes


class _Removal:
    """The removal of an open directory's content."""

    def __init__(self, top: int) -> None:
        self.size_bytes = 0
        self.failure: OSError | None = None
        self._top = top
        self._pending: list[str] = []

    def run(self) -> None:
        self._pending = self._empty(self._top)
        while self._pending:
            self._try(self._remove, self._pending.pop())

    def _remove(self, name: str) -> None:
        inner = os.open(name, _DIRECTORY, dir_fd=self._top)
        try:
            for child in self._empty(inner):
                self._try(self._move_up, child, inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=self._top)

    def _move_up(self, name: str, folder: int) -> None:
        moved = uuid.uuid4().hex
        os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=self._top)
        self._pending.append(moved)

    def _empty(self, folder: int) -> list[str]:
        """Deletes the files of an open directory; returns its directories' names."""
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            if not entry.is_dir(follow_symlinks=False):
                self._try(self._unlink, entry.name, folder)
        return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]

    def _unlink(self, name: str, folder: int) -> None:
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        os.unlink(name, dir_fd=folder)
        if stat.S_ISREG(seen.st_mode):
            self.size_bytes += seen.st_size

    def _try(self, step: Callable[..., None], *arguments: str | int) -> None:
        try:
            step(*arguments)
        except FileNotFoundError:  # another process removes it, too
            pass
        except OSError as error:
            self.failure = self.failure or error
