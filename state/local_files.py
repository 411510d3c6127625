"""Files that are on this host already: what they contain, remembered, so that they are neither hashed nor fetched twice.

An index lies beside the files that it describes. An entry holds only while the file's identity (inode, length, time of
its last change) is what it was: a file that was replaced or written to is unknown again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING

import msgspec

from state.decoding import json_decoder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

INDEX_NAME = "index.json"


class FileIdentity(msgspec.Struct, frozen=True, array_like=True):
    """What changes when a file's content does; the same for all hard links of a file."""

    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        found = path.stat()
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class IndexedFile(msgspec.Struct, frozen=True):
    """A file below the index's directory and the SHA-256 of its content."""

    path: str
    identity: FileIdentity
    sha256: str


def write_index(directory: Path, files: Iterable[IndexedFile]) -> None:
    """Remember files below a directory; replaces the directory's index."""
    temporary = directory / f"{INDEX_NAME}.new"
    temporary.write_bytes(msgspec.json.encode(list(files)))
    temporary.replace(directory / INDEX_NAME)


def read_index(directory: Path) -> list[IndexedFile]:
    """A directory's index; empty if there is none that can be read."""
    try:
        return json_decoder(list[IndexedFile]).decode((directory / INDEX_NAME).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return []


def known_hashes(directories: Iterable[Path]) -> dict[FileIdentity, str]:
    """SHA-256 by identity of every file that the directories' indexes know."""
    return {file.identity: file.sha256 for directory in directories for file in read_index(directory)}


def local_copies(directories: Iterable[Path], wanted: set[str]) -> dict[str, Path]:
    """Where on this host each of the wanted contents (SHA-256) is, if it is and is still what it was."""
    found: dict[str, Path] = {}
    for directory in directories:
        for file in read_index(directory):
            path = directory / file.path
            if file.sha256 in wanted and file.sha256 not in found and _is_still(path, file.identity):
                found[file.sha256] = path
    return found


def link_or_copy(source: Path, target: Path) -> None:
    """Make target the same file as source, or a copy of it where it cannot be linked."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_still(path: Path, identity: FileIdentity) -> bool:
    try:
        return FileIdentity.of(path) == identity
    except OSError:
        return False
