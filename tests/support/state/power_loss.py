"""The files of a directory tree that would be left after a power loss: only those that were synced."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


class SyncedDisk:
    """Watches a process's syncs. A content survives if its file was synced, a name if its directory was synced later.

    Attributes:
        contents: The synced content of each file, by inode.
        names: By a directory's inode, the names that were in it when it was synced, each with its inode and the content
            that was synced by then; None if it had none.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: dict[int, bytes] = {}
        self.names: dict[int, dict[str, tuple[int, bytes | None]]] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, descriptor: int) -> None:
        found, path = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISDIR(found.st_mode):
            inodes = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
            self.names[found.st_ino] = {name: (inode, self.contents.get(inode)) for name, inode in inodes.items()}
        else:
            self.contents[found.st_ino] = path.read_bytes()
        self._fsync(descriptor)

    def after_power_loss(self, root: Path, path: str) -> bytes | None:
        """Returns the content of the file at a path below a directory; None if its name or its content was lost."""
        inode, content = root.stat().st_ino, None
        for name in path.split("/"):
            if name not in self.names.get(inode, {}):
                return None
            inode, content = self.names[inode][name]
        return content
