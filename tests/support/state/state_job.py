"""A job's state without Spark: every subtask's store through batches, checkpoints and rescales, beside a plain dict."""

from __future__ import annotations

import random
import uuid
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.consolidation.consolidator import consolidate
from keyscale.state.consolidation.policy import DEFAULT_POLICY, ConsolidationPolicy
from keyscale.state.documents.claim import check_claim, take_claim
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from keyscale.state.documents.manifest import (
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    SnapshotKind,
    known_files,
    read_manifest,
    write_manifest,
)
from keyscale.state.documents.state_version import NO_BATCH
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.schema import merge_schemas
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import assign_to_key_group, key_group_range, subtask_for_key_group
from keyscale.state.layout import Layout
from keyscale.state.local.subtask_spec import SubtaskSpec
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.log.recovery import recover
from keyscale.state.log.resolution import log_start, resolve
from keyscale.state.restore.plan import RestorePlan, history_of, plan_operator, version_of
from keyscale.state.snapshot.snapshot import upload_snapshot
from keyscale.state.subtask.store import SubtaskStore, open_subtask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from keyscale.state.documents.changelog import ChangelogHandle
    from keyscale.state.documents.state_version import StateVersion
    from keyscale.state.objects.object_store import ObjectStore

JOB = JobId("job")
UID = OperatorUid("count")
KEY_SCHEMA = pa.schema([("id", pa.int64())])
COUNT = ValueStateDescriptor("count", pa.int64())
MAX_PARALLELISM = 16
FIRST_ATTEMPT = Attempt(0)
ALWAYS = ConsolidationPolicy(foreign_share_min=0.001, foreign_bytes_min=1, retry_seconds=0)
"""Consolidates shards of any size."""


@dataclass
class StateJob:
    """Plays the driver and all its tasks in one process.

    Attributes:
        store: The object store.
        local_root: Root of all local state.
        job_id: The job.
        parallelism: Number of subtasks.
        attempt: The running attempt.
        reference: The expected state, by key.
        clock: The times by which entries expire.
        descriptor: The descriptor of the counts.
        adds: Adds to the counts in a task; None: `add`.
        operate: Another action of each task on its subtask's state, such as on its operator state.
        policy: When shards are consolidated.
        consolidation: The consolidation that the newest checkpoint has begun, for `consolidate`; None: none. A host has
            one at a time.
        sinks: The output token of each sink, in every batch.
        max_parallelism: Its number of key groups.
    """

    store: ObjectStore
    local_root: Path
    job_id: JobId = JOB
    parallelism: int = 2
    attempt: Attempt = FIRST_ATTEMPT
    reference: dict[int, int] = field(default_factory=dict)
    manifest: Manifest | None = None
    batch_id: BatchId = NO_BATCH
    plans: list[RestorePlan] = field(default_factory=list)
    next_checkpoint_id: int = 1
    clock: BatchClock = field(default_factory=BatchClock)
    descriptor: ValueStateDescriptor = COUNT
    adds: Callable[[SubtaskStore, Mapping[int, int], ValueStateDescriptor], None] | None = None
    operate: Callable[[SubtaskStore], None] | None = None
    policy: ConsolidationPolicy = DEFAULT_POLICY
    consolidation: Path | None = None
    sinks: dict[str, str] = field(default_factory=dict)
    max_parallelism: int = MAX_PARALLELISM

    @property
    def layout(self) -> Layout:
        return Layout(self.job_id)

    def start(
        self, parallelism: int, restore_from: str | None = None, *, rewinds: bool = False, claims: bool = False
    ) -> None:
        """Opens a new attempt, from a manifest's path or from the log alone."""
        manifest = None if restore_from is None else read_manifest(self.store, restore_from)
        if manifest is not None:
            (take_claim if claims else check_claim)(self.store, manifest, self.job_id)
        entries = [] if rewinds else CommitLog(self.store, self.layout).history(manifest)
        self.open_attempt(parallelism, manifest, entries, rewinds=rewinds, claims=claims)

    def recover(self, parallelism: int) -> None:
        """Opens a new attempt from the store alone."""
        base = recover(self.store, self.job_id, None).base.manifest
        self.open_attempt(parallelism, base, CommitLog(self.store, self.layout).history(base))

    def open_attempt(
        self,
        parallelism: int,
        manifest: Manifest | None,
        entries: list[tuple[int, LogEntry]],
        *,
        rewinds: bool = False,
        claims: bool = False,
    ) -> None:
        self.claims = claims
        self.manifest, self.log = manifest, CommitLog(self.store, self.layout)
        last = self.log.last()
        position = last[0] + 1 if last else log_start(manifest, self.job_id) + 1
        older = [last[1].attempt] if last else [manifest.attempt] if manifest else []
        attempt = Attempt(max([self.attempt, *older]) + 1)
        entry = AttemptOpened(
            attempt,
            parallelism,
            self.max_parallelism,
            HashId.SPARK,
            manifest.path if manifest else None,
            0,
            {UID: OperatorDeclaration((("id", "int64"),))},
            rewinds,
            claims,
        )
        resume = resolve(manifest, [*entries, (position, entry)], self.job_id)
        self.position = self.log.append(position, entry)
        assert self.position == resume.next_position
        self.attempt, self.parallelism, self.batch_id = attempt, parallelism, resume.batch_id
        self.history = resume.operators[UID]
        self.plans = plan_operator(self.history, KeyGroupRanges.of_count(self.max_parallelism, parallelism))

    def ahead(self, parallelism: int) -> StateJob:
        """Returns the job as its next attempt will see it, at the present version; nothing is opened in the log."""
        history = history_of(self.plans)
        schema = merge_schemas([self.history.schema, history.schema])
        ahead = copy(self)
        ahead.history = replace(history, schema=schema)
        ahead.attempt, ahead.parallelism = Attempt(self.attempt + 1), parallelism
        ahead.plans = plan_operator(history, KeyGroupRanges.of_count(self.max_parallelism, parallelism))
        return ahead

    def rescale_live(self, parallelism: int) -> None:
        """Opens the next attempt from the plans in memory, as a driver does that rescales its job itself."""
        ahead = self.ahead(parallelism)
        entry = AttemptOpened(
            ahead.attempt,
            parallelism,
            self.max_parallelism,
            HashId.SPARK,
            self.manifest.path if self.manifest else None,
            0,
            {UID: OperatorDeclaration((("id", "int64"),))},
        )
        self.position = self.log.append(self.position, entry)
        self.attempt, self.parallelism = ahead.attempt, parallelism
        self.history, self.plans = ahead.history, ahead.plans

    def spec(self, index: int) -> SubtaskSpec:
        return SubtaskSpec(
            job_id=self.job_id,
            operator_uid=UID,
            index=SubtaskIndex(index),
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            hash_id=HashId.SPARK,
            key_schema=KEY_SCHEMA,
            attempt=self.attempt,
            schema=self.history.schema,
        )

    def version(self, index: int) -> StateVersion:
        return version_of(self.plans[index], self.spec(index).key_group_range, self.batch_id)

    def open(self, index: int) -> SubtaskStore:
        return open_subtask(
            self.spec(index), self.version(index), self.plans[index], self.local_root, self.store, clock=self.clock
        )

    def run_batch(self, increments: Mapping[int, int]) -> None:
        """Adds to the counts in all subtasks, and commits."""
        batch_id = BatchId(self.batch_id + 1)
        self.position = self.log.append(self.position, BatchPlanned(self.attempt, batch_id, {}))
        handles = [self.run_task(index, batch_id, increments) for index in range(self.parallelism)]
        self.commit(batch_id, handles)
        for key, increment in increments.items():
            self.reference[key] = self.reference.get(key, 0) + increment

    def run_task(self, index: int, batch_id: BatchId, increments: Mapping[int, int]) -> ChangelogHandle | None:
        with self.open(index) as store:
            (self.adds or add)(store, self.own(index, increments), self.descriptor)
            if self.operate is not None:
                self.operate(store)
            return store.finish_batch(batch_id, uuid.uuid4().hex)

    def own(self, index: int, increments: Mapping[int, int]) -> dict[int, int]:
        return {
            key: increment
            for key, increment in increments.items()
            if subtask_for_key_group(group_of(key, self.max_parallelism), self.max_parallelism, self.parallelism)
            == index
        }

    def commit(self, batch_id: BatchId, handles: list[ChangelogHandle | None]) -> None:
        entry = BatchCommitted(self.attempt, batch_id, {UID: handles}, self.sinks, 0)
        self.position = self.log.append(self.position, entry)
        self.batch_id = batch_id
        self.plans = [plan.followed_by(handle) for plan, handle in zip(self.plans, handles, strict=True)]

    def checkpoint(self, savepoint_id: str | None = None) -> tuple[Manifest, int]:
        """Takes snapshots, uploads them and publishes; returns the manifest and the number of bytes moved."""
        checkpoint_id = CheckpointId(self.next_checkpoint_id)
        self.next_checkpoint_id += 1
        local = []
        for index in range(self.parallelism):
            with self.open(index) as store:
                local.append(store.snapshot(checkpoint_id, self.policy, self.clock))
        begun = [Path(snapshot.consolidation) for snapshot in local if snapshot.consolidation is not None]
        self.consolidation = begun[0] if begun else None
        known = known_files([self.manifest] if self.manifest else [], self.job_id, claimed=self.claims)
        uploads = [
            upload_snapshot(snapshot, self.store, self.layout, known, savepoint_id, clock=self.clock)
            for snapshot in local
        ]
        manifest = Manifest(
            job_id=self.job_id,
            checkpoint_id=checkpoint_id,
            kind=SnapshotKind.CHECKPOINT if savepoint_id is None else SnapshotKind.SAVEPOINT,
            attempt=self.attempt,
            batch_id=self.batch_id,
            log_position=self.position - 1,
            max_parallelism=self.max_parallelism,
            hash_id=HashId.SPARK,
            created_at_ms=0,
            operators=(
                OperatorSnapshot(
                    UID,
                    self.parallelism,
                    OperatorDeclaration((("id", "int64"),)),
                    tuple(upload.handle for upload in uploads),
                ),
            ),
            savepoint_id=savepoint_id,
        )
        write_manifest(self.store, manifest)
        if savepoint_id is None:
            self.manifest = manifest
            self.plans = [
                plan.rebased([upload.handle for upload in uploads], index, self.batch_id)
                for index, plan in enumerate(self.plans)
            ]
        return manifest, sum(upload.uploaded_bytes for upload in uploads)

    def consolidate(self) -> bool:
        """Carries out the newest checkpoint's consolidation; returns whether there is a result to take over."""
        return self.consolidation is not None and consolidate(self.consolidation, self.clock)

    def shards(self) -> list[int]:
        """Returns how many shards each subtask has."""
        return [self._shards_of(index) for index in range(self.parallelism)]

    def _shards_of(self, index: int) -> int:
        with self.open(index) as store:
            return store.shard_count

    def dump(self) -> dict[int, int]:
        """Returns all keyed state of all subtasks; fails if a key is not with the owner of its key group."""
        found: dict[int, int] = {}
        for index in range(self.parallelism):
            with self.open(index) as store:
                for key, count in entries(store, self.descriptor).items():
                    assert key not in found
                    assert group_of(key, self.max_parallelism) in key_group_range(
                        self.max_parallelism, self.parallelism, index
                    )
                    found[key] = count
        return found


def random_batch(seed: int, keys: int = 200, size: int = 50) -> dict[int, int]:
    """Returns what a batch adds to each of some keys."""
    rng = random.Random(seed)
    return {rng.randrange(keys): rng.randrange(1, 100) for _ in range(size)}


@cache
def group_of(key: int, max_parallelism: int = MAX_PARALLELISM) -> int:
    return assign_to_key_group(key, max_parallelism, hash_id=HashId.SPARK)


def add(store: SubtaskStore, increments: Mapping[int, int], descriptor: ValueStateDescriptor = COUNT) -> None:
    """Adds to counts per record, as a user's function would."""
    state = store.keyed.state(descriptor)
    for key, increment in increments.items():
        store.keyed.set_current_key(group_of(key), (key,))
        state.update((state.value() or 0) + increment)


def add_many(store: SubtaskStore, increments: Mapping[int, int], descriptor: ValueStateDescriptor = COUNT) -> None:
    """Adds to counts as columns."""
    state, keys = store.keyed.state(descriptor), list(increments)
    groups, column = np.array([group_of(key) for key in keys], np.int32), pa.array(keys, pa.int64())
    before = state.get_many(groups, [column]).to_pylist()
    after = [(count or 0) + increments[key] for key, count in zip(keys, before, strict=True)]
    state.put_many(groups, [column], pa.array(after, pa.int64()))


def entries(store: SubtaskStore, descriptor: ValueStateDescriptor = COUNT) -> dict[int, int]:
    """Returns the state's entries, found by scanning its key groups."""
    store.keyed.state(descriptor)
    return {stored.key[0]: value for stored, value in store.keyed.dump(descriptor.name)}
