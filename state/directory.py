"""A subtask's local directory: who may use it, and whether what lies there may be used again.

    <local root>/<job>/attempt-<n>/<uid>/subtask-<i>/try-<k>/     the store's files, its lock and bell, its CLEAN marker
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
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from state.decoding import json_decoder
from state.doorbell import Doorbell, ring
from state.errors import DiskFullError, DiskReadOnlyError, StateError, StoreIOError
from state.identifiers import BatchId
from state.key_groups import KeyGroupRange
from state.layout import path_segment
from state.schema import KeyedSchema
from state.ttl import Ttl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from state.identifiers import Attempt, JobId, OperatorUid, SubtaskIndex

LOCK_WAIT_SECONDS = 5.0
_LOCK_POLL_SECONDS = 0.001
_LOCK_NAME = "lock"
_CLEAN_NAME = "CLEAN"
_BELL_NAME = "bell"
_TRY_PREFIX = "try-"
_DATA_PREFIX = "data-"
_MARKER_VERSION = 1


class LocalShard(msgspec.Struct, frozen=True):
    """A shard's directory, relative to the try directory, and the key groups (inclusive) that it answers for."""

    directory: str
    key_group_start: int
    key_group_end: int

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.key_group_start, self.key_group_end)


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

    @classmethod
    def usable(cls, data: bytes) -> CleanMarker | None:
        """A marker as it was written, if what it says still counts."""
        try:
            marker = json_decoder(cls).decode(data)
        except msgspec.MsgspecError:
            return None
        return marker if marker.format_version == _MARKER_VERSION and marker.boot_id == boot_id() else None


class SubtaskDirectory:
    """A try directory, held by this process until `release`."""

    def __init__(self, path: Path, lock: int, bell: Doorbell) -> None:
        self.path = path
        self.bell = bell
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
                lock = lock_directory(path)
                if lock is not None:
                    try:
                        _remove_older_tries(subtask_root, number)
                        return cls(path, lock, Doorbell(path / _BELL_NAME))
                    except BaseException:  # else this process would hold it, unused, until its end
                        os.close(lock)
                        raise
                ring(path / _BELL_NAME)  # a process that only keeps it warm lets go
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_POLL_SECONDS)
                else:
                    number += 1

    def take_clean_marker(self) -> CleanMarker | None:
        """Read and remove the marker: from now on the files count as dirty until they are marked again."""
        marker = self.path / _CLEAN_NAME
        with local_failures(marker):
            try:
                data = marker.read_bytes()
            except FileNotFoundError:
                return None
            marker.unlink()
        return CleanMarker.usable(data)

    def mark_clean(self, marker: CleanMarker) -> None:
        """Promise that the files are as the marker says; they have been flushed and closed."""
        final = self.path / _CLEAN_NAME
        with local_failures(final):
            write_durably(final, msgspec.json.encode(marker))

    def clear(self) -> None:
        """Remove everything but the lock and the bell."""
        with local_failures(self.path):
            _remove(entry for entry in self.path.iterdir() if entry.name not in {_LOCK_NAME, _BELL_NAME})

    def fresh_data(self) -> Path:
        """The path of a directory for shards that no process has used; it is not made."""
        return self.path / f"{_DATA_PREFIX}{uuid.uuid4().hex}"

    def keep_only(self, shards: Sequence[LocalShard]) -> None:
        """Remove the data of other shards than these: of those before them, or of a process that died on the way to others."""
        kept = {shard.directory.partition("/")[0] for shard in shards}
        with local_failures(self.path):
            _remove(
                entry for entry in self.path.iterdir() if entry.name.startswith(_DATA_PREFIX) and entry.name not in kept
            )

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
            self.bell.close()  # first: who has the lock listens
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


def lock_directory(path: Path) -> int | None:
    """Take a directory's lock; the descriptor to close for letting it go, or None if another process has it.

    Raises:
        FileNotFoundError: There is no such directory.
    """
    lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return None
        raise
    if not _is_at(path / _LOCK_NAME, lock):  # the directory was removed meanwhile
        os.close(lock)
        return None
    return lock


def write_durably(path: Path, data: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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


def _remove(entries: Iterable[Path]) -> None:
    for entry in list(entries):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _tries(root: Path) -> list[int]:
    numbers = (entry.name.removeprefix(_TRY_PREFIX) for entry in root.iterdir() if entry.name.startswith(_TRY_PREFIX))
    return [0, *(int(number) for number in numbers if number.isdecimal())]


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
        lock = lock_directory(path) if path.exists() else None
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
