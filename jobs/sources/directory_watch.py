"""The files of a directory that a job has not read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

_WILDCARDS = frozenset("*?[{")


def local_directory(url: str) -> str | None:
    """Returns the local path of a source's directory.

    Returns None for a directory elsewhere, and for a pattern.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    is_local = parts.scheme in {"", "file"} and parts.netloc in {"", "localhost"}
    return path if is_local and path.startswith("/") and not _WILDCARDS & set(path) else None


class DirectoryWatch:
    """Compares a directory with the files that it had at first.

    A file that has changed counts as new. Hidden files do not count, as Spark reads none.

    Args:
        path: The directory, which may not exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: frozenset[tuple[str, int]] = frozenset()

    def note(self) -> None:
        """Takes the present files as read."""
        self._known = frozenset(self._files())

    def has_news(self) -> bool:
        """Returns whether the directory has a file that it did not have."""
        return any(file not in self._known for file in self._files())

    def _files(self) -> Iterable[tuple[str, int]]:
        for folder, folders, names in os.walk(self._path):
            folders[:] = [name for name in folders if not _is_hidden(name)]
            for name in names:
                file = Path(folder, name)
                if not _is_hidden(name):
                    with contextlib.suppress(FileNotFoundError):  # deleted since
                        yield str(file), file.stat().st_mtime_ns


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))
