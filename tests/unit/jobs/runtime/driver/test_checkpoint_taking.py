"""What a checkpoint is based on, counts and subsumes, with stand-ins for the tasks that store it."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import UNSET

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.jobs.protocol.messages import CheckpointReport, SubtaskCheckpointReport
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.batch.source_order import recorded_positions
from keyscale.jobs.runtime.driver import checkpoints as module
from keyscale.jobs.runtime.driver.checkpoints import Checkpoints
from keyscale.jobs.runtime.errors import CheckpointTimeoutError
from keyscale.jobs.runtime.executor.subtask_jobs import StoredSubtask
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.manifest import (
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    SnapshotHandle,
    SnapshotKind,
    read_manifest,
)
from keyscale.state.documents.rewind import Rewind
from keyscale.state.documents.source_positions import read_positions
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.objects.errors import StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.vocabulary import CheckpointStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAYOUT = Layout(JobId("job"))


class Loop:
    """A loop of batches that knows whether it is paused."""

    def __init__(self) -> None:
        self.is_paused = False
        self.rebased: list[int] = []
        self.waits: Callable[[float], object] = lambda _: None

    @contextmanager
    def paused(self, deadline: float) -> Iterator[Any]:
        self.waits(deadline)
        self.is_paused = True
        try:
            yield SimpleNamespace(time=None)
        finally:
            self.is_paused = False

    def rebase(self, manifest: Any) -> None:
        self.rebased.append(manifest.number)


class Job:
    """The checkpoints of a job; each upload is noted."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop, self.reports, self.uploads = Loop(), list[Any](), list[Any]()
        self.deadlines: list[float] = []
        self.records = 0
        self.fails = False
        store = LocalObjectStore(path)
        info, places = SimpleNamespace(job_id=JobId("job")), SimpleNamespace(specs={})
        context = SimpleNamespace(timeout_ms=1000, store=store, layout=LAYOUT, info=info, places=places)
        self.checkpoints = Checkpoints(
            context=cast("Any", context),
            loop=cast("Any", self.loop),
            report=self.reports.append,
            next_id=CheckpointId(1),
            retained_ids=[],
            retained_count=2,
            base=None,
            input_records=lambda: self.records,
        )
        monkeypatch.setattr(module, "_Taking", lambda *given: Taking(self, *given[1:3]))
        monkeypatch.setattr(module, "snapshot_clocks", lambda *_: "clocks")

        def known_files(bases: list[Any], job_id: str, *, claimed: bool) -> tuple[object, ...]:
            assert job_id == "job"
            return (*(base.number for base in bases), "claimed" if claimed else "own")

        monkeypatch.setattr(module, "known_files", known_files)


class Taking:
    """A checkpoint whose tasks do nothing."""

    def __init__(self, job: Job, checkpoint_id: CheckpointId, savepoint_id: str | None) -> None:
        self.job, self.checkpoint_id, self.savepoint_id = job, checkpoint_id, savepoint_id

    def in_progress(self) -> str:
        return f"{self.checkpoint_id} in progress"

    def failed(self, failure: Exception) -> str:
        return f"{self.checkpoint_id} failed: {failure}"

    def cancelled_at(self, deadline: float) -> Any:
        self.job.deadlines.append(deadline)
        return nullcontext()

    def link(self, _: Any) -> str:
        assert self.job.loop.is_paused
        return "linked"

    def upload(self, linked: str, known: object, copies: object, clocks: object) -> str:
        assert linked == "linked"
        if self.job.fails:
            raise StoreUnavailableError("away")
        self.job.uploads.append((known, copies, clocks, self.job.loop.is_paused))
        return "stored"

    def publish(self, _: Any, stored: str) -> Any:
        assert stored == "stored"
        return SimpleNamespace(number=self.checkpoint_id, path=LAYOUT.manifest(self.checkpoint_id))

    def completed(self, _manifest: Any, _stored: Any, records: int) -> Any:
        return SimpleNamespace(
            model_copy=lambda update: (f"{self.checkpoint_id} completed", records, update["subsumed_checkpoint_ids"])
        )


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def test_each_checkpoint_is_based_on_the_one_before_and_counts_the_records_since(job: Job) -> None:
    for job.records in (30, 50, 50):
        job.checkpoints.take()
    assert job.uploads == [
        (("own",), ("claimed",), "clocks", False),
        ((1, "own"), (1, "claimed"), "clocks", False),
        ((2, "own"), (2, "claimed"), "clocks", False),
    ]
    assert job.loop.rebased == [1, 2, 3]
    assert job.reports[1::2] == [("1 completed", 30, []), ("2 completed", 20, []), ("3 completed", 0, [1])]
    assert job.checkpoints.retained_ids == [2, 3]


def test_a_checkpoint_has_its_whole_time_after_it_has_waited_for_a_batch(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def wait(deadline: float) -> None:
        job.deadlines.append(deadline)
        now[0] += 0.75

    job.loop.waits = wait
    job.checkpoints.take()
    assert job.deadlines == [101.0, 101.75]


def test_after_a_failure_the_next_checkpoint_copies_no_file_that_may_be_gone(job: Job) -> None:
    job.checkpoints.take()
    job.fails = True
    with pytest.raises(StoreUnavailableError):
        job.checkpoints.take()
    assert not job.loop.is_paused
    job.fails = False
    job.checkpoints.take()
    assert job.uploads[1] == ((1, "own"), {}, "clocks", False)
    assert job.reports[2:5] == ["2 in progress", "2 failed: away", "3 in progress"]
    assert (job.loop.rebased, job.checkpoints.retained_ids) == ([1, 3], [1, 3])


def test_a_savepoint_is_no_base_and_subsumes_no_checkpoint(job: Job) -> None:
    job.checkpoints.take()
    completed: list[int] = []

    def then(snapshot: Any) -> None:
        assert job.loop.is_paused, "batches wait until the savepoint has been acted upon"
        completed.append(snapshot.manifest.number)

    job.checkpoints.take("first", then=then)
    job.checkpoints.take("second")
    assert completed == [2]
    assert job.uploads[1:] == [
        ((1, "own"), (1, "claimed"), {}, True),
        ((1, "own"), (1, "claimed"), "clocks", False),
    ]
    assert (job.loop.rebased, job.checkpoints.retained_ids) == ([1], [1])
    assert job.checkpoints.base is not None
    assert cast("Any", job.checkpoints.base).number == 1


def test_the_files_of_a_claimed_savepoint_are_the_jobs_own(job: Job) -> None:
    job.checkpoints.claims = True
    job.checkpoints.take()
    assert job.uploads[0][:2] == (("claimed",), ("claimed",))


def test_the_number_of_a_manifest_that_is_there_is_left_out(job: Job) -> None:
    for number in (1, 2):
        job.checkpoints.context.store.put(LAYOUT.manifest(CheckpointId(number)), b"{}")
    assert cast("Any", job.checkpoints.take().manifest).number == 3
    assert job.checkpoints.next_id == 4


class Polled(module._Taking):
    """A checkpoint whose uploads take some looks."""

    looks: list[str]
    left = 2

    def _run(self, label: str, task: Any) -> dict[SubtaskIndex, list[Any]]:
        self.looks.append(label)
        assert (task.savepoint_id, task.clocks) == (self.savepoint_id, {"count": "clock"})
        done = len(self.looks) > self.left
        return cast("Any", {0: ["zero"], 1: ["one", "two"] if done else None})


def polled(monkeypatch: pytest.MonkeyPatch, released: list[Any]) -> tuple[Polled, list[float]]:
    waits: list[float] = []
    payload = SimpleNamespace(release=lambda: released.append("released"))

    def broadcast(_: object, uploads: Any) -> Any:
        released.append((uploads.linked, uploads.known, uploads.copies))
        return payload

    monkeypatch.setattr(module, "BroadcastPayload", SimpleNamespace(of=broadcast))
    spark = SimpleNamespace(sparkContext="context")
    context = cast("Any", SimpleNamespace(spark=spark, places="places", timeout_ms=700))
    taking = Polled(context, CheckpointId(4), "mine", 5)
    taking.looks = []
    taking._timed_out.wait = lambda pause: waits.append(pause) or len(waits) > 4  # type: ignore[method-assign, func-returns-value]
    return taking, waits


def test_uploads_that_take_longer_are_looked_for_ever_less_often_until_all_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    taking, waits = polled(monkeypatch, given)
    taking.left = 4
    uploaded = taking.upload(cast("Any", "linked"), {"k": "p"}, {"c": "q"}, cast("Any", {"count": "clock"}))
    assert uploaded == ["zero", "one", "two"]
    assert (taking.looks, waits) == (["upload"] * 5, [0.25, 0.5, 1.0, 2.0])
    assert given == [("linked", {"k": "p"}, {"c": "q"}), "released"]


def test_uploads_that_outlast_the_limit_fail_the_checkpoint_and_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    taking, waits = polled(monkeypatch, given)
    taking.left = 9
    with pytest.raises(CheckpointTimeoutError, match="checkpoint 4 was not complete after 700 ms"):
        taking.upload(cast("Any", "linked"), {}, {}, cast("Any", {"count": "clock"}))
    assert (waits, given[1:]) == ([0.25, 0.5, 1.0, 2.0, 2.0], ["released"])


@pytest.mark.parametrize(("seconds", "is_late"), [(0.0, True), (60.0, False)])
def test_only_the_jobs_of_a_late_checkpoint_are_cancelled(seconds: float, is_late: bool) -> None:
    made: list[str] = []
    cancelled = threading.Event()

    def cancel(tag: str) -> None:
        made.append(f"cancel {tag}")
        cancelled.set()
        raise ConnectionError("Spark has ended")

    spark = SimpleNamespace(
        addJobTag=lambda tag: made.append(f"add {tag}"),
        removeJobTag=lambda tag: made.append(f"remove {tag}"),
        cancelJobsWithTag=cancel,
    )
    context = cast("Any", SimpleNamespace(spark=SimpleNamespace(sparkContext=spark), timeout_ms=700))
    taking = module._Taking(context, CheckpointId(4), None, 5)
    expected = CheckpointTimeoutError if is_late else StoreUnavailableError

    def fail() -> None:
        with taking.cancelled_at(time.monotonic() + seconds):
            if is_late:
                assert cancelled.wait(30)
            raise StoreUnavailableError("away")

    with pytest.raises(expected):
        fail()
    between = ["cancel checkpoint-4"] if is_late else []
    assert sorted(made) == sorted(["add checkpoint-4", *between, "remove checkpoint-4"])
    assert made[-1] == "remove checkpoint-4"
    with taking.cancelled_at(time.monotonic() + 60):
        pass
    assert made[-2:] == ["add checkpoint-4", "remove checkpoint-4"]


def test_a_checkpoint_report_has_what_its_subtasks_have_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "now_ms", lambda: 10_500)
    monkeypatch.setattr(module, "added_bytes", lambda stored, *_: [5, 6][: len(stored)])
    monkeypatch.setattr(module, "distinct_bytes", lambda handles: [70 + at for at, _ in enumerate(handles)])

    def part(at: int) -> Any:
        handle = SimpleNamespace(
            subtask=at, key_group_start=4 * at, key_group_end=4 * at + 3, state_size_bytes=20 + at, distinct_files="abc"
        )
        sizes = SimpleNamespace(entries=(3, at), size_bytes=(30, 40 + at), largest=())
        return StoredSubtask(
            OperatorUid("count"), cast("Any", handle), 0, 10_100 + at, 7 + at, 9 + at, 10_300 + at, cast("Any", sizes)
        )

    info = SimpleNamespace(attempt=Attempt(2), max_parallelism=8)
    context = SimpleNamespace(info=info, store=SimpleNamespace(url="file:///store"))
    taking = module._Taking(cast("Any", context), CheckpointId(4), None, 10_000)
    manifest = SimpleNamespace(state_size_bytes=41, path="job/chk-4/manifest.json", batch_id=3)
    report = taking.completed(cast("Any", manifest), [part(1), part(0)], 99)
    assert report == CheckpointReport(
        checkpoint_id=4,
        status=CheckpointStatus.COMPLETED,
        is_savepoint=False,
        savepoint_id=None,
        trigger_timestamp=10_000,
        end_to_end_duration=500,
        latest_ack_timestamp=10_301,
        checkpointed_size=11,
        state_size=41,
        processed_records=99,
        external_path="file:///store/job/chk-4/manifest.json",
        batch_id=3,
        subtasks=[
            SubtaskCheckpointReport(
                operator_uid="count",
                index=at,
                key_group_start=4 * at,
                key_group_end=4 * at + 3,
                status=CheckpointStatus.COMPLETED,
                ack_timestamp=10_300 + at,
                end_to_end_duration=300 + at,
                start_delay=100 + at,
                sync_duration=7 + at,
                async_duration=9 + at,
                checkpointed_size=added,
                state_size=20 + at,
                distinct_size=distinct,
                files=3,
                entries=3 + at,
                key_group_entries=[3, at],
                key_group_bytes=[30, 40 + at],
                largest_key_groups=[],
            )
            for at, added, distinct in ((1, 5, 70), (0, 6, 71))
        ],
    )
    info.max_parallelism = module.KEY_GROUPS_REPORTED_MAX + 1
    many = taking.completed(cast("Any", manifest), [part(1), part(0)], 99)
    assert [(each.key_group_entries, each.key_group_bytes, each.entries) for each in many.subtasks] == [
        ([], [], 4),
        ([], [], 3),
    ]
    assert taking.completed(cast("Any", manifest), [], 0).latest_ack_timestamp == 10_500


@pytest.mark.parametrize("savepoint_id", [None, "mine"])
def test_a_manifest_has_all_that_a_job_continues_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, savepoint_id: str | None
) -> None:
    monkeypatch.setattr(module, "now_ms", lambda: 10_500)
    store, uids = LocalObjectStore(tmp_path), (OperatorUid("one"), OperatorUid("two"))
    declarations = {uid: OperatorDeclaration(key_schema=((uid, "string"),)) for uid in uids}

    def part(uid: OperatorUid, at: int) -> StoredSubtask:
        handle = SnapshotHandle(SubtaskIndex(at), 4 * at, 4 * at + 3, BatchId(3), f"lineage of {uid}", ())
        sizes = SimpleNamespace(entries=(1, at), size_bytes=(5, 6 + at))
        return StoredSubtask(uid, handle, 0, 0, 0, 0, 0, cast("Any", sizes))

    info = SimpleNamespace(
        job_id=JobId("job"), attempt=Attempt(2), max_parallelism=8, hash_id=HashId.JAVA, parallelism=2
    )
    specs = {uid: [SimpleNamespace(index=0), SimpleNamespace(index=1)] for uid in uids}
    context = SimpleNamespace(
        store=store, layout=LAYOUT, info=info, operators=declarations, places=SimpleNamespace(specs=specs)
    )
    time = JobTime({uids[0]: EventTime(7, 6)}, 1, 9)
    counters, rewinds = JobCounters(input_records=4), (Rewind(Attempt(1), BatchId(1)),)
    committed = CommittedState(
        BatchId(3), {}, {"offsets/3": "three"}, {"out": "token"}, 11, time, counters=counters, rewinds=rewinds
    )
    taking = module._Taking(cast("Any", context), CheckpointId(4), savepoint_id, 10_000)
    stored = [part(uid, at) for at in (1, 0) for uid in uids]
    manifest = taking.publish(committed, stored)
    assert read_manifest(store, manifest.path) == manifest
    assert manifest.path == LAYOUT.manifest(CheckpointId(4), savepoint_id)
    assert manifest.positions is not None
    assert recorded_positions(read_positions(store, manifest.positions))["offsets/3"] == "three"
    assert manifest == Manifest(
        job_id=JobId("job"),
        checkpoint_id=CheckpointId(4),
        kind=SnapshotKind.CHECKPOINT if savepoint_id is None else SnapshotKind.SAVEPOINT,
        attempt=Attempt(2),
        batch_id=BatchId(3),
        log_position=11,
        max_parallelism=8,
        hash_id=HashId.JAVA,
        created_at_ms=10_500,
        operators=tuple(
            OperatorSnapshot(
                uid=uid,
                parallelism=2,
                declaration=declarations[uid],
                subtasks=tuple(part(uid, at).handle for at in (0, 1)),
                key_group_entries=(1, 0, 1, 1),
                key_group_bytes=(5, 6, 5, 7),
            )
            for uid in uids
        ),
        positions=manifest.positions,
        sinks={"out": "token"},
        savepoint_id=savepoint_id,
        time=time,
        counters=counters,
        rewinds=rewinds,
    )
    monkeypatch.setattr(module, "KEY_GROUPS_REPORTED_MAX", 3)
    nothing = CommittedState(BatchId(3), {}, {}, {}, 11)
    later = module._Taking(cast("Any", context), CheckpointId(5), None, 10_000).publish(nothing, stored)
    assert (later.positions, later.time, later.rewinds) == (None, UNSET, UNSET)
    assert {each.key_group_entries for each in later.operators} == {UNSET}


def test_an_unfinished_or_failed_checkpoint_is_reported_with_its_time_and_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "now_ms", lambda: 10_500)
    taking = module._Taking(cast("Any", None), CheckpointId(4), "mine", 10_000)
    expected = CheckpointReport(
        checkpoint_id=4,
        status=CheckpointStatus.IN_PROGRESS,
        is_savepoint=True,
        savepoint_id="mine",
        trigger_timestamp=10_000,
        end_to_end_duration=500,
    )
    assert taking.in_progress() == expected
    failure = {"status": CheckpointStatus.FAILED, "failure_message": "STATE_STORE_UNAVAILABLE: away"}
    assert taking.failed(StoreUnavailableError("away")) == expected.model_copy(update=failure)
