"""A subtask's local directory: who may use it, and whether what lies there may be used again.

    <local root>/<job>/attempt-<n>/<uid>/subtask-<i>/try-<k>/     the store's files, its lock and its CLEAN marker
    <local root>/<job>/attempt-<n>/<uid>/subtask-<i>/snapshots/   hard-linked snapshots, for upload and local recovery

A worker holds an flock on its try directory. The lock of a dead process is free at once; one that a stopped process holds
is waited for a bounded time, and then the next try directory is used: the old one is garbage, and whatever its holder
does there later is harmless, for its changelogs are named by no commit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from state.decoding import json_decoder
from state.errors import DiskFullError, DiskReadOnlyError, StateError, StoreIOError
from state.identifiers import BatchId
from state.layout import path_segment
from state.schema import KeyedSchema
from state.ttl import Ttl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state.identifiers import Attempt, JobId, OperatorUid, SubtaskIndex

LOCK_WAIT_SECONDS = 5.0
_LOCK_POLL_SECONDS = 0.003
_LOCK_NAME = "lock"
_CLEAN_NAME = "CLEAN"
_WANTED_NAME = "wanted"
_TRY_PREFIX = "try-"
_MARKER_VERSION = 1


class LocalShard(msgspec.Struct, frozen=True):
    """A shard's directory, relative to the try directory, and the key groups (inclusive) that it answers for."""

    directory: str
    key_group_start: int
    key_group_end: int


class CleanMarker(msgspec.Struct, frozen=True):
    """Says that the local files are whole, flushed, closed and exactly at a version.

    Attributes:
        batch_id: The version's batch.
        lineage: The version's identity of content.
        shards: What is where.
        schema: How the entries are to be read; None if there are none.
        ttls: The TTL of each state that has one, as the attempt whose files these are has declared it.
        boot_id: Of the running system: after a loss of power unsynced files may have holes, so nothing is used again.
        format_version: Of this marker; another one is not used.
    """

    batch_id: BatchId
    lineage: str
    shards: tuple[LocalShard, ...]
    boot_id: str
    schema: KeyedSchema | None = None
    ttls: dict[str, Ttl] = {}
    format_version: int = _MARKER_VERSION


class SubtaskDirectory:
    """A try directory, held by this process until `release`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def acquire(cls, subtask_root: Path, wait_seconds: float = LOCK_WAIT_SECONDS) -> SubtaskDirectory:
        """Take the subtask's newest try directory, or the next one if its lock is held for longer than the wait.

        Raises:
            DiskFullError, DiskReadOnlyError, StoreIOError: The directory cannot be used.
        """
        deadline = time.monotonic() + wait_seconds
        with local_failures(subtask_root):
            subtask_root.mkdir(parents=True, exist_ok=True)
            number = 0
            while True:
                number = max(number, *_tries(subtask_root))
                path = subtask_root / f"{_TRY_PREFIX}{number}"
                path.mkdir(exist_ok=True)
                lock = _lock(path)
                if lock is not None:
                    (path / _WANTED_NAME).unlink(missing_ok=True)
                    _remove_older_tries(subtask_root, number)
                    return cls(path, lock)
                (path / _WANTED_NAME).touch()  # a process that only keeps it warm lets go
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_POLL_SECONDS)
                else:
                    number += 1

    def is_wanted(self) -> bool:
        """Whether another process waits for the directory."""
        return (self.path / _WANTED_NAME).exists()

    def take_clean_marker(self) -> CleanMarker | None:
        """Read and remove the marker: from now on the files count as dirty until they are marked again."""
        marker = self.path / _CLEAN_NAME
        with local_failures(marker):
            try:
                data = marker.read_bytes()
            except FileNotFoundError:
                return None
            marker.unlink()
        try:
            clean = json_decoder(CleanMarker).decode(data)
        except msgspec.MsgspecError:
            return None
        return clean if clean.format_version == _MARKER_VERSION and clean.boot_id == boot_id() else None

    def mark_clean(self, marker: CleanMarker) -> None:
        """Promise that the files are as the marker says; they have been flushed and closed."""
        temporary, final = self.path / f"{_CLEAN_NAME}.new", self.path / _CLEAN_NAME
        with local_failures(final):
            with temporary.open("wb") as file:
                file.write(msgspec.json.encode(marker))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)

    def clear(self) -> None:
        """Remove everything but the lock."""
        with local_failures(self.path):
            for entry in self.path.iterdir():
                if entry.name == _LOCK_NAME:
                    continue
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)

    def discard(self) -> None:
        """Free what a failed rebuild has left, as far as possible, and release."""
        try:
            with contextlib.suppress(StateError):
                self.clear()
        finally:
            self.release()

    def release(self) -> None:
        """Let the next task have the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def job_root(local_root: Path, job_id: JobId) -> Path:
    """Directory of all of a job's local files on this host."""
    return local_root / path_segment(job_id)


def attempt_root(local_root: Path, job_id: JobId, attempt: Attempt) -> Path:
    """Directory of an attempt's local files on this host."""
    return job_root(local_root, job_id) / f"attempt-{attempt}"


def subtask_root(local_root: Path, job_id: JobId, attempt: Attempt, uid: OperatorUid, subtask: SubtaskIndex) -> Path:
    """Directory of a subtask's local files in an attempt."""
    return attempt_root(local_root, job_id, attempt) / path_segment(uid) / f"subtask-{subtask}"


def remove_older_attempts(local_root: Path, job_id: JobId, attempt: Attempt) -> None:
    """Free the local files of attempts before this one; what cannot be removed stays, for it is only garbage.

    To be called once this attempt has local snapshots of its own: until then the older files may be linked instead of
    being downloaded.
    """
    with contextlib.suppress(FileNotFoundError):
        for entry in job_root(local_root, job_id).iterdir():
            number = entry.name.removeprefix("attempt-")
            if number.isdecimal() and int(number) < attempt:
                for place in entry.glob("*/subtask-*"):
                    if place.is_symlink():  # its files are on another disk
                        shutil.rmtree(place.readlink(), ignore_errors=True)
                shutil.rmtree(entry, ignore_errors=True)


def boot_id() -> str:
    """Identifies the running system until it is started again."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@contextmanager
def local_failures(where: Path) -> Iterator[None]:
    """Turn the operating system's errors into the state package's."""
    try:
        yield
    except OSError as error:
        message = f"{where}: {error.strerror or type(error).__name__}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFullError(message) from error
        if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise DiskReadOnlyError(message) from error
        raise StoreIOError(message) from error


def _tries(root: Path) -> list[int]:
    numbers = (entry.name.removeprefix(_TRY_PREFIX) for entry in root.iterdir() if entry.name.startswith(_TRY_PREFIX))
    return [0, *(int(number) for number in numbers if number.isdecimal())]


def _lock(path: Path) -> int | None:
    lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return None
        raise
    if not _is_at(path / _LOCK_NAME, lock):  # a newer try has removed the directory meanwhile
        os.close(lock)
        return None
    return lock


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _remove_older_tries(root: Path, number: int) -> None:
    for older in _tries(root):
        if older >= number:
            continue
        path = root / f"{_TRY_PREFIX}{older}"
        lock = _lock(path) if path.exists() else None
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
