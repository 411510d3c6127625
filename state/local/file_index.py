"""An index of the files on this host by content.

With it, a file is neither hashed nor downloaded twice. An index is stored beside its files. An entry holds only while
the file's identity (inode, length, time of last modification) is unchanged: a replaced or modified file counts as
unknown.

A disk may lose or change bytes without a new identity. So an index is trusted only while the system that wrote it runs,
because a power loss may leave holes in unsynced files, and only until damage is found on this host. After that each of
its files is hashed again before use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ..decoding import json_decoder
from .subtask_directory import boot_id

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

INDEX_NAME = "index.json"
_FORMAT_VERSION = 2


class FileIdentity(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a file's content, equal for all hard links."""

    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        found = path.stat()
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class IndexedFile(msgspec.Struct, frozen=True):
    """A file's path relative to the index, and its content's SHA-256."""

    path: str
    identity: FileIdentity
    sha256: str


class FileIndex(msgspec.Struct, frozen=True):
    """The content of a directory's index.

    Attributes:
        files: The files.
        boot_id: The system in which all files were known to be undamaged; empty once that is in doubt.
        format_version: The index's format; an index of another format is ignored.
    """

    files: tuple[IndexedFile, ...] = ()
    boot_id: str = ""
    format_version: int = _FORMAT_VERSION

    @property
    def is_trusted(self) -> bool:
        """Whether its files may be used without being hashed again."""
        return self.boot_id == boot_id()


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A file on this host that had the wanted content when hashed."""

    path: Path
    sha256: str
    is_trusted: bool

    def is_sound(self) -> bool:
        """Returns whether the file has the content; reads it only in doubt."""
        try:
            return self.is_trusted or hash_file(self.path) == self.sha256
        except OSError:  # unreadable, or its attempt has just removed it
            return False


def write_index(directory: Path, files: Iterable[IndexedFile]) -> None:
    """Replaces the index of a directory of undamaged files."""
    _write(directory, FileIndex(tuple(files), boot_id()))


def read_index(directory: Path) -> FileIndex:
    """Returns a directory's index; an empty one if it is unreadable."""
    try:
        index = json_decoder(FileIndex).decode((directory / INDEX_NAME).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return FileIndex()
    return index if index.format_version == _FORMAT_VERSION else FileIndex()


def distrust_index(directory: Path) -> bool:
    """Marks a directory's files as possibly damaged; returns whether they were trusted."""
    index = read_index(directory)
    if index.is_trusted:
        _write(directory, msgspec.structs.replace(index, boot_id=""))
    return index.is_trusted


def known_hashes(directories: Iterable[Path]) -> dict[FileIdentity, str]:
    """Returns the recorded SHA-256 of every indexed file, by the file's identity.

    Untrusted indexes count, too: the first hash of a damaged file leads to the undamaged copy in the object store,
    while a new hash would bring the damage into a checkpoint.
    """
    return {file.identity: file.sha256 for directory in directories for file in read_index(directory).files}


def local_copies(directories: Iterable[Path], wanted: set[str]) -> dict[str, LocalCopy]:
    """Finds files on this host by content.

    Args:
        directories: The directories with the indexes to search.
        wanted: The SHA-256 of each content.

    Returns:
        An unchanged file for each content found, by SHA-256; preferably a trusted one.
    """
    found: dict[str, LocalCopy] = {}
    for directory in directories:
        index = read_index(directory)
        is_trusted = index.is_trusted
        for file in index.files:
            path, other = directory / file.path, found.get(file.sha256)
            is_better = other is None or (is_trusted and not other.is_trusted)
            if file.sha256 in wanted and is_better and _is_unchanged(path, file.identity):
                found[file.sha256] = LocalCopy(path, file.sha256, is_trusted)
    return found


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-links a file, or copies it (such as across disks)."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_unchanged(path: Path, identity: FileIdentity) -> bool:
    try:
        return FileIdentity.of(path) == identity
    except OSError:
        return False


def _write(directory: Path, index: FileIndex) -> None:
    temporary = directory / f"{INDEX_NAME}.{uuid.uuid4().hex}"  # two processes may write it
    temporary.write_bytes(msgspec.json.encode(index))
    temporary.replace(directory / INDEX_NAME)
