"""A subtask's local directory: its holder, and the validity of its files.

    <local root>/<job>/attempt-<n>/<uid>/subtask-<i>/try-<k>/     the store's files, lock, signal, CLEAN and DAMAGED
    <local root>/<job>/attempt-<n>/<uid>/subtask-<i>/snapshots/   hard-linked snapshots, for upload and local recovery

A worker holds an flock on its try directory. A dead process's lock is free at once. A stopped process keeps its lock:
other processes wait for a bounded time, then use the next try directory. The old directory is garbage, and later work
of its holder is harmless, because commits do not name its changelogs.
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

from keyscale.file_rights import missing_right
from keyscale.identifiers import BatchId

from ..decoding import json_decoder
from ..errors import DiskForbiddenError, DiskFullError, DiskReadOnlyError, StateError, StoreIOError
from ..keyed.schema import KeyedSchema
from ..keyed.ttl import Ttl
from ..keys.key_groups import KeyGroupRange
from ..layout import path_segment
from .hand_over_signal import HandOverSignal, request_hand_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keyscale.identifiers import Attempt, JobId, OperatorUid, SubtaskIndex

LOCK_WAIT_SECONDS = 2.0  # closing a large store can wait longer for a merge than a rebuild takes
_LOCK_POLL_SECONDS = 0.001
_LOCK_NAME = "lock"
_CLEAN_NAME = "CLEAN"
_DAMAGED_NAME = "DAMAGED"
SNAPSHOTS_NAME = "snapshots"
_SIGNAL_NAME = "bell"
_TRY_PREFIX = "try-"
_DATA_PREFIX = "data-"
_MARKER_VERSION = 1


class LocalShard(msgspec.Struct, frozen=True):
    """A shard's directory in the try directory, and its inclusive key groups."""

    directory: str
    key_group_start: int
    key_group_end: int

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.key_group_start, self.key_group_end)


class CleanMarker(msgspec.Struct, frozen=True):
    """The mark of complete, flushed, closed local files at a version.

    Attributes:
        batch_id: The version's batch.
        lineage: The version's lineage.
        shards: The shards and their directories.
        boot_id: The running system's id: after a power loss unsynced files may have holes, so files of an earlier boot
            are not used.
        schema: The schema of the entries; None if there are none.
        ttls: The TTL of each state with a TTL, as declared by the attempt that wrote the files.
        format_version: The marker's format; a marker of another format is ignored.
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
        """Returns the marker in a file's content; None if it is unusable."""
        try:
            marker = json_decoder(cls).decode(data)
        except msgspec.MsgspecError:
            return None
        return marker if marker.format_version == _MARKER_VERSION and marker.boot_id == boot_id() else None


class SubtaskDirectory:
    """A try directory, held by this process until `release`."""

    def __init__(self, path: Path, lock: int, hand_over_signal: HandOverSignal) -> None:
        self.path = path
        self.hand_over_signal = hand_over_signal
        self._lock: int | None = lock

    @classmethod
    def acquire(cls, subtask_root: Path, wait_seconds: float = LOCK_WAIT_SECONDS) -> SubtaskDirectory:
        """Locks the subtask's newest try directory, or else the next.

        The next directory is used if the lock is not free within the wait.

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
                        return cls(path, lock, HandOverSignal(path / _SIGNAL_NAME))
                    except BaseException:  # otherwise this process would hold the unused lock until it ends
                        os.close(lock)
                        raise
                request_hand_over(path / _SIGNAL_NAME)  # a process that only keeps its store open releases it
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_POLL_SECONDS)
                else:
                    number += 1

    @property
    def is_damaged(self) -> bool:
        """Whether another process has found the files damaged."""
        return (self.path / _DAMAGED_NAME).exists()

    def take_clean_marker(self) -> CleanMarker | None:
        """Reads and removes the marker, so that the files count as dirty.

        Files that were marked as damaged have no marker.
        """
        marker, damaged = self.path / _CLEAN_NAME, self.path / _DAMAGED_NAME
        with local_failures(marker):
            try:
                data = marker.read_bytes()
            except FileNotFoundError:
                data = b""
            marker.unlink(missing_ok=True)
            if damaged.exists():
                damaged.unlink()
                return None
        return CleanMarker.usable(data)

    def mark_clean(self, marker: CleanMarker) -> None:
        """Marks the files as clean; they have been flushed and closed."""
        final = self.path / _CLEAN_NAME
        with local_failures(final):
            write_durably(final, msgspec.json.encode(marker))

    def clear(self) -> None:
        """Removes everything but the lock and the signal."""
        with local_failures(self.path):
            _remove(entry for entry in self.path.iterdir() if entry.name not in {_LOCK_NAME, _SIGNAL_NAME})

    def fresh_data(self) -> Path:
        """Returns the path of a new directory for shards, not yet created."""
        return self.path / f"{_DATA_PREFIX}{uuid.uuid4().hex}"

    def keep_only(self, shards: Sequence[LocalShard]) -> None:
        """Removes the data of all other shards: older or half-built ones."""
        kept = {shard.directory.partition("/")[0] for shard in shards}
        with local_failures(self.path):
            _remove(
                entry for entry in self.path.iterdir() if entry.name.startswith(_DATA_PREFIX) and entry.name not in kept
            )

    def discard(self) -> None:
        """Removes the remains of a failed rebuild, and releases the directory."""
        try:
            with contextlib.suppress(StateError):
                self.clear()
        finally:
            self.release()

    def release(self) -> None:
        """Releases the directory for the next task."""
        if self._lock is not None:
            self.hand_over_signal.close()  # first: the lock's holder is the listener
            os.close(self._lock)
            self._lock = None


def job_root(local_root: Path, job_id: JobId) -> Path:
    """Returns the directory of a job's local files on this host."""
    return local_root / path_segment(job_id)


def attempt_root(local_root: Path, job_id: JobId, attempt: Attempt) -> Path:
    """Returns the directory of an attempt's local files on this host."""
    return job_root(local_root, job_id) / f"attempt-{attempt}"


def subtask_root(local_root: Path, job_id: JobId, attempt: Attempt, uid: OperatorUid, subtask: SubtaskIndex) -> Path:
    """Returns the directory of a subtask's local files in an attempt."""
    return attempt_root(local_root, job_id, attempt) / path_segment(uid) / f"subtask-{subtask}"


def remove_older_attempts(local_root: Path, job_id: JobId, attempt: Attempt) -> None:
    """Removes the local files of earlier attempts as far as possible.

    Call it once this attempt has local snapshots: until then the older files can be linked instead of downloaded.
    """
    with contextlib.suppress(FileNotFoundError):
        for entry in job_root(local_root, job_id).iterdir():
            number = entry.name.removeprefix("attempt-")
            if number.isdecimal() and int(number) < attempt:
                for subtask in entry.glob("*/subtask-*"):
                    if subtask.is_symlink():  # its files are on another disk
                        shutil.rmtree(subtask.readlink(), ignore_errors=True)
                shutil.rmtree(entry, ignore_errors=True)


def snapshots_root(subtask_root: Path) -> Path:
    """Returns the directory of a subtask's local snapshots."""
    return subtask_root / SNAPSHOTS_NAME


def local_snapshot_directories(local_root: Path, job_id: JobId, uid: OperatorUid) -> list[Path]:
    """Returns an operator's snapshot directories on this host, newest first.

    They may be of any attempt and subtask.
    """
    return _snapshot_directories(job_root(local_root, job_id), path_segment(uid))


def snapshot_directories_beside(subtask_root: Path) -> list[Path]:
    """Returns the snapshot directories of a subtask's operator on this host.

    They may be of any attempt and subtask.
    """
    operator = subtask_root.parent
    return _snapshot_directories(operator.parent.parent, operator.name)


def mark_damaged(subtask_root: Path) -> None:
    """Marks a subtask's files as damaged, and requests their release."""
    with local_failures(subtask_root):
        for number in _tries(subtask_root):
            path = subtask_root / f"{_TRY_PREFIX}{number}"
            if path.exists():
                (path / _DAMAGED_NAME).touch()
                request_hand_over(path / _SIGNAL_NAME)


def lock_directory(path: Path) -> int | None:
    """Locks a directory.

    Returns:
        The descriptor that holds the lock until it is closed, or None if another process has the lock.

    Raises:
        FileNotFoundError: The directory does not exist.
    """
    lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return None
        raise
    if not _is_at(path / _LOCK_NAME, lock):  # the directory was removed in the meantime
        os.close(lock)
        return None
    return lock


def write_durably(path: Path, data: bytes) -> None:
    """Writes and syncs a file, complete or absent after a crash."""
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def boot_id() -> str:
    """Returns an id of the running system that changes with each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@contextmanager
def local_failures(where: Path) -> Iterator[None]:
    """Turns the operating system's errors into the state package's errors."""
    try:
        yield
    except OSError as error:
        message = f"{where}: {error.strerror or type(error).__name__}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFullError(message) from error
        if error.errno == errno.EROFS:
            raise DiskReadOnlyError(message) from error
        if isinstance(error, PermissionError):
            raise DiskForbiddenError(missing_right(error.filename or where) or message) from error
        raise StoreIOError(message) from error


def _snapshot_directories(job: Path, operator: str) -> list[Path]:
    operators = job.glob(f"attempt-*/{operator}")
    found = [entry for each in operators for entry in each.glob(f"subtask-*/{SNAPSHOTS_NAME}/*")]
    return sorted(found, key=_modified_ns, reverse=True)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


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
