"""A consolidation's directory: its worker, and the state of its result.

<subtask>/consolidation/<unique>/base.json   the local snapshot that it is made from, and the snapshot's version
<subtask>/consolidation/<unique>/catch-up/   the catch-up log (`keyscale.state.consolidation.catch_up_log`)
<subtask>/consolidation/<unique>/shard/      the new shard, being made
<subtask>/consolidation/<unique>/READY       the new shard is complete, closed, and at the version in this file
<subtask>/consolidation/given-up             its modification time is when the last consolidation was given up
<local root>/consolidating                   names the directory of the host's only consolidation

A consolidation without a catch-up log is unwanted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from keyscale.failpoints import failpoint
from keyscale.identifiers import BatchId

from ..decoding import json_decoder
from ..engine.rocksdb_settings import RocksDbSettings
from ..keyed.schema import KeyedSchema
from ..keyed.ttl import Ttl
from ..keys.key_groups import KeyGroupRange
from ..local.subtask_directory import (
    CleanMarker,
    LocalShard,
    boot_id,
    local_failures,
    lock_directory,
    write_durably,
)
from .policy import DEFAULT_POLICY, Consolidation, ConsolidationFacts, decide, foreign_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..engine.key_group_sizes import FileFacts
    from ..snapshot.snapshot import LocalSnapshot
    from .policy import ConsolidationPolicy

CONSOLIDATION_NAME = "consolidation"
_SHARD_NAME = "shard"
_CATCH_UP_LOG_NAME = "catch-up"
_BASE_NAME = "base.json"
_READY_NAME = "READY"
_STARTED_NAME = "started"
_GIVEN_UP_NAME = "given-up"
_RESERVATION_NAME = "consolidating"
_RESERVED_SECONDS = 600.0
_BASE_VERSION = 1


class ConsolidationBase(msgspec.Struct, frozen=True):
    """The start of a consolidation.

    Attributes:
        snapshot: Directory of a local snapshot.
        shards: The snapshot's shards and their directories.
        batch_id: The batch of the snapshot's version.
        lineage: The lineage of the snapshot's version.
        key_group_start: First key group of the subtask.
        key_group_end: Last key group, inclusive.
        boot_id: The running system's id.
        settings: Settings of the subtask's stores.
        schema: The schema of its entries.
        ttls: The TTL of each state with a TTL, as far as this attempt has declared its states on this host.
        format_version: The file's format; a file of another format is ignored.
    """

    snapshot: str
    shards: tuple[LocalShard, ...]
    batch_id: BatchId
    lineage: str
    key_group_start: int
    key_group_end: int
    boot_id: str
    settings: RocksDbSettings
    schema: KeyedSchema | None = None
    ttls: dict[str, Ttl] = {}
    format_version: int = _BASE_VERSION

    @property
    def key_groups(self) -> KeyGroupRange:
        """The subtask's key group range."""
        return KeyGroupRange(self.key_group_start, self.key_group_end)


class ConsolidationDirectory:
    """One consolidation's directory.

    Reading it needs no lock; working in it or removing it does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def subtask_root(self) -> Path:
        """The directory of the subtask that is consolidated."""
        return self.path.parent.parent

    @property
    def shard(self) -> Path:
        return self.path / _SHARD_NAME

    @property
    def catch_up_log(self) -> Path:
        return self.path / _CATCH_UP_LOG_NAME

    @property
    def is_wanted(self) -> bool:
        """Whether a subtask still waits for the result."""
        return self.catch_up_log.is_dir()

    @property
    def is_ready(self) -> bool:
        return (self.path / _READY_NAME).exists()

    @property
    def has_died(self) -> bool:
        """Whether a worker ended without a result; valid only under the lock."""
        return (self.path / _STARTED_NAME).exists() and not self.is_ready

    @property
    def was_moved(self) -> bool:
        """Whether a process ended during the take-over; valid only under the lock."""
        return self.is_ready and not self.shard.exists()

    def base(self) -> ConsolidationBase | None:
        """Returns the start of the consolidation; None if it cannot be used."""
        try:
            base = json_decoder(ConsolidationBase).decode((self.path / _BASE_NAME).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None
        return base if base.format_version == _BASE_VERSION and base.boot_id == boot_id() else None

    def ready(self) -> CleanMarker | None:
        """Returns the version and shard of a usable result, or None."""
        try:
            return CleanMarker.usable((self.path / _READY_NAME).read_bytes())
        except FileNotFoundError:
            return None

    def acquire(self) -> bool:
        """Takes the lock, or returns False.

        Another process may have it, or the directory may be gone.
        """
        try:
            self._lock = lock_directory(self.path)
        except FileNotFoundError:
            return False
        return self._lock is not None

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def mark_started(self) -> None:
        """Records that work has begun, which is lost if this process ends."""
        (self.path / _STARTED_NAME).touch()

    def mark_ready(self, marker: CleanMarker) -> None:
        """Marks the shard as complete and as the marker says."""
        write_durably(self.path / _READY_NAME, msgspec.json.encode(marker))

    def unmark_ready(self) -> None:
        (self.path / _READY_NAME).unlink(missing_ok=True)

    def give_up(self) -> None:
        """Makes the result unwanted and delays the next try.

        A process that works on it notices.
        """
        with contextlib.suppress(OSError):
            (self.path.parent / _GIVEN_UP_NAME).touch()
        self.remove_catch_up_log()

    def remove_catch_up_log(self) -> None:
        """Makes the result unwanted."""
        shutil.rmtree(self.catch_up_log, ignore_errors=True)

    def remove(self) -> None:
        """Removes the directory, its marker first, and releases the lock."""
        with local_failures(self.path):
            self.unmark_ready()
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def begin_consolidation(
    snapshot: LocalSnapshot,
    subtask_root: Path,
    files: Sequence[Sequence[FileFacts]],
    policy: ConsolidationPolicy = DEFAULT_POLICY,
    expired_bytes: int = 0,
) -> ConsolidationDirectory | None:
    """Begins with a linked snapshot, if worthwhile and possible.

    One consolidation at a time per host is enough load beside the batches.

    Args:
        snapshot: The subtask's state between two batches; the catch-up log must keep all changelogs from now on.
        subtask_root: The subtask's directory on this host.
        files: The files of each shard.
        policy: Decides whether it is worthwhile.
        expired_bytes: How many of the files' bytes belong to expired entries.

    Returns:
        The new consolidation, or None.

    Raises:
        DiskFullError, DiskReadOnlyError, StoreIOError: The directory cannot be written.
    """
    path = subtask_root / CONSOLIDATION_NAME / uuid.uuid4().hex
    with local_failures(path):
        facts = ConsolidationFacts(
            shards=len(snapshot.shards),
            file_bytes=sum(file.size_bytes for each in files for file in each),
            foreign_bytes=sum(map(foreign_bytes, files, snapshot.shards)),
            free_bytes=shutil.disk_usage(subtask_root).free,
            given_up_seconds=_given_up_seconds(subtask_root),
            expired_bytes=expired_bytes,
        )
        wanted = decide(facts, policy) is not Consolidation.NOTHING
        if not wanted or not _reserve(Path(snapshot.local_root) / _RESERVATION_NAME, path):
            return None
        path.mkdir(parents=True)
        base = ConsolidationBase(
            snapshot=snapshot.directory,
            shards=tuple(LocalShard(str(number), each.start, each.end) for number, each in enumerate(snapshot.shards)),
            batch_id=snapshot.version.batch_id,
            lineage=snapshot.version.lineage,
            key_group_start=snapshot.key_groups.start,
            key_group_end=snapshot.key_groups.end,
            boot_id=boot_id(),
            settings=snapshot.settings,
            schema=snapshot.schema,
            ttls=dict(snapshot.ttls),
        )
        write_durably(path / _BASE_NAME, msgspec.json.encode(base))
        (path / _CATCH_UP_LOG_NAME).mkdir()
    failpoint("consolidate.begun")
    return ConsolidationDirectory(path)


def consolidations(subtask_root: Path) -> list[ConsolidationDirectory]:
    """Returns all consolidations of a subtask on this host, usually none."""
    try:
        entries = list((subtask_root / CONSOLIDATION_NAME).iterdir())
    except FileNotFoundError:
        return []
    return [ConsolidationDirectory(entry) for entry in entries if entry.is_dir()]


def _given_up_seconds(subtask_root: Path) -> float | None:
    """Returns the seconds since a consolidation was given up, or None."""
    try:
        modified = (subtask_root / CONSOLIDATION_NAME / _GIVEN_UP_NAME).stat().st_mtime
    except FileNotFoundError:
        return None
    return max(0.0, time.time() - modified)


def _reserve(reservation: Path, path: Path) -> bool:
    """Reserves a host's only consolidation for a path, if free."""
    with _locked(reservation) as descriptor:
        holder = os.pread(descriptor, 4096, 0).decode()
        if holder and _is_alive(Path(holder)):
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(path).encode(), 0)
    return True


def _is_alive(path: Path) -> bool:
    """Returns whether a process works there or did so recently.

    A result may also wait for a subtask that has moved away.
    """
    try:
        lock = lock_directory(path)
        if lock is None:
            return True
        os.close(lock)
        return time.time() - path.stat().st_mtime < _RESERVED_SECONDS
    except FileNotFoundError:
        return False


@contextmanager
def _locked(file: Path) -> Iterator[int]:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
