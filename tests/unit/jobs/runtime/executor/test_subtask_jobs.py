"""The jobs beside each subtask's state, without Spark: a function from a subtask's index to bytes."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from keyscale.identifiers import CheckpointId, OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.driver.checkpoints import snapshot_clocks
from keyscale.jobs.runtime.executor import subtask_jobs
from keyscale.jobs.runtime.executor.subtask_jobs import (
    LinkedSubtask,
    SnapshotSubtasks,
    StoredSubtask,
    SubtaskPlaces,
    Uploads,
    UploadSnapshots,
)
from keyscale.jobs.runtime.executor.subtask_starts import SubtaskStart
from keyscale.state.consolidation.policy import ConsolidationPolicy
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.keyed.batch_clock import BatchClock, TimeDomain
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.stamp import STAMP_MIN_MS
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.subtask.store import SubtaskStore
from tests.support.drivers.shipped_starts import payload, shipped
from tests.support.state.state_job import UID, StateJob, entries
from tests.support.waiting import wait_until


def uploaded(job: StateJob, time: JobTime, savepoint_id: str | None) -> int:
    """Returns the bytes of a snapshot of a job's single subtask."""
    places = SubtaskPlaces({UID: [job.spec(0)]}, job.store.url, str(job.local_root))
    starts = {UID: shipped(UID, [SubtaskStart(job.version(0), job.plans[0])])}
    clocks = snapshot_clocks(time, places.specs)
    linked = pickle.loads(SnapshotSubtasks(places, starts, CheckpointId(1), clocks)(0))  # noqa: S301 - our own
    uploads = payload(Uploads({SubtaskIndex(0): linked}, {}, {}))
    task = pickle.loads(pickle.dumps(UploadSnapshots(places, uploads, savepoint_id, clocks)))  # noqa: S301
    # A slow upload continues in the background; the driver asks again, too.
    stored: list[StoredSubtask] = wait_until(lambda: pickle.loads(task(0)), what="the upload")  # noqa: S301
    return stored[0].handle.state_size_bytes


def test_a_stored_subtask_has_the_moments_and_durations_of_its_snapshot_and_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch(dict.fromkeys(range(20), 1))
    moments, durations = iter([1_000_000, 1_000_500]), iter([30, 70])
    monkeypatch.setattr(subtask_jobs, "now_ms", lambda: next(moments))
    monkeypatch.setattr(subtask_jobs, "_elapsed_ms", lambda _: next(durations))
    places = SubtaskPlaces({UID: [job.spec(0)]}, job.store.url, str(job.local_root))
    starts = {UID: shipped(UID, [SubtaskStart(job.version(0), job.plans[0])])}
    clocks = snapshot_clocks(JobTime(), places.specs)
    (linked,) = pickle.loads(SnapshotSubtasks(places, starts, CheckpointId(1), clocks)(0))  # noqa: S301 - our own
    uploads = Uploads({SubtaskIndex(0): [linked]}, {}, {})
    task = UploadSnapshots(places, payload(uploads), None, clocks)
    (stored,) = pickle.loads(task._upload(SubtaskIndex(0), uploads, 0))  # noqa: S301
    assert (stored.uid, stored.started_at_ms, stored.acknowledged_at_ms) == (UID, 1_000_000, 1_000_500)
    assert (stored.sync_ms, stored.async_ms) == (30, 70)
    assert stored.sizes == linked.sizes
    assert sum(stored.sizes.entries) == 20
    assert stored.uploaded_bytes == stored.handle.state_size_bytes > 0


@pytest.mark.parametrize("domain", list(TimeDomain))
def test_a_savepoint_is_cleaned_by_the_jobs_own_time_and_a_checkpoint_is_not(
    tmp_path: Path, domain: TimeDomain
) -> None:
    clock = BatchClock(processing_time_ms=1000, event_time_ms=1000)
    descriptor = ValueStateDescriptor("count", pa.int64(), Ttl(100, time_domain=domain))
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local", clock=clock, descriptor=descriptor)
    job.start(1)
    job.run_batch(dict.fromkeys(range(2000), 1))
    reached = JobTime({UID: EventTime(5000, 1100)}, processing_ms=1100)
    early = JobTime({UID: EventTime(5000, 1099)}, processing_ms=1099)
    whole = uploaded(job, early, "early")
    assert uploaded(job, reached, None) > whole / 2
    assert uploaded(job, reached, "due") < whole / 2


def test_an_uploaded_part_keeps_the_times_of_its_link_and_adds_those_of_its_upload(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch(dict.fromkeys(range(10), 1))
    places = SubtaskPlaces({UID: [job.spec(0)]}, job.store.url, str(job.local_root))
    starts = {UID: shipped(UID, [SubtaskStart(job.version(0), job.plans[0])])}
    clocks = snapshot_clocks(JobTime(), places.specs)
    [linked] = pickle.loads(SnapshotSubtasks(places, starts, CheckpointId(1), clocks)(0))  # noqa: S301 - our own
    linked = replace(linked, started_at_ms=5, sync_ms=6)
    task = UploadSnapshots(places, payload(Uploads({SubtaskIndex(0): [linked]}, {}, {})), None, clocks)
    [stored] = wait_until(lambda: pickle.loads(task(SubtaskIndex(0))), what="the upload")  # noqa: S301 - our own
    assert (stored.uid, stored.started_at_ms, stored.sync_ms, stored.sizes) == (UID, 5, 6, linked.sizes)
    assert stored.acknowledged_at_ms > 5
    assert sum(linked.sizes.entries) == 10
    assert stored.uploaded_bytes > 0


def test_the_synchronous_part_of_a_snapshot_ends_before_the_sizes_of_its_key_groups_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [10.0]

    class State:
        def snapshot(self, checkpoint_id: int, *, clock: str) -> Any:
            now_s[0] += 2
            return f"checkpoint {checkpoint_id} at {clock}"

        def key_group_sizes(self) -> Any:
            now_s[0] += 5
            return "sizes"

    monkeypatch.setattr(subtask_jobs, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    places = SimpleNamespace(specs={"one": ()}, held=lambda *_: nullcontext(State()))
    task = subtask_jobs.SnapshotSubtasks(*cast("Any", (places, {"one": "start"}, 7, {"one": "the time of one"})))
    (linked,) = pickle.loads(task(SubtaskIndex(0)))  # noqa: S301 - pickled here
    assert (linked.uid, linked.snapshot, linked.sizes) == ("one", "checkpoint 7 at the time of one", "sizes")
    assert linked.sync_ms == 2000


def test_without_a_watermark_nothing_expires_by_event_time() -> None:
    assert snapshot_clocks(JobTime(processing_ms=7), [UID]) == {UID: BatchClock(7, STAMP_MIN_MS)}


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
    uploaded(job, JobTime({UID: EventTime(5000, 1099)}, processing_ms=1099), "early")
    assert not list(begun.glob("*"))
    uploaded(job, JobTime({UID: EventTime(5000, 1100)}, processing_ms=1100), "due")
    assert len(list(begun.glob("*"))) == 1


def test_after_the_upload_a_process_merges_shards_and_the_next_task_uses_the_result(tmp_path: Path) -> None:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    job.run_batch(dict.fromkeys(range(100), 1))
    manifest, _ = job.checkpoint()
    job.start(1, manifest.path)
    uploaded(job, JobTime(), "a savepoint, after which the job may end")
    [begun] = job.spec(0).local_directory(job.local_root).glob("consolidation/*")
    assert not (begun / "started").exists()
    uploaded(job, JobTime(), None)
    wait_until((begun / "READY").exists, what="the merge in a process of its own")
    places = SubtaskPlaces({UID: [job.spec(0)]}, job.store.url, str(job.local_root))
    with places.held(UID, SubtaskIndex(0), shipped(UID, [SubtaskStart(job.version(0), job.plans[0])])) as store:
        assert store.shard_count == 1
        assert entries(store) == job.reference


@pytest.mark.parametrize("savepoint_id", [None, "s"])
def test_a_merge_begins_with_the_operators_own_times_unless_a_savepoint_may_end_the_job(
    monkeypatch: pytest.MonkeyPatch, savepoint_id: str | None
) -> None:
    begun: list[Any] = []
    stored = SimpleNamespace(handle="handle", uploaded_bytes=0)
    monkeypatch.setattr(subtask_jobs, "start_consolidator", lambda *given: begun.append(given))
    monkeypatch.setattr(subtask_jobs, "upload_snapshot", lambda *_, **__: stored)
    monkeypatch.setattr(subtask_jobs, "object_store", lambda _: None)
    snapshot: Any = SimpleNamespace(job_id="job", consolidation="/merge")
    uploads = Uploads({SubtaskIndex(0): [LinkedSubtask(UID, snapshot, 1, 2, cast("Any", None))]}, {}, {})
    clocks = {UID: BatchClock(7, 8), OperatorUid("other"): BatchClock(5, 6)}
    task = UploadSnapshots(SubtaskPlaces({}, "file:///store", "/local"), payload(uploads), savepoint_id, clocks)
    task._upload(SubtaskIndex(0), uploads, 99)
    assert begun == ([(Path("/merge"), 99, clocks[UID])] if savepoint_id is None else [])


def test_each_operators_part_of_an_upload_has_its_own_duration_files_and_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, given = [100.0], list[tuple[Any, ...]]()
    takes_s = {"one": 2.0, "two": 5.0}
    clocks = {OperatorUid("two"): BatchClock(7, 8)}
    sizes: Any = SimpleNamespace(entries=(1,))

    def upload(snapshot: Any, *where: Any, **more: Any) -> Any:
        given.append((snapshot.name, *where, more))
        now_s[0] += takes_s[snapshot.name]
        return SimpleNamespace(handle=f"handle of {snapshot.name}", uploaded_bytes=10 * int(takes_s[snapshot.name]))

    monkeypatch.setattr(subtask_jobs, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    monkeypatch.setattr(subtask_jobs, "now_ms", lambda: round(1000 * now_s[0]))
    monkeypatch.setattr(subtask_jobs, "upload_snapshot", upload)
    monkeypatch.setattr(subtask_jobs, "object_store", lambda url: f"store at {url}")
    monkeypatch.setattr(subtask_jobs, "Layout", lambda job_id: f"layout of {job_id}")

    def part(name: str, at: int) -> LinkedSubtask:
        snapshot: Any = SimpleNamespace(job_id=f"job-{name}", consolidation=None, name=name)
        return LinkedSubtask(OperatorUid(name), snapshot, at, at + 1, sizes)

    uploads = Uploads({SubtaskIndex(1): [part("one", 1), part("two", 3)], SubtaskIndex(0): []}, {"k": "p"}, {"c": "q"})
    task = UploadSnapshots(SubtaskPlaces({}, "file:///store", "/local"), payload(uploads), "mine", clocks)
    stored = pickle.loads(task._upload(SubtaskIndex(1), uploads, 99))  # noqa: S301 - our own
    assert given == [
        (
            name,
            "store at file:///store",
            f"layout of job-{name}",
            {"k": "p"},
            "mine",
            {"copies": {"c": "q"}, "clock": c},
        )
        for name, c in (("one", None), ("two", BatchClock(7, 8)))
    ]
    assert [replace(each, sizes=sizes) for each in stored] == [
        StoredSubtask(OperatorUid("one"), cast("Any", "handle of one"), 20, 1, 2, 2000, 102_000, sizes),
        StoredSubtask(OperatorUid("two"), cast("Any", "handle of two"), 50, 3, 4, 5000, 107_000, sizes),
    ]
