"""The contract of object stores, with its path rules and its probe."""

from __future__ import annotations

import contextlib
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .errors import (
    ConditionalCreateUnsupportedError,
    InvalidObjectPathError,
    ObjectCorruptError,
    ObjectExistsError,
    ObjectStoreError,
    ObjectTooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


PATH_BYTES_MAX = 1024  # S3's limit for a key
SEGMENT_BYTES_MAX = 255  # file systems' limit for a name
SEGMENTS_MAX = 64  # paths of ours are less deep, so a listing may stop there
TEMPORARY_PREFIX = ".tmp-"
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's path, size and time of last change."""

    path: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """A flat store of immutable objects under slash-separated paths.

    Every method raises `StoreUnavailableError` when the store is unreachable (after a limited number of retries),
    `StoreRefusedError` when it denies access, and `InvalidObjectPathError` for a path that `check_path` rejects. An
    object appears complete or not at all. Instances may be pickled and shared by threads.
    """

    @property
    def get_bytes_max(self) -> int | None:
        """The largest object that `get` returns; None: no limit."""
        ...

    @property
    def url(self) -> str:
        """The URL with which `open_store` opens this store."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Writes an object, replacing an existing one."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Writes an object only if the path is free.

        One of two writers wins.

        Raises:
            ObjectExistsError: The path has an object. After a lost response it may be this call's own: read it back.
            StoreUnavailableError: The object may or may not have been written: read it back.
        """
        ...

    def get(self, path: str) -> bytes:
        """Returns an object's content.

        Raises:
            ObjectNotFoundError: The object does not exist.
            ObjectTooLargeError: The object is larger than the store's limit for reading.
        """
        ...

    def upload(self, source: Path, path: str, *, immutable: bool = False) -> None:
        """Writes an object from a local file, replacing an existing one.

        Args:
            source: A complete local file.
            path: The object's path.
            immutable: Promises that the file's bytes never change in place. A local store may then hard-link it.
        """
        ...

    def download(self, path: str, target: Path, *, size_bytes: int | None = None, sha256: str | None = None) -> None:
        """Writes an object's content to a verified local file.

        The file appears complete and verified, or not at all.

        Raises:
            ObjectNotFoundError: The object does not exist.
            ObjectCorruptError: Its length or hash differs from the given value.
        """
        ...

    def check(self, path: str, *, size_bytes: int, sha256: str, on_read: Callable[[int], None]) -> None:
        """Reads an object and compares it with its expected length and hash.

        Args:
            path: The object's path.
            size_bytes: Its length.
            sha256: Its hash, as a hexadecimal number.
            on_read: Called now and then with the number of bytes read so far, which starts at 0 again after a retry. An
                exception from it ends the reading.

        Raises:
            ObjectNotFoundError: The object does not exist.
            ObjectCorruptError: Its length or hash differs from the given value.
        """
        ...

    def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store, if possible without transferring its bytes."""
        ...

    def head(self, path: str) -> ObjectInfo | None:
        """Returns an object's size and change time, or None."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Lists the objects with a path prefix, sorted by UTF-8 path.

        Paths up to and including `start_after` are omitted.
        """
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes objects; missing objects are ignored."""
        ...

    def remove_unfinished(self, prefix: str, before_ms: int) -> int:
        """Removes the remains of writes below a prefix; objects stay.

        It frees the space of writes with a killed process, and removes anything else that is not an object: a job may
        put links and pipes into its folder of a local store.

        Args:
            prefix: As for `list`.
            before_ms: Only writes that began earlier are removed, in milliseconds since the epoch. Choose a time before
                which all writes have certainly ended.

        Returns:
            The number of removed remains.

        Raises:
            StoreRefusedError: The credentials do not allow it, or the store cannot list the remains.
        """
        ...


def check_size(path: str, size_bytes: int, bytes_max: int | None) -> None:
    """Refuses an object that is too large to be read into memory.

    Raises:
        ObjectTooLargeError: The object has more than `bytes_max` bytes.
    """
    if bytes_max is not None and size_bytes > bytes_max:
        raise ObjectTooLargeError(f"{path} has {size_bytes} bytes; the limit for reading is {bytes_max}")


def check_path(path: str) -> str:
    """Returns a path if it is valid for all stores.

    Raises:
        InvalidObjectPathError: The path is empty, absolute, too long or too deep, or contains an empty or dot segment,
            a control character, a backslash, or a segment reserved for temporary files.
    """
    segments = path.split("/")
    if (
        len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES_MAX
        or len(segments) > SEGMENTS_MAX
        or _FORBIDDEN.search(path)
        or any(segment in {"", ".", ".."} or segment.startswith(TEMPORARY_PREFIX) for segment in segments)
        or any(len(segment.encode("utf-8", "surrogatepass")) > SEGMENT_BYTES_MAX for segment in segments)
        or any("\ud800" <= character <= "\udfff" for character in path)
    ):
        raise InvalidObjectPathError(f"not an object path: {path[:80]!r}")
    return path


def check_prefix(prefix: str) -> str:
    """Returns a prefix for `list` if it is valid.

    It is empty, or the beginning of a path.
    """
    if prefix:
        check_path(prefix.removesuffix("/"))
    return prefix


def probe(store: ObjectStore, prefix: str = "") -> None:
    """Checks that a store can guarantee exactly once.

    Creates one object twice under `probe/`, reads it back, and deletes it.

    Args:
        store: The store.
        prefix: The beginning of the object's path, for credentials with access to a part of the store.

    Raises:
        ConditionalCreateUnsupportedError: The second create succeeded: the store ignores the condition.
        ObjectCorruptError: The store returned other bytes than were written.
        StoreUnavailableError: The store is unreachable.
        StoreRefusedError: The credentials or the bucket are wrong.
    """
    path = f"{prefix}probe/{uuid.uuid4().hex}"
    try:
        _probe(store, path)
    except BaseException:
        with contextlib.suppress(ObjectStoreError):  # the first failure counts
            store.delete([path])
        raise
    store.delete([path])


def _probe(store: ObjectStore, path: str) -> None:
    # After a lost answer the existing object is this probe's own: the path is random.
    with contextlib.suppress(ObjectExistsError):
        store.create(path, b"first")
    try:
        store.create(path, b"second")
    except ObjectExistsError:
        pass
    else:
        raise ConditionalCreateUnsupportedError("the store overwrote an object on a conditional create")
    if store.get(path) != b"first":
        raise ObjectCorruptError("the store returned other bytes than were written")
