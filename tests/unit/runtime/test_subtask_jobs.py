"""What runs beside each subtask's state, without Spark: a function from a subtask's index to bytes."""

from __future__ import annotations

import pickle
from functools import partialmethod
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jobs.runtime.checkpoints import snapshot_clocks
from jobs.runtime.subtask_jobs import SnapshotSubtasks, SubtaskPlaces, UploadSnapshots
from jobs.runtime.task import SubtaskStart
from state.consolidation import ConsolidationPolicy
from state.descriptors import ValueStateDescriptor
from state.identifiers import CheckpointId, SubtaskIndex
from state.job_time import EventTime, JobTime
from state.objects import LocalObjectStore
from state.subtask import SubtaskStore
from state.ttl import STAMP_MIN_MS, BatchClock, TimeDomain, Ttl
from tests.support.state_job import UID, StateJob, entries
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from jobs.runtime.subtask_jobs import StoredSubtask


def uploaded(job: StateJob, time: JobTime, processing_ms: int, savepoint_id: str | None) -> int:
    """Bytes of a snapshot of a job's single subtask."""
    places = SubtaskPlaces({UID: [job.spec(0)]}, job.store.url, str(job.local_root))
    starts = {UID: (SubtaskStart(job.version(0), job.plans[0]),)}
    clocks = snapshot_clocks(time, places.specs, processing_ms)
    linked = pickle.loads(SnapshotSubtasks(places, starts, CheckpointId(1), clocks)(0))  # noqa: S301 - made one line above
    task = pickle.loads(pickle.dumps(UploadSnapshots(places, {0: linked}, {}, {}, savepoint_id, clocks)))  # noqa: S301
    stored: list[StoredSubtask] = pickle.loads(task(0))  # noqa: S301
    return stored[0].handle.state_size_bytes


@pytest.mark.parametrize("domain", list(TimeDomain))
def test_a_savepoint_is_cleaned_by_the_jobs_own_time_and_a_checkpoint_is_not(
    tmp_path: Path, domain: TimeDomain
) -> None:
    clock = BatchClock(processing_time_ms=1000, event_time_ms=1000)
    descriptor = ValueStateDescriptor("count", pa.int64(), Ttl(100, time_domain=domain))
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", clock=clock, descriptor=descriptor)
    job.start(1)
    job.run_batch(dict.fromkeys(range(2000), 1))
    reached = JobTime({UID: EventTime(5000, 1100)})
    early = JobTime({UID: EventTime(5000, 1099)})
    whole = uploaded(job, early, 1099, "early")
    assert uploaded(job, reached, 1100, None) > whole / 2
    assert uploaded(job, reached, 1100, "due") < whole / 2


def test_without_a_watermark_nothing_expires_by_event_time() -> None:
    assert snapshot_clocks(JobTime(), [UID], 7) == {UID: BatchClock(7, STAMP_MIN_MS)}


@pytest.mark.parametrize("domain", list(TimeDomain))
def test_a_checkpoint_begins_to_clean_a_store_by_the_jobs_own_time(
    tmp_path: Path, domain: TimeDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ConsolidationPolicy(foreign_bytes_min=1)
    monkeypatch.setattr(SubtaskStore, "snapshot", partialmethod(SubtaskStore.snapshot, policy=policy))
    clock = BatchClock(processing_time_ms=1000, event_time_ms=1000)
    descriptor = ValueStateDescriptor("count", pa.int64(), Ttl(100, time_domain=domain))
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", clock=clock, descriptor=descriptor)
    job.start(1)
    job.run_batch(dict.fromkeys(range(2000), 1))
    begun = job.spec(0).local_directory(job.local_root) / "consolidation"
    uploaded(job, JobTime({UID: EventTime(5000, 1099)}), 1099, "early")
    assert not list(begun.glob("*"))
    uploaded(job, JobTime({UID: EventTime(5000, 1100)}), 1100, "due")
    assert len(list(begun.glob("*"))) == 1


def test_after_the_upload_a_process_merges_shards_and_the_next_task_takes_them_in(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    job.run_batch(dict.fromkeys(range(100), 1))
    manifest, _ = job.checkpoint()
    job.start(1, manifest.path)
    uploaded(job, JobTime(), 0, "a savepoint, after which the job may end")
    [begun] = job.spec(0).local_directory(job.local_root).glob("consolidation/*")
    assert not (begun / "started").exists()
    uploaded(job, JobTime(), 0, None)
    wait_until((begun / "READY").exists, what="the merge in a process of its own")
    places = SubtaskPlaces({UID: [job.spec(0)]}, job.store.url, str(job.local_root))
    with places.held(UID, SubtaskIndex(0), SubtaskStart(job.version(0), job.plans[0])) as store:
        assert store.shard_count == 1
        assert entries(store) == job.reference
