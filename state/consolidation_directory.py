"""Where a consolidation is made: who works there, and whether the result may be used.

<subtask>/consolidation/<unique>/base.json   from which local snapshot it is made, and of which version that is
<subtask>/consolidation/<unique>/tail/       changelogs of the batches since (`state.tail`); without it nobody wants the result
<subtask>/consolidation/<unique>/shard/      what is being made
<subtask>/consolidation/<unique>/READY       the shard is whole, closed, and at the version that this says
<subtask>/consolidation/given-up             when the last one was given up, by its time of change
<local root>/consolidating                   where the host's one consolidation is
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

from state.consolidation import DEFAULT_POLICY, Consolidation, ConsolidationFacts, decide, foreign_bytes
from state.decoding import json_decoder
from state.directory import CleanMarker, LocalShard, boot_id, local_failures, lock_directory, write_durably
from state.identifiers import BatchId
from state.key_groups import KeyGroupRange
from state.schema import KeyedSchema
from state.settings import RocksDbSettings
from state.syncpoint import reach
from state.ttl import Ttl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state.consolidation import ConsolidationPolicy
    from state.key_group_sizes import FileFacts
    from state.snapshot import LocalSnapshot

CONSOLIDATION_NAME = "consolidation"
_SHARD_NAME = "shard"
_TAIL_NAME = "tail"
_BASE_NAME = "base.json"
_READY_NAME = "READY"
_STARTED_NAME = "started"
_GIVEN_UP_NAME = "given-up"
_RESERVATION_NAME = "consolidating"
_RESERVED_SECONDS = 600.0
_BASE_VERSION = 1


class ConsolidationBase(msgspec.Struct, frozen=True):
    """What a consolidation starts from.

    Attributes:
        snapshot: Directory of a local snapshot.
        shards: What is where in it.
        batch_id: Its version's batch.
        lineage: Its version's identity of content.
        key_group_start: First key group of the subtask.
        key_group_end: Last one, inclusive.
        boot_id: Of the running system.
        settings: Of the subtask's stores.
        schema: How its entries are to be read.
        ttls: The TTL of each state that has one, as far as this attempt has declared its states on this host.
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
        """The subtask's."""
        return KeyGroupRange(self.key_group_start, self.key_group_end)


class ConsolidationDirectory:
    """One consolidation's directory. Reading it needs no lock; whoever works in it or removes it holds its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def shard(self) -> Path:
        return self.path / _SHARD_NAME

    @property
    def tail(self) -> Path:
        return self.path / _TAIL_NAME

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for the result."""
        return self.tail.is_dir()

    @property
    def is_ready(self) -> bool:
        return (self.path / _READY_NAME).exists()

    @property
    def has_died(self) -> bool:
        """Whether a process that worked on it has ended without a result. To be asked by who holds the lock."""
        return (self.path / _STARTED_NAME).exists() and not self.is_ready

    @property
    def was_moved(self) -> bool:
        """Whether a process that took the result in has ended on the way. To be asked by who holds the lock."""
        return self.is_ready and not self.shard.exists()

    def base(self) -> ConsolidationBase | None:
        """What it starts from; None if that cannot be used (any more)."""
        try:
            base = json_decoder(ConsolidationBase).decode((self.path / _BASE_NAME).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None
        return base if base.format_version == _BASE_VERSION and base.boot_id == boot_id() else None

    def ready(self) -> CleanMarker | None:
        """What the result is; None if there is none that can be used."""
        try:
            return CleanMarker.usable((self.path / _READY_NAME).read_bytes())
        except FileNotFoundError:
            return None

    def acquire(self) -> bool:
        """Take the lock, unless somebody has it or the directory is gone."""
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
        """From now on the work is lost if this process ends."""
        (self.path / _STARTED_NAME).touch()

    def mark_ready(self, marker: CleanMarker) -> None:
        """Promise that the shard is as the marker says."""
        write_durably(self.path / _READY_NAME, msgspec.json.encode(marker))

    def unmark_ready(self) -> None:
        (self.path / _READY_NAME).unlink(missing_ok=True)

    def give_up(self) -> None:
        """Let the result be nobody's wish; whoever works on it finds out, and the next one begins later."""
        with contextlib.suppress(OSError):
            (self.path.parent / _GIVEN_UP_NAME).touch()
        self.let_go()

    def let_go(self) -> None:
        """Nobody needs it any more."""
        shutil.rmtree(self.tail, ignore_errors=True)

    def remove(self) -> None:
        """Remove all of it, the marker first. Needs the lock, which goes with it."""
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
    """Begin with a snapshot that has just been linked, if it is worth it and no other subtask of the host is at it.

    One at a time is enough load beside the batches.

    Args:
        snapshot: Of the subtask's state between two batches: what is committed from now on is to be kept in the tail.
        subtask_root: The subtask's place on this host.
        files: Those of each shard.
        policy: What is worth it.
        expired_bytes: How many of them it would get rid of because their entries are expired.

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
        (path / _TAIL_NAME).mkdir()
    reach("consolidate.begun")
    return ConsolidationDirectory(path)


def consolidations(subtask_root: Path) -> list[ConsolidationDirectory]:
    """All that there are of a subtask on this host: usually none."""
    try:
        entries = list((subtask_root / CONSOLIDATION_NAME).iterdir())
    except FileNotFoundError:
        return []
    return [ConsolidationDirectory(entry) for entry in entries if entry.is_dir()]


def _given_up_seconds(subtask_root: Path) -> float | None:
    """How long ago a consolidation of the subtask was given up; None: none was."""
    try:
        modified = (subtask_root / CONSOLIDATION_NAME / _GIVEN_UP_NAME).stat().st_mtime
    except FileNotFoundError:
        return None
    return max(0.0, time.time() - modified)


def _reserve(reservation: Path, path: Path) -> bool:
    """Note that a host's one consolidation is at a path, unless it is elsewhere already."""
    with _locked(reservation) as descriptor:
        holder = os.pread(descriptor, 4096, 0).decode()
        if holder and _is_alive(Path(holder)):
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(path).encode(), 0)
    return True


def _is_alive(path: Path) -> bool:
    """Whether somebody works there, or has not long ago: a result may also wait for a subtask that has moved away."""
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
