"""A subtask's store, open at a version for a batch.

`open_subtask` is the last step of a restore: it opens what `keyscale.state.restore.rebuild` has built, or local files
that are already at the wanted version.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Self

from keyscale.clock import now_ms
from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint

from ..consolidation.catch_up_log import begin_catch_up_log, find_catch_up_log
from ..consolidation.expired_estimate import estimate_expired_bytes
from ..consolidation.policy import DEFAULT_POLICY
from ..consolidation.take_over import can_take_over, take_over
from ..documents.changelog import write_changelog
from ..engine.key_group_sizes import ENTRIES_COUNTED_MAX, counted_sizes, estimated_sizes
from ..engine.rocksdb_options import charge_cache
from ..errors import StateError, StoreCorruptError
from ..keyed.backend import KeyedStateBackend
from ..keyed.batch_clock import BatchClock
from ..keyed.schema import merge_schemas
from ..local.damage import doubt_local_files
from ..local.disk_placement import place_subtask
from ..local.subtask_directory import CleanMarker, SubtaskDirectory, boot_id
from ..operator_state.operator_files import open_operator_state, store_operator_state
from ..restore.opened_shards import StateSource
from ..restore.plan import DeferredPlan, RestorePlan, changelogs_after, version_of
from ..restore.rebuild import rebuild_shards, replay
from ..restore.reopening import reopen_shards
from ..snapshot.snapshot import (
    LocalSnapshot,
    link_snapshot,
    local_snapshot_directory,
    write_operator_state,
)
from .batch_files import check_size, spill_runs, split_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from keyscale.identifiers import BatchId, CheckpointId

    from ..consolidation.catch_up_log import CatchUpLog
    from ..consolidation.policy import ConsolidationPolicy
    from ..documents.changelog import ChangelogHandle, SortedFile
    from ..documents.state_version import StateVersion
    from ..engine.engine import SortedRun
    from ..engine.key_group_sizes import KeyGroupSizes
    from ..keyed.batch_clock import Clock
    from ..keyed.ttl import Ttl
    from ..local.subtask_spec import SubtaskSpec
    from ..objects.object_store import ObjectStore
    from ..operator_state.backend import OperatorStateBackend, OperatorStateSnapshot
    from ..operator_state.operator_files import OperatorStatePlan
    from ..restore.opened_shards import OpenedShards

SORTED_FILE_MUTATIONS_MIN = 10_000
UNFLUSHED_MUTATIONS_MAX = 25_000  # a snapshot, which blocks writes, flushes these in some 10 ms
logger = logging.getLogger(__name__)


class LineageError(KeyscaleError):
    """The restore plan does not lead to the requested version."""

    code = "STATE_LINEAGE_MISMATCH"
    advice = "The batch runs again; report this with the driver's log if it happens more than once."


class StoreUnusableError(KeyscaleError):
    """A batch failed while finishing, so its store must not be used."""

    code = "STATE_SUBTASK_STORE_UNUSABLE"
    retryable = True
    advice = "Nothing to do: the batch runs again on rebuilt state."


class SubtaskStore:
    """One subtask's open state, used by one task at a time.

    `open_subtask` opens it. End it with `close` (local files may be used again at `version`) or with `abandon`. As a
    context manager it is closed on success and abandoned on any exception.
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
        operator_plan: OperatorStatePlan,
    ) -> None:
        self.spec = spec
        self.version = version
        self.fetched = opened.fetched
        self.source = opened.source
        self._directory = directory
        self.hand_over_signal = directory.hand_over_signal
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
        self._operator_plan = operator_plan
        self._catch_up_log = find_catch_up_log(self.local_directory)
        self._clock = clock
        self.keyed = self._backend()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def begin_batch(self, batch_id: BatchId) -> None:
        """Begins a batch with changes that may exceed memory.

        Changes are spilled between two records. If such a batch fails, the state is rebuilt.
        """
        self._check_usable()
        self.keyed.spill = partial(self.spill, batch_id)

    def finish_batch(self, batch_id: BatchId, unique: str) -> ChangelogHandle | None:
        """Makes the batch's mutations durable as a changelog, and applies them.

        Args:
            batch_id: Greater than the version's.
            unique: A string unique to this try of the task.

        Returns:
            The changelog for the batch's commit, or None if nothing changed.

        Raises:
            StoreUnavailableError: The object store is unavailable. The store must be abandoned.
            BatchTooLargeError: The batch changed more than the settings allow. The store must be abandoned.
            StoreUnusableError: An earlier call failed.
        """
        self._check_usable()
        if batch_id <= self.version.batch_id:
            raise LineageError(f"batch {batch_id} cannot follow batch {self.version.batch_id}")
        self._usable = False  # until all steps are done
        self.keyed.spill = None
        runs = self.keyed.drain()
        operator_state = self.operator.changed()
        changed = bool(runs or self._spilled) or operator_state is not None
        handle = self._write(batch_id, unique, runs, operator_state) if changed else None
        self._spilled = []
        before, self.version = self.version, self.version.advanced(batch_id, None if handle is None else handle.path)
        if handle is not None and self._catch_up_log is not None:
            self._catch_up_log.add(before, self.version, handle)
        for shard in self._shards:
            shard.engine.start_compactions()
        self._usable = True
        return handle

    def resume(
        self,
        version: StateVersion,
        clock: Clock | Callable[[], int] | None = None,
        store: ObjectStore | None = None,
    ) -> bool:
        """Begins another batch on the open store if its version matches.

        Args:
            version: The wanted version.
            clock: A `Clock` gives its times to the batch; otherwise the store keeps its own clock.
            store: The object store for the batch's changelog; None: the previous batch's store.

        Returns:
            Whether the state is exactly at the version, so that the batch can begin.
        """
        if not self._usable or self._closed or self._spilled or self._is_damaged:
            return False
        if version.lineage != self.version.lineage:
            return False
        self.keyed.spill = None
        self.keyed.discard()
        self.keyed.clear_current_key()
        if clock is not None and not callable(clock) and isinstance(self.keyed.clock, BatchClock):
            self.keyed.clock.become(clock)
        self._store = store or self._store
        self.version = version
        self.source = StateSource.WARM
        return True

    def catch_up(self, version: StateVersion, plan: RestorePlan, store: ObjectStore) -> bool:
        """Brings an idle store forward to a later version.

        It applies the changelogs that the store lacks. After a failure the store must be abandoned.

        Args:
            version: The wanted version.
            plan: The restore plan that leads to the version.
            store: The object store.

        Returns:
            Whether it did; if not, the plan does not lead on from the store's version, and the store is unchanged.
        """
        spec = self.spec
        if not self._usable or self._closed or self._spilled or self._is_damaged:
            return False
        missing = changelogs_after(plan, spec.key_group_range, self.version.lineage)
        if not missing:
            return False
        _check_leads_to(plan, version, spec)
        self._usable = False
        self.keyed.spill = None
        self.keyed.discard()
        if self._catch_up_log is not None:  # it lacks the objects of these changelogs
            self._catch_up_log.give_up()
            self._catch_up_log = None
        replay(store, missing, spec.key_group_range, self.engine, self._directory.fresh_data())
        self._known_ttls = self.ttls
        self._schema = merge_schemas([self._schema, *(changelog.schema for changelog in missing)])
        self.keyed = self._backend()
        self.operator = open_operator_state(store, plan.operator_state, spec.index, spec.parallelism)
        self._operator_plan = plan.operator_state
        self.version = version
        self._usable = True
        return True

    def refresh_operator_state(self, plan: OperatorStatePlan, store: ObjectStore) -> None:
        """Reads operator state again that changed before its redistribution.

        Other subtasks may have changed it, so that the version does not show the change.
        """
        if plan.needs_redistribution and plan != self._operator_plan:
            self.operator = open_operator_state(store, plan, self.spec.index, self.spec.parallelism)
            self._operator_plan = plan

    def _backend(self) -> KeyedStateBackend:
        spec = self.spec
        return KeyedStateBackend(
            self.engine,
            spec.key_schema,
            self._clock,
            schema=self._schema,
            key_group_range=spec.key_group_range,
            batch_entries_max=spec.settings.batch_entries_max,
            memory_bytes=int(spec.settings.memory_budget_bytes * spec.settings.batch_fraction),
            charge=charge_cache,
        )

    @property
    def ttls(self) -> dict[str, Ttl]:
        """The TTL of each state with a TTL, as far as known.

        States count that this attempt has declared on this host.
        """
        return {**self._known_ttls, **self.keyed.ttls}

    @property
    def local_directory(self) -> Path:
        """The subtask's directory on this host."""
        return self.spec.local_directory(self._local_root)

    @property
    def shard_count(self) -> int:
        """The number of the state's shards."""
        return len(self._shards)

    def spill(self, batch_id: BatchId) -> None:
        """Makes the batch's changes so far durable, and applies them.

        If the batch fails after that, the state is rebuilt.
        """
        self._check_usable()
        self._usable = False
        spec, unique = self.spec, uuid.uuid4().hex
        path = spec.layout.changelog(
            spec.operator_uid, batch_id=batch_id, subtask=spec.index, attempt=spec.attempt, unique=unique
        )
        runs = self.keyed.drain_for_spill()
        self._spilled += spill_runs(runs, self.engine, self._store, path, self._directory.path)
        self._usable = True

    def is_superseded(self) -> bool:
        """Returns whether a reopened store would use a consolidated shard."""
        return self._catch_up_log is not None and can_take_over(self.version, self._catch_up_log.consolidation)

    def flush_if_large(self) -> None:
        """Begins to flush a large write buffer between two batches.

        The next snapshot is then short.
        """
        self._check_usable()
        if self._unflushed_mutations >= UNFLUSHED_MUTATIONS_MAX:
            self.engine.begin_flush()
            self._unflushed_mutations = 0

    def _write(
        self, batch_id: BatchId, unique: str, runs: Sequence[SortedRun], operator_state: OperatorStateSnapshot | None
    ) -> ChangelogHandle:
        """Makes mutations durable, then applies them.

        Large runs are files that serve both purposes, without a write buffer.
        """
        spec, schema = self.spec, self.keyed.schema
        path = spec.layout.changelog(
            spec.operator_uid, batch_id=batch_id, subtask=spec.index, attempt=spec.attempt, unique=unique
        )
        mutations_min: int | None = SORTED_FILE_MUTATIONS_MIN
        if self._spilled:
            mutations_min = 0  # runs after files must be files, too
        elif len(self._shards) > 1:
            mutations_min = None  # it would be a file per shard
        split = split_runs(runs, self.engine, self._directory.path, mutations_min)
        check_size(split, self._spilled, spec.settings.batch_bytes_max)
        handle = write_changelog(
            self._store,
            path,
            split.framed,
            batch_id=batch_id,
            subtask=spec.index,
            key_groups=spec.key_group_range,
            schema=schema if schema != self._schema else None,
            files=split.files,
            spilled=self._spilled,
            operator_state=store_operator_state(self._store, path, operator_state),
            copies=self._catch_up_log,
        )
        self._schema = schema
        failpoint("batch.changelog_written")
        self.engine.write_runs(split.framed)
        self._unflushed_mutations += sum(map(len, split.framed))
        for run, file in split.files:
            self.engine.ingest(run.family, [file])
            file.unlink()
        return handle

    def snapshot(
        self, checkpoint_id: CheckpointId, policy: ConsolidationPolicy = DEFAULT_POLICY, clock: Clock | None = None
    ) -> LocalSnapshot:
        """Hard-links the state at `version` for `upload_snapshot`.

        Also begins a consolidation if it is worthwhile.

        Args:
            checkpoint_id: The checkpoint that the snapshot is for.
            policy: Decides whether a consolidation is worthwhile.
            clock: Expired entries by this clock count as removable; None: they do not count.
        """
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
        self._catch_up_log = find_catch_up_log(self.local_directory) or self._begin_catch_up_log(
            snapshot, policy, clock
        )
        return (
            snapshot
            if self._catch_up_log is None
            else replace(snapshot, consolidation=str(self._catch_up_log.consolidation.path))
        )

    def _begin_catch_up_log(
        self, snapshot: LocalSnapshot, policy: ConsolidationPolicy, clock: Clock | None
    ) -> CatchUpLog | None:
        files = [shard.engine.files() for shard in self._shards]
        expired = estimate_expired_bytes(snapshot, self._shards, policy, clock)
        return begin_catch_up_log(snapshot, self.local_directory, files, policy, expired)

    def key_group_sizes(self) -> KeyGroupSizes:
        """Returns flushed entries and bytes by key group.

        After `snapshot`, all entries are flushed. A small state is counted, a large one estimated.
        """
        owned = self.spec.key_group_range
        shards = [(shard.key_groups, list(shard.engine.files())) for shard in self._shards]
        if sum(file.entries for _, files in shards for file in files) > ENTRIES_COUNTED_MAX:
            return estimated_sizes(shards, owned)
        scans = (self.engine.scan(name, owned.start_key, owned.end_key) for name in self.engine.families())
        return counted_sizes(chain.from_iterable(scans), owned)

    def close(self) -> None:
        """Flushes, closes, and marks the local files as at `version`.

        An unfinished batch's changes are dropped.
        """
        if self._closed:
            return
        if not self._usable or self._spilled or self._is_damaged:
            self.abandon()
            return
        self._closed = True
        try:
            self.keyed.discard()
            self.engine.flush()
            self.engine.close()
            failpoint("close.flushed")
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
        """Closes without marking, so that the local files are not used again.

        Damaged files are not linked either, until their content has been verified.
        """
        if self._closed:
            return
        self._closed = True
        self._usable = False
        try:
            self.keyed.discard()
            self.engine.close()
        except StateError:
            if not self.is_removed:
                logger.warning("closing the abandoned state of subtask %d failed", self.spec.index, exc_info=True)
        finally:
            self._directory.release()
            if self.engine.found_damage and not self.is_removed:
                doubt_local_files(self.local_directory)

    @property
    def is_removed(self) -> bool:
        """Whether the local files were removed, as a later attempt runs."""
        return not self._directory.path.exists()

    @property
    def _is_damaged(self) -> bool:
        return self.engine.found_damage or self._directory.is_damaged

    def _check_usable(self) -> None:
        if self.engine.found_damage:  # a user's function may have caught the error
            raise StoreCorruptError(f"the local files of subtask {self.spec.index} of {self.spec.operator_uid}")
        if not self._usable or self._closed:
            raise StoreUnusableError(
                f"the state of subtask {self.spec.index} of {self.spec.operator_uid} can no longer be used"
            )


def open_subtask(
    spec: SubtaskSpec,
    version: StateVersion | None,
    plan: RestorePlan | DeferredPlan,
    local_root: Path,
    store: ObjectStore,
    *,
    clock: Clock | Callable[[], int] = now_ms,
) -> SubtaskStore:
    """Opens a subtask's state at exactly a version.

    The first usable source wins: a consolidated shard that leads to the version, local files that were closed cleanly
    at the version, or a rebuild from the plan. Call the function in the process that uses the store, never before a
    fork.

    Args:
        spec: The subtask.
        version: The wanted version. None: the plan's version, before any batch of this attempt.
        plan: The restore plan that leads to the version. A deferred plan is loaded only for a rebuild.
        local_root: Root of all local state on this host.
        store: The object store.
        clock: The times by which entries expire; a function returns processing time in milliseconds since the epoch.

    Raises:
        LineageError: The plan does not lead to the version.
        CoverError: The plan's snapshots do not cover the subtask's key group range exactly.
        ObjectNotFoundError, ObjectCorruptError, ChangelogCorruptError: An object of the plan is missing or damaged.
        DiskFullError, DiskReadOnlyError, StoreIOError: The local directory cannot be used.
        StoreUnavailableError: The object store is unavailable.
    """
    if version is None:
        whole = plan.load() if isinstance(plan, DeferredPlan) else plan
        version = version_of(whole, spec.key_group_range, whole.last_batch_id)
    if isinstance(plan, RestorePlan):
        _check_leads_to(plan, version, spec)
    place_subtask(spec.local_directory(local_root), local_root, spec.settings.local_directories)
    directory = SubtaskDirectory.acquire(spec.local_directory(local_root))
    try:
        operator = open_operator_state(store, plan.operator_state, spec.index, spec.parallelism)
        opened = (
            take_over(spec, version, directory)
            or reopen_shards(spec, version, directory, store, partial(_loaded, plan, version, spec))
            or rebuild_shards(spec, _loaded(plan, version, spec), directory, local_root, store)
        )
        try:
            return SubtaskStore(
                spec,
                version,
                directory=directory,
                opened=opened,
                store=store,
                local_root=local_root,
                clock=clock,
                operator=operator,
                operator_plan=plan.operator_state,
            )
        except BaseException:
            opened.close()
            raise
    except BaseException:
        directory.discard()
        raise


def _loaded(plan: RestorePlan | DeferredPlan, version: StateVersion, spec: SubtaskSpec) -> RestorePlan:
    if isinstance(plan, RestorePlan):
        return plan
    loaded = plan.load()
    _check_leads_to(loaded, version, spec)
    return loaded


def _check_leads_to(plan: RestorePlan, version: StateVersion, spec: SubtaskSpec) -> None:
    if version_of(plan, spec.key_group_range, version.batch_id) != version:
        raise LineageError(
            f"the restore plan of subtask {spec.index} does not lead to batch {version.batch_id} as committed"
        )
