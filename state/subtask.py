"""The door through which a task gets at its subtask's state: open at a version, run a batch, finish it, close."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from state.changelog import ChangelogHandle, write_changelog
from state.directory import CleanMarker, LocalShard, SubtaskDirectory, boot_id, subtask_root
from state.errors import KeyscaleError, StateError
from state.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from state.key_groups import KeyGroupRange, key_group_range
from state.keyed import KeyedStateBackend
from state.layout import Layout
from state.rebuild import FetchReport, clip, fetch_shards, local_snapshot_directories, remember_files, replay
from state.restore import RestorePlan, assign_to_range, version_of
from state.rocksdb import RocksDbEngine
from state.schema_merge import merge_schemas
from state.settings import RocksDbSettings
from state.shards import ShardedEngine
from state.snapshot import LocalSnapshot, link_snapshot, local_snapshot_directory
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    import pyarrow as pa

    from state.hashing import HashId
    from state.objects import ObjectStore
    from state.schema import KeyedSchema
    from state.ttl import Clock
    from state.version import StateVersion

logger = logging.getLogger(__name__)


class LineageError(KeyscaleError):
    """A task asks for a version that its restore plan does not lead to."""

    code = "STATE_LINEAGE_MISMATCH"
    advice = "The batch is run again; report this with the driver's log if it happens more than once."


class StoreUnusableError(KeyscaleError):
    """A batch failed in the middle of being finished; the open store may not be used any more."""

    code = "STATE_SUBTASK_STORE_UNUSABLE"
    retryable = True
    advice = "The batch is run again on rebuilt state."


@dataclass(frozen=True, slots=True)
class SubtaskSpec:
    """Whose state it is. Small, and may be pickled.

    Attributes:
        job_id: The job.
        operator_uid: The operator.
        index: Of the subtask.
        parallelism: Subtasks of the operator.
        max_parallelism: Key groups of the job.
        hash_id: How keys are hashed to them.
        key_schema: The key's columns.
        attempt: The attempt that runs.
        schema: How the state's entries are to be read, as `OperatorHistory.schema` says for the operator as a whole.
        settings: Of the subtask's RocksDB stores.
    """

    job_id: JobId
    operator_uid: OperatorUid
    index: SubtaskIndex
    parallelism: int
    max_parallelism: int
    hash_id: HashId
    key_schema: pa.Schema
    attempt: Attempt
    schema: KeyedSchema | None = None
    settings: RocksDbSettings = field(default_factory=RocksDbSettings)

    @property
    def key_group_range(self) -> KeyGroupRange:
        return key_group_range(self.max_parallelism, self.parallelism, self.index)

    @property
    def layout(self) -> Layout:
        return Layout(self.job_id)

    def local_directory(self, local_root: Path) -> Path:
        """Where the subtask's local files are on a host."""
        return subtask_root(local_root, self.job_id, self.attempt, self.operator_uid, self.index)


@dataclass(frozen=True, slots=True)
class _Shard:
    local: LocalShard
    engine: RocksDbEngine

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.local.key_group_start, self.local.key_group_end)


@dataclass(frozen=True, slots=True)
class _Opened:
    shards: tuple[_Shard, ...]
    schema: KeyedSchema | None
    report: FetchReport | None  # None: nothing had to be fetched


class SubtaskStore:
    """One subtask's open state. Held by one task at a time; made by `open_subtask`.

    Leave it by `close` (local files may be used again at `version`) or by `abandon`. As a context manager it is closed
    on success and abandoned on any exception.
    """

    def __init__(
        self,
        spec: SubtaskSpec,
        version: StateVersion,
        *,
        directory: SubtaskDirectory,
        opened: _Opened,
        store: ObjectStore,
        local_root: Path,
        clock: Clock | Callable[[], int],
    ) -> None:
        self.spec = spec
        self.version = version
        self.fetched = opened.report
        self._directory = directory
        self._shards = opened.shards
        self._store = store
        self._local_root = local_root
        self._usable = True
        self._closed = False
        self.engine = ShardedEngine([(shard.key_groups, shard.engine) for shard in self._shards])
        self._schema = opened.schema
        self.keyed = KeyedStateBackend(
            self.engine, spec.key_schema, clock, schema=opened.schema, key_group_range=spec.key_group_range
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def finish_batch(self, batch_id: BatchId, unique: str) -> ChangelogHandle | None:
        """End a batch: make its mutations durable as a changelog, then part of the local state.

        Args:
            batch_id: Greater than the version's.
            unique: What no other try of the task has.

        Returns:
            The changelog for the batch's commit record, or None if nothing changed.

        Raises:
            StoreUnavailableError: The object store is away. The store must be abandoned.
            StoreUnusableError: It failed before.
        """
        self._check_usable()
        if batch_id <= self.version.batch_id:
            raise LineageError(f"batch {batch_id} cannot follow batch {self.version.batch_id}")
        self._usable = False  # until all of it is done
        runs = self.keyed.drain()
        handle = None
        if runs:
            path = self.spec.layout.changelog(
                self.spec.operator_uid,
                batch_id=batch_id,
                subtask=self.spec.index,
                attempt=self.spec.attempt,
                unique=unique,
            )
            schema = self.keyed.schema
            handle = write_changelog(
                self._store,
                path,
                runs,
                batch_id=batch_id,
                subtask=self.spec.index,
                key_groups=self.spec.key_group_range,
                schema=schema if schema != self._schema else None,
            )
            self._schema = schema
            reach("batch.changelog_written")
            self.engine.write_runs(runs)
        self.version = self.version.advanced(batch_id, handle.path if handle is not None else None)
        self._usable = True
        return handle

    def snapshot(self, checkpoint_id: CheckpointId) -> LocalSnapshot:
        """Hard-link the state at `version` on this host, for `upload_snapshot`: the only part that stops the batches."""
        self._check_usable()
        directory, unique = local_snapshot_directory(self.spec.local_directory(self._local_root), checkpoint_id)
        link_snapshot(directory, [shard.engine for shard in self._shards])
        return LocalSnapshot(
            directory=str(directory),
            local_root=str(self._local_root),
            job_id=self.spec.job_id,
            operator_uid=self.spec.operator_uid,
            subtask=self.spec.index,
            attempt=self.spec.attempt,
            checkpoint_id=checkpoint_id,
            unique=unique,
            version=self.version,
            key_groups=self.spec.key_group_range,
            shards=tuple(shard.key_groups for shard in self._shards),
            schema=self._schema,
        )

    def close(self) -> None:
        """Flush, close, and mark the local files as exactly at `version`; mutations of an unfinished batch are dropped."""
        if self._closed:
            return
        if not self._usable:
            self.abandon()
            return
        self._closed = True
        try:
            self.keyed.discard()
            self.engine.flush()
            self.engine.close()
            reach("close.flushed")
            self._directory.mark_clean(
                CleanMarker(
                    batch_id=self.version.batch_id,
                    lineage=self.version.lineage,
                    shards=tuple(shard.local for shard in self._shards),
                    boot_id=boot_id(),
                    schema=self._schema,
                )
            )
        finally:
            self.engine.close()
            self._directory.release()

    def abandon(self) -> None:
        """Close without marking: the local files will not be used again."""
        if self._closed:
            return
        self._closed = True
        self._usable = False
        try:
            self.engine.close()
        except StateError:
            logger.warning("closing the abandoned state of subtask %d failed", self.spec.index, exc_info=True)
        finally:
            self._directory.release()

    def _check_usable(self) -> None:
        if not self._usable or self._closed:
            raise StoreUnusableError(
                f"the state of subtask {self.spec.index} of {self.spec.operator_uid} cannot be used any more"
            )


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def open_subtask(
    spec: SubtaskSpec,
    version: StateVersion | None,
    plan: RestorePlan,
    local_root: Path,
    store: ObjectStore,
    *,
    clock: Clock | Callable[[], int] = now_ms,
) -> SubtaskStore:
    """Open a subtask's state at exactly a version.

    Local files are used if they were closed cleanly with exactly the version's content; otherwise the state is rebuilt
    from the plan. Call it in the process that uses the store, never before a fork.

    Args:
        spec: Whose state.
        version: Which state. None stands for the one that the plan leads to, before any batch of this attempt.
        plan: What leads to it.
        local_root: Root of all local state on this host.
        store: The object store.
        clock: The times that TTLs go by; a function gives processing time in milliseconds since the epoch.

    Raises:
        LineageError: The plan does not lead to the version.
        CoverError: The plan's snapshots do not cover the subtask's key group range exactly.
        ObjectNotFoundError, ObjectCorruptError, ChangelogCorruptError: What the plan names is missing or damaged.
        DiskFullError, DiskReadOnlyError, StoreIOError: The local directory cannot be used.
        StoreUnavailableError: The object store is away.
    """
    planned = version_of(plan, spec.key_group_range, _planned_batch(plan) if version is None else version.batch_id)
    if version is not None and version.lineage != planned.lineage:
        raise LineageError(
            f"the restore plan of subtask {spec.index} does not lead to batch {version.batch_id} as committed"
        )
    directory = SubtaskDirectory.acquire(spec.local_directory(local_root))
    try:
        opened = _reopen(spec, planned, directory) or _rebuild(spec, plan, directory, local_root, store)
        return SubtaskStore(
            spec,
            planned,
            directory=directory,
            opened=opened,
            store=store,
            local_root=local_root,
            clock=clock,
        )
    except BaseException:
        directory.discard()
        raise


def _planned_batch(plan: RestorePlan) -> BatchId:
    batches = [snapshot.batch_id for snapshot in plan.snapshots] + [changelog.batch_id for changelog in plan.changelogs]
    return max(batches, default=BatchId(-1))


def _reopen(spec: SubtaskSpec, version: StateVersion, directory: SubtaskDirectory) -> _Opened | None:
    """The local files as they are, if they are exactly what is wanted."""
    marker = directory.take_clean_marker()
    reach("open.marker_taken")
    if marker is None or marker.lineage != version.lineage:
        return None
    try:
        schema = merge_schemas([spec.schema, marker.schema])
        return _Opened(_open_shards(spec, directory, marker.shards), schema, None)
    except StateError:
        logger.warning(
            "local state of subtask %d of %s cannot be opened; rebuilding it",
            spec.index,
            spec.operator_uid,
            exc_info=True,
        )
        return None


def _rebuild(
    spec: SubtaskSpec, plan: RestorePlan, directory: SubtaskDirectory, local_root: Path, store: ObjectStore
) -> _Opened:
    schema = merge_schemas([spec.schema, *plan.schemas()])
    directory.clear()
    data = f"data-{uuid.uuid4().hex}"
    assignments = assign_to_range(plan.snapshots, spec.key_group_range)
    ranges = [assignment.key_groups for assignment in assignments] or [spec.key_group_range]
    local = [LocalShard(f"{data}/{number}", own.start, own.end) for number, own in enumerate(ranges)]
    directories = [directory.path / shard.directory for shard in local][: len(assignments)]
    snapshots = local_snapshot_directories(local_root, spec.job_id, spec.operator_uid)
    report = fetch_shards(store, assignments, directories, snapshots)
    remember_files(directory.path, assignments, directories)
    reach("restore.files_fetched")
    shards = _open_shards(spec, directory, local)
    try:
        for shard, assignment in zip(shards, assignments, strict=False):  # a fresh state has a shard and no assignment
            clip(shard.engine, assignment)
        engine = ShardedEngine([(shard.key_groups, shard.engine) for shard in shards])
        for runs in replay(store, plan.changelogs, spec.key_group_range):
            engine.write_runs(runs)
    except BaseException:
        _close_shards(shards)
        raise
    reach("restore.replayed")
    return _Opened(shards, schema, report)


def _open_shards(spec: SubtaskSpec, directory: SubtaskDirectory, local: Sequence[LocalShard]) -> tuple[_Shard, ...]:
    shards: list[_Shard] = []
    try:
        for shard in local:
            engine = RocksDbEngine(directory.path / shard.directory, spec.settings)
            shards.append(_Shard(shard, engine))
    except BaseException:
        _close_shards(shards)
        raise
    return tuple(shards)


def _close_shards(shards: Sequence[_Shard]) -> None:
    for shard in shards:
        shard.engine.close()
