"""A job that starts from another job's checkpoint does not depend on it any longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import JobTime
from keyscale.state.documents.manifest import (
    FileHandle,
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    ShardHandle,
    SnapshotHandle,
    SnapshotKind,
    read_manifest,
)
from keyscale.state.documents.rewind import Rewind
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.log.recovery import missing_files
from keyscale.state.objects.errors import ObjectNotFoundError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from keyscale.state.snapshot.own_copy import own_copy
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORK = JobId("fork")
KEYS = {key: key for key in range(40)}
FAR_FUTURE_MS = 4_000_000_000_000


REWIND = Rewind(Attempt(2), BatchId(-1))


@pytest.fixture
def owner(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "owner")
    job.start(2)
    job.run_batch(KEYS)
    return job


def test_a_fork_goes_on_when_the_other_job_has_deleted_its_checkpoint_and_cleans_its_copy_up(
    owner: StateJob, tmp_path: Path
) -> None:
    checkpoint, _ = owner.checkpoint()
    counters, sinks = JobCounters(input_records=40), {"output": "open"}
    checkpoint = msgspec.structs.replace(checkpoint, counters=counters, rewinds=(REWIND,), sinks=sinks)
    copy = own_copy(owner.store, checkpoint, FORK, "copy")
    assert copy.counters is msgspec.UNSET, "the new job counts from zero"
    assert copy.rewinds is msgspec.UNSET, "the new job has gone back to nothing"
    assert copy.sinks == {}, "the other job publishes its own output"
    assert (copy.job_id, copy.kind, copy.forked_from) == (FORK, SnapshotKind.SAVEPOINT, owner.job_id)
    owner.store.delete([info.path for info in owner.store.list(Layout(owner.job_id).job)])
    assert missing_files(owner.store, copy) == []

    fork = StateJob(owner.store, tmp_path / "fork", job_id=FORK)
    fork.start(3, copy.path, rewinds=True, claims=True)
    assert fork.dump() == KEYS
    fork.run_batch({1: 1})
    own, uploaded_bytes = fork.checkpoint()
    assert uploaded_bytes < own.state_size_bytes, "the copied files are referenced, not copied again"
    facts = gather_facts(fork.store, FORK, FAR_FUTURE_MS)
    delete_planned(fork.store, plan_deletion(facts, RetentionPolicy(retained_count=1)))
    assert fork.store.head(copy.path) is None
    assert missing_files(fork.store, own) == []
    fork.recover(1)
    assert fork.dump() == {**KEYS, 1: 2}


def test_a_copy_has_everything_of_the_checkpoint_but_what_belongs_to_the_other_job(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)

    def file(name: str, *, shared: bool = False) -> FileHandle:
        store.put(f"job/chk-7/{name}", name.encode())
        return FileHandle(name, f"job/chk-7/{name}", len(name), f"sha of {name}", shared)

    def copied(name: str, *, shared: bool = False) -> FileHandle:
        return FileHandle(name, f"fork/savepoints/copy/files/sha of {name}-0-7", len(name), f"sha of {name}", shared)

    def operator(uid: str, of: Callable[..., FileHandle], state: FileHandle | msgspec.UnsetType) -> OperatorSnapshot:
        shards = (
            ShardHandle(0, 3, (of(f"{uid}1.sst", shared=True), of(f"{uid}2"))),
            ShardHandle(4, 7, (of(f"{uid}3"),)),
        )
        handle = SnapshotHandle(SubtaskIndex(0), 0, 7, BatchId(9), "lineage", shards, operator_state=state)
        declaration = OperatorDeclaration((("id", "int64"),))
        return OperatorSnapshot(OperatorUid(uid), 1, declaration, (handle,), (1,) * 8, (2,) * 8)

    checkpoint = Manifest(
        job_id=JobId("job"),
        checkpoint_id=CheckpointId(7),
        kind=SnapshotKind.CHECKPOINT,
        attempt=Attempt(3),
        batch_id=BatchId(9),
        log_position=20,
        max_parallelism=8,
        hash_id=HashId.SPARK,
        created_at_ms=1_000,
        operators=(operator("a", file, file("state")), operator("b", file, msgspec.UNSET)),
        positions=file("positions"),
        sinks={"out": "token"},
        time=JobTime(processing_ms=5),
        counters=JobCounters(input_records=40),
        rewinds=(REWIND,),
    )
    copy = own_copy(store, checkpoint, FORK, "copy")
    assert copy == Manifest(
        job_id=FORK,
        checkpoint_id=CheckpointId(7),
        kind=SnapshotKind.SAVEPOINT,
        attempt=Attempt(0),
        batch_id=BatchId(9),
        log_position=0,
        max_parallelism=8,
        hash_id=HashId.SPARK,
        created_at_ms=1_000,
        operators=(operator("a", copied, copied("state")), operator("b", copied, msgspec.UNSET)),
        positions=copied("positions"),
        savepoint_id="copy",
        time=JobTime(processing_ms=5),
        forked_from=JobId("job"),
    )
    assert read_manifest(store, "fork/savepoints/copy/manifest.json") == copy
    assert {each.path: store.get(each.path) for each in copy.files()} == {
        each.path: each.name.encode() for each in copy.files()
    }
    without = own_copy(store, msgspec.structs.replace(checkpoint, positions=None), FORK, "another")
    assert without.positions is None


def test_a_copy_that_no_attempt_went_back_to_counts_for_nothing(owner: StateJob, tmp_path: Path) -> None:
    other = StateJob(owner.store, tmp_path / "other", job_id=JobId("other"))
    other.start(1)
    other.run_batch({5: 5})
    foreign, _ = other.checkpoint()
    own_copy(owner.store, foreign, owner.job_id, "copy")
    for _ in range(2):
        owner.recover(2)
        assert owner.dump() == KEYS
        owner.checkpoint()


def test_a_checkpoint_without_all_its_files_gives_no_copy(owner: StateJob) -> None:
    checkpoint, _ = owner.checkpoint()
    owner.store.delete([next(iter(checkpoint.files())).path])
    with pytest.raises(ObjectNotFoundError):
        own_copy(owner.store, checkpoint, FORK, "copy")
    assert owner.store.head(Layout(FORK).manifest(checkpoint.checkpoint_id, "copy")) is None
