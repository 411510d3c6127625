"""A job that starts from another job's checkpoint does not depend on it any longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.manifest import SnapshotKind
from keyscale.state.documents.rewind import Rewind
from keyscale.state.layout import Layout
from keyscale.state.log.recovery import missing_files
from keyscale.state.objects.errors import ObjectNotFoundError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from keyscale.state.snapshot.own_copy import own_copy
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
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
