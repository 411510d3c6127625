"""Verifies a checkpoint or savepoint: presence, lengths and hashes of its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..documents.checked_document import DocumentCorruptError, FormatTooNewError
from ..documents.manifest import read_manifest
from ..objects.errors import ObjectCorruptError, ObjectNotFoundError
from .foreign_files import foreign_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..documents.manifest import FileHandle, Manifest
    from ..objects.object_store import ObjectStore

PROBLEMS_SHOWN_MAX = 20


class _EndedError(Exception):
    """The caller has ended the verification."""


@dataclass(slots=True)
class Verification:
    """The findings so far.

    Attributes:
        files: How many files the snapshot has; None if its manifest cannot be read.
        files_checked: How many of them were checked.
        bytes_read: How many bytes of them were read for their hashes.
        problems: The first problems, in words.
        problem_count: The number of problems.
        manifest: The manifest.
    """

    files: int | None = None
    files_checked: int = 0
    bytes_read: int = 0
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    manifest: Manifest | None = None

    def add(self, problem: str) -> None:
        """Adds a problem."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_SHOWN_MAX:
            self.problems.append(problem)


def verify(store: ObjectStore, path: str, *, hashes: bool, goes_on: Callable[[Verification], bool]) -> Verification:
    """Verifies a snapshot, one file at a time.

    Args:
        store: The object store.
        path: Its manifest's path.
        hashes: Whether to read each file in full and check its hash.
        goes_on: Called with the findings after each file, and while a file is read; False ends the verification.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    found = Verification()
    try:
        found.manifest = read_manifest(store, path)
    except ObjectNotFoundError:
        found.add(f"{path} is missing")
        return found
    except (DocumentCorruptError, FormatTooNewError) as error:
        found.add(f"{path} cannot be read: {error}")
        return found
    if found.manifest.path != path:
        found.add(f"{path} is the manifest of {found.manifest.path}")
        return found
    files = list({file.path: file for file in found.manifest.files()}.values())
    found.files = len(files)
    foreign = set(foreign_files(store, found.manifest))
    try:
        for file in files:
            if file.path in foreign:
                problem: str | None = f"{file.path} is not a file of its job"
            else:
                problem = _hash_problem(store, file, found, goes_on) if hashes else _length_problem(store, file)
            if problem is not None:
                found.add(problem)
            found.files_checked += 1
            _tell(found, goes_on)
    except _EndedError:
        pass
    return found


def _tell(found: Verification, goes_on: Callable[[Verification], bool]) -> None:
    if not goes_on(found):
        raise _EndedError


def _length_problem(store: ObjectStore, file: FileHandle) -> str | None:
    info = store.head(file.path)
    if info is None:
        return f"{file.path} is missing"
    if info.size_bytes != file.size_bytes:
        return f"{file.path} has {info.size_bytes} bytes, not {file.size_bytes}"
    return None


def _hash_problem(
    store: ObjectStore, file: FileHandle, found: Verification, goes_on: Callable[[Verification], bool]
) -> str | None:
    before_bytes = found.bytes_read

    def on_read(size_bytes: int) -> None:
        found.bytes_read = before_bytes + size_bytes
        _tell(found, goes_on)

    try:
        store.check(file.path, size_bytes=file.size_bytes, sha256=file.sha256, on_read=on_read)
    except ObjectNotFoundError:
        return f"{file.path} is missing"
    except ObjectCorruptError as error:
        return f"{file.path}: {error}"
    return None
