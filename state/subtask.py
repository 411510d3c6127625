"""The door through which a task gets at its subtask's state: open at a version, run a batch, finish it, close."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from state.batch_files import check_size, sorted_files
from state.changelog import write_changelog
from state.consolidation import DEFAULT_POLICY
from state.directory import CleanMarker, SubtaskDirectory, boot_id
from state.errors import StateError
from state.expired_bytes import expired_bytes
from state.key_group_sizes import key_group_sizes
from state.keyed import KeyedStateBackend
from state.opened_shards import StateSource, rebuild_shards, reopen_shards
from state.operator_files import open_operator_state, store_operator_state
from state.placement import place_subtask
from state.restore import version_of
from state.snapshot import LocalSnapshot, link_snapshot, local_snapshot_directory, write_operator_state
from state.spill import spill_entries, spill_runs
from state.subtask_errors import LineageError, StoreUnusableError
from state.subtask_spec import SubtaskSpec
from state.swap import can_swap, swap_in
from state.syncpoint import reach
from state.tail import begin_tail, find_tail
from state.ttl import BatchClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from state.changelog import ChangelogHandle, SortedFile
    from state.consolidation import ConsolidationPolicy
    from state.engine import SortedRun
    from state.identifiers import BatchId, CheckpointId
    from state.key_group_sizes import KeyGroupSizes
    from state.objects import ObjectStore
    from state.opened_shards import OpenedShards
    from state.operator_state import OperatorStateBackend, OperatorStateSnapshot
    from state.restore import RestorePlan
    from state.tail import Tail
    from state.ttl import Clock, Ttl
    from state.version import StateVersion

__all__ = ["LineageError", "StateSource", "StoreUnusableError", "SubtaskSpec", "SubtaskStore", "now_ms", "open_subtask"]

SORTED_FILE_MUTATIONS_MIN = 10_000
UNFLUSHED_MUTATIONS_MAX = 25_000  # what a snapshot flushes, while nothing may be written, in some 10 ms
logger = logging.getLogger(__name__)


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
        opened: OpenedShards,
        store: ObjectStore,
        local_root: Path,
        clock: Clock | Callable[[], int],
        operator: OperatorStateBackend,
    ) -> None:
        self.spec = spec
        self.version = version
        self.fetched = opened.fetched
        self.source = opened.source
        self._directory = directory
        self.bell = directory.bell  # rung when another process waits for the directory
        self._shards = opened.shards
        self._store = store
        self._local_root = local_root
        self._usable = True
        self._closed = False
        self._unflushed_mutations = 0
        self._spilled: list[SortedFile] = []
        self.engine = opened.engine()
        self._schema = opened.schema
        self._known_ttls = opened.ttls
        self.operator = operator
        self._tail = find_tail(self.local_directory)
        self.keyed = KeyedStateBackend(
            self.engine,
            spec.key_schema,
            clock,
            schema=opened.schema,
            key_group_range=spec.key_group_range,
            batch_entries_max=spec.settings.batch_entries_max,
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
            BatchTooLargeError: The batch changed more than the settings allow. The store must be abandoned.
            StoreUnusableError: It failed before.
        """
        self._check_usable()
        if batch_id <= self.version.batch_id:
            raise LineageError(f"batch {batch_id} cannot follow batch {self.version.batch_id}")
        self._usable = False  # until all of it is done
        runs = self.keyed.drain()
        operator_state = self.operator.changed()
        changed = bool(runs or self._spilled) or operator_state is not None
        handle = self._write(batch_id, unique, runs, operator_state) if changed else None
        self._spilled = []
        before, self.version = self.version, self.version.advanced(batch_id, None if handle is None else handle.path)
        if handle is not None and self._tail is not None:
            self._tail.add(before, self.version, handle)
        self._usable = True
        return handle

    def resume(
        self,
        version: StateVersion,
        clock: Clock | Callable[[], int] | None = None,
        store: ObjectStore | None = None,
    ) -> bool:
        """Begin another batch without having been closed in between: whether the state is exactly what is wanted.

        Args:
            version: What is wanted.
            clock: Its times are the batch's, if it is a clock; the store's own clock goes on otherwise.
            store: Where the batch's changelog goes; None: where the last one went.
        """
        if not self._usable or self._closed or self._spilled or version.lineage != self.version.lineage:
            return False
        self.keyed.discard()
        self.keyed.clear_current_key()
        if clock is not None and not callable(clock) and isinstance(self.keyed.clock, BatchClock):
            self.keyed.clock.become(clock)
        self._store = store or self._store
        self.version = version
        self.source = StateSource.WARM
        return True

    @property
    def ttls(self) -> dict[str, Ttl]:
        """The TTL of each state that has one, as far as this attempt has declared its states on this host."""
        return {**self._known_ttls, **self.keyed.ttls}

    @property
    def local_directory(self) -> Path:
        """The subtask's directory on this host."""
        return self.spec.local_directory(self._local_root)

    @property
    def shard_count(self) -> int:
        """How many shards the state is made of."""
        return len(self._shards)

    def spill_if_large(self, batch_id: BatchId) -> None:
        """Between two parts of a batch: bring its changes into files if they take too much memory.

        Several shards would each have to ingest a whole file: there a batch is limited by `batch_entries_max`.
        """
        if len(self._shards) == 1 and self.keyed.pending_count >= spill_entries(self.spec.settings):
            self.spill(batch_id)

    def spill(self, batch_id: BatchId) -> None:
        """Make the batch's changes so far durable, and part of the local state. If it fails now, the state is rebuilt."""
        self._check_usable()
        assert len(self._shards) == 1  # noqa: S101 - see above
        self._usable = False
        spec, unique = self.spec, uuid.uuid4().hex
        path = spec.layout.changelog(
            spec.operator_uid, batch_id=batch_id, subtask=spec.index, attempt=spec.attempt, unique=unique
        )
        self._spilled += spill_runs(self.keyed.drain(), self.engine, self._store, path, self._directory.path)
        self._usable = True

    def is_superseded(self) -> bool:
        """Whether closing and opening it again gives the same state on a consolidated shard."""
        return self._tail is not None and can_swap(self.version, self._tail.consolidation)

    def rest(self) -> None:
        """Between two batches: begin to bring a large write buffer into files, so that the next snapshot stops nobody for long."""
        self._check_usable()
        if self._unflushed_mutations >= UNFLUSHED_MUTATIONS_MAX:
            self.engine.begin_flush()
            self._unflushed_mutations = 0

    def _write(
        self, batch_id: BatchId, unique: str, runs: Sequence[SortedRun], operator_state: OperatorStateSnapshot | None
    ) -> ChangelogHandle:
        """Make mutations durable, then apply them: large runs as files that serve both, without a write buffer."""
        spec, schema = self.spec, self.keyed.schema
        path = spec.layout.changelog(
            spec.operator_uid, batch_id=batch_id, subtask=spec.index, attempt=spec.attempt, unique=unique
        )
        least = 0 if self._spilled else SORTED_FILE_MUTATIONS_MIN  # what comes after spilled files must be one, too
        many = len(self._shards) > 1  # each would have to ingest a whole file and clip it
        framed, files = sorted_files(runs, self.engine, self._directory.path, None if many else least)
        check_size(framed, files, self._spilled, spec.settings.batch_bytes_max)
        handle = write_changelog(
            self._store,
            path,
            framed,
            batch_id=batch_id,
            subtask=spec.index,
            key_groups=spec.key_group_range,
            schema=schema if schema != self._schema else None,
            files=files,
            spilled=self._spilled,
            operator_state=store_operator_state(self._store, path, operator_state),
            tail=self._tail,
        )
        self._schema = schema
        reach("batch.changelog_written")
        self.engine.write_runs(framed)
        self._unflushed_mutations += sum(map(len, framed))
        for run, file in files:
            self.engine.ingest(run.family, [file])
            file.unlink()
        return handle

    def snapshot(
        self, checkpoint_id: CheckpointId, policy: ConsolidationPolicy = DEFAULT_POLICY, clock: Clock | None = None
    ) -> LocalSnapshot:
        """Hard-link the state at `version`, for `upload_snapshot`; begin a consolidation if that is worth it by the clock."""
        self._check_usable()
        directory, unique = local_snapshot_directory(self.local_directory, checkpoint_id)
        link_snapshot(directory, [shard.engine for shard in self._shards])
        write_operator_state(directory, self.operator)
        snapshot = LocalSnapshot(
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
            ttls=self.ttls,
            settings=self.spec.settings,
        )
        self._tail = find_tail(self.local_directory) or self._begin_tail(snapshot, policy, clock)
        return snapshot if self._tail is None else replace(snapshot, consolidation=str(self._tail.consolidation.path))

    def _begin_tail(self, snapshot: LocalSnapshot, policy: ConsolidationPolicy, clock: Clock | None) -> Tail | None:
        files = [shard.engine.files() for shard in self._shards]
        expired = expired_bytes(snapshot, self._shards, policy, clock)
        return begin_tail(snapshot, self.local_directory, files, policy, expired)

    def key_group_sizes(self) -> KeyGroupSizes:
        """Entries and bytes by key group, of what has been flushed, as it is after `snapshot`."""
        shards = [(shard.key_groups, shard.engine.files()) for shard in self._shards]
        return key_group_sizes(shards, self.spec.key_group_range)

    def close(self) -> None:
        """Flush, close, and mark the local files as exactly at `version`; mutations of an unfinished batch are dropped."""
        if self._closed:
            return
        if not self._usable or self._spilled:
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
                    ttls=self.ttls,
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

    A consolidated shard that leads there is taken in. Else local files are used if they were closed cleanly with exactly the
    version's content; otherwise the state is rebuilt from the plan. Call it in the process that uses the store, never before a fork.

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
    planned = version_of(plan, spec.key_group_range, plan.last_batch_id if version is None else version.batch_id)
    if version is not None and version.lineage != planned.lineage:
        raise LineageError(
            f"the restore plan of subtask {spec.index} does not lead to batch {version.batch_id} as committed"
        )
    place_subtask(spec.local_directory(local_root), local_root, spec.settings.local_directories)
    directory = SubtaskDirectory.acquire(spec.local_directory(local_root))
    try:
        operator = open_operator_state(store, plan.operator_state, spec.index, spec.parallelism)
        opened = (
            swap_in(spec, planned, directory)
            or reopen_shards(spec, planned, directory)
            or rebuild_shards(spec, plan, directory, local_root, store)
        )
        try:
            return SubtaskStore(
                spec,
                planned,
                directory=directory,
                opened=opened,
                store=store,
                local_root=local_root,
                clock=clock,
                operator=operator,
            )
        except BaseException:
            opened.close()
            raise
    except BaseException:
        directory.discard()
        raise
