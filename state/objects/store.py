from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from state.objects.errors import InvalidObjectPathError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PATH_BYTES_MAX = 1024  # S3's limit of a key
SEGMENT_BYTES_MAX = 255  # the file systems' limit of a name
TEMPORARY_PREFIX = ".tmp-"
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store tells of an object without its content."""

    path: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """A flat store of immutable objects under slash-separated paths; the durable half of everything.

    Every method raises `StoreUnavailableError` when the store is away (after bounded retries), `StoreRefusedError`
    when it will not have us, and `InvalidObjectPathError` for a path that `check_path` refuses. An object appears
    whole or not at all. Instances may be pickled and shared by threads.
    """

    @property
    def url(self) -> str:
        """The address that `open_store` opens this store by."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing one that is there."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write an object only if the path is free: of two writers exactly one succeeds.

        Raises:
            ObjectExistsError: The path is taken. After a lost response, possibly by this very call: read it back.
            StoreUnavailableError: It is unknown whether the object was written: read it back.
        """
        ...

    def get(self, path: str) -> bytes:
        """The object's content; raises ObjectNotFoundError."""
        ...

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:
        """Write an object from a local file, replacing one that is there.

        Args:
            source: A complete local file.
            path: Where the object goes.
            immutable: Promises that the file's bytes never change in place. A local store may then hard-link it.
        """
        ...

    def download(self, path: str, target: Path, *, size_bytes: int | None = None, sha256: str | None = None) -> None:
        """Write an object's content to a local file that appears complete and verified, or not at all.

        Raises:
            ObjectNotFoundError: There is no such object.
            ObjectCorruptError: Its length or hash is not what was asked for.
        """
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store, without moving its bytes through this process where that can be had."""
        ...

    def head(self, path: str) -> ObjectInfo | None:
        """Facts of an object, or None when there is none."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose path starts with `prefix` and sorts after `start_after`, in the order of their UTF-8 paths."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects; one that is not there is no error."""
        ...


def check_path(path: str) -> str:
    """Return the path of an object if it can be one, on every kind of store alike.

    Raises:
        InvalidObjectPathError: It is empty, absolute, too long, has an empty or dot segment, a control character or a
            backslash, or a segment that is reserved for temporary files.
    """
    segments = path.split("/")
    if (
        len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES_MAX
        or _FORBIDDEN.search(path)
        or any(segment in {"", ".", ".."} or segment.startswith(TEMPORARY_PREFIX) for segment in segments)
        or any(len(segment.encode("utf-8", "surrogatepass")) > SEGMENT_BYTES_MAX for segment in segments)
        or any("\ud800" <= character <= "\udfff" for character in path)
    ):
        raise InvalidObjectPathError(f"not an object path: {path[:80]!r}")
    return path


def check_prefix(prefix: str) -> str:
    """Return a prefix to list by: empty, or the beginning of a valid path."""
    if prefix:
        check_path(prefix.removesuffix("/"))
    return prefix
