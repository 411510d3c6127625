"""What a batch did reaches its commit record and the driver's status, and its output is published after its commit."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import structs

from keyscale.identifiers import Attempt, BatchId, JobId, OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.batch.batch_outcome import BatchOutcome
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver import batch_loop
from keyscale.jobs.runtime.driver.attempt import OpenAttempt
from keyscale.jobs.runtime.driver.backlog import Reached
from keyscale.jobs.runtime.driver.batch_loop import BatchLoop
from keyscale.jobs.runtime.driver.journal import Journal
from keyscale.jobs.runtime.errors import BatchOrderError, CheckpointNotBegunError, RunEndedError
from keyscale.jobs.runtime.executor.task import BatchTime
from keyscale.jobs.runtime.executor.task_reports import TaskReport
from keyscale.metrics import BATCH_PARTS, GAUGE
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog, FencedError
from keyscale.state.log.resolution import resolve
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.restore.opened_shards import StateSource
from keyscale.user_series import UserSeries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SINK, COUNTS = OperatorUid("sink"), OperatorUid("counts")
LATEST_MS, WATERMARK_MS, PROCESSING_MS = 1000, 900, 5000
LATER = 1e9
"""A deadline that no test reaches, in seconds of the monotonic clock."""


def opened(attempt: int) -> AttemptOpened:
    return AttemptOpened(Attempt(attempt), 1, 128, HashId.SPARK, None, 0, {})


class Runner:
    """A runner whose batches read ten records, emit three and put one row aside; it notes what it was told."""

    def __init__(self, log: CommitLog) -> None:
        self.calls: list[str] = []
        self.has_due_timers = True
        self._log = log

    def run(self, frame: Any, committed: CommittedState, *, is_at_end: bool) -> BatchOutcome:
        self.calls.append(f"run {frame} after {committed.batch_id}" + (" at the end" if is_at_end else ""))
        records = 10 if frame is not None else 0
        report = TaskReport(
            "run",
            COUNTS,
            SubtaskIndex(0),
            read_records=records,
            latest_event_ms=LATEST_MS,
            executor="host",
            source=StateSource.REBUILT,
        )
        return BatchOutcome(
            {},
            {SINK: f"token-{committed.batch_id + 1}"},
            records,
            3,
            {COUNTS: (report,)},
            {COUNTS: BatchTime(PROCESSING_MS, timers_ms=WATERMARK_MS)},
            dead_letters={SINK: 1},
        )

    def is_due(self, *_: Any, **__: Any) -> bool:
        return self.has_due_timers

    def publish(self, sinks: dict[OperatorUid, str]) -> dict[OperatorUid, float]:
        [*_, (_, last)] = self._log.read()
        assert isinstance(last, BatchCommitted), "output is published after its commit"
        self.calls.append(f"publish {sinks[SINK]}")
        return {SINK: 8000.0}

    def discard(self, sinks: dict[OperatorUid, str]) -> None:
        self.calls.append(f"discard {sinks[SINK]}")


class Job:
    """A loop whose batches a test begins as Spark does."""

    def __init__(self, path: Path, *, planned: bool = False, positions: dict[str, str] | None = None) -> None:
        self.path = path / "spark"
        self.log = CommitLog(LocalObjectStore(path / "store"), Layout(JobId("job")))
        self.runner = Runner(self.log)
        self.status = DriverStatus()
        self.failures: list[BaseException] = []
        journal = Journal(self.log, 1)
        journal.append(opened(1))
        if planned:
            journal.append(BatchPlanned(Attempt(1), BatchId(0), {"offsets/0": "zero"}))
        resume = resolve(None, self.log.read(), JobId("job"))
        self.loop = BatchLoop(
            cast("Any", None),
            cast("Any", self.runner),
            OpenAttempt(Attempt(1), journal, resume, None, resume.positions, KeyGroupRanges.of_count(128, 2)),
            CommittedState.resumed(resume, {}, resume.positions, journal.last_position),
            directory=self.path,
            status=self.status,
            on_failure=self.failures.append,
            positions=positions,
        )

    def begin(self, number: int, offsets: str = "v1") -> None:
        """Runs a batch of Spark."""
        self.write(f"offsets/{number}", offsets)
        self.loop._run_batch(cast("Any", "frame"), number, 0)

    def write(self, name: str, content: str) -> None:
        """Writes a file of Spark's checkpoint directory."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def commits(self) -> list[BatchCommitted]:
        return [entry for _, entry in self.log.read() if isinstance(entry, BatchCommitted)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_commit_record_and_the_status_have_the_numbers_of_the_batch(job: Job) -> None:
    job.begin(0)
    job.begin(1)
    first, second = job.commits()
    assert (first.batch_id, first.input_records, first.output_records, first.sinks) == (0, 10, 3, {"sink": "token-0"})
    assert first.counters == JobCounters(input_records=10, output_records=3, dead_letters=1)
    assert second.counters == JobCounters(input_records=20, output_records=6, dead_letters=2)
    assert [(commit.attempt, commit.time.time_batches) for commit in (first, second)] == [(1, 0), (1, 0)]
    assert second.time == JobTime({COUNTS: EventTime(LATEST_MS, WATERMARK_MS)}, processing_ms=PROCESSING_MS)
    beat = job.status.heartbeat()
    assert beat.first_commit is not None
    assert beat.last_commit is not None
    assert (beat.first_commit.batch_id, beat.last_commit.batch_id) == (0, 1)
    assert (beat.first_commit.at_ms, beat.last_commit.at_ms) == (first.committed_at_ms, second.committed_at_ms)
    metrics = beat.metrics
    assert (metrics.input_records, metrics.output_records, metrics.input_batches) == (20, 6, 2)
    assert metrics.counters is not None
    assert (
        metrics.counters.model_dump().items()
        >= {
            "input_records": 20,
            "output_records": 6,
            "late_records": 0,
            "dead_letters": 2,
        }.items()
    )
    assert [sink.dead_letters for sink in metrics.sinks] == [2]
    (operator,) = metrics.operators
    assert (operator.read_records, operator.watermark_ms) == (20, WATERMARK_MS)
    assert operator.watermark_lag_ms == second.committed_at_ms - WATERMARK_MS
    assert operator.event_time_lag_ms == second.committed_at_ms - LATEST_MS
    assert (metrics.subtask_runs, metrics.subtask_runs_rebuilt, metrics.subtask_runs_moved) == (2, 2, 0)
    assert job.runner.calls == ["run frame after -1", "publish token-0", "run frame after 0", "publish token-1"]


def test_a_batch_of_time_is_committed_without_input_and_at_the_end_is_told_so(job: Job) -> None:
    assert not job.loop.fire_timers(), "before the first batch there are no timers"
    job.begin(0)
    assert job.loop.fire_timers()
    assert job.loop.fire_timers(is_at_end=True)
    assert job.runner.calls[2::2] == ["run None after 0", "run None after 1 at the end"]
    metrics = job.status.heartbeat().metrics
    assert (metrics.batches, metrics.input_batches, metrics.input_records) == (3, 1, 10)
    assert [commit.batch_id for commit in job.commits()] == [0, 1, 2]
    job.begin(1)
    assert job.commits()[-1].batch_id == 3, "Spark's numbers lag behind"


def test_no_batch_of_time_runs_when_no_timer_is_due_or_the_loop_is_busy_or_halted(job: Job) -> None:
    job.begin(0)
    assert not job.loop.fire_timers(idle_seconds=3600.0)
    with job.loop.paused(LATER):
        assert not job.loop.fire_timers()
    job.runner.has_due_timers = False
    assert not job.loop.fire_timers()
    job.runner.has_due_timers = True
    job.loop.halt()
    assert not job.loop.fire_timers()
    assert len(job.commits()) == 1


def test_a_batch_planned_by_an_earlier_attempt_comes_before_timers_and_checkpoints(tmp_path: Path) -> None:
    job = Job(tmp_path, planned=True)
    assert not job.loop.fire_timers(wait=True)
    with pytest.raises(CheckpointNotBegunError), job.loop.paused(0.0):
        raise AssertionError("a checkpoint would lose the plan")
    job.begin(0)
    assert sum(isinstance(entry, BatchPlanned) for _, entry in job.log.read()) == 1, "its plan is in the log already"
    with job.loop.paused(LATER) as committed:
        assert committed.batch_id == 0
    assert job.loop.fire_timers()


def test_output_of_a_fenced_batch_is_discarded_and_not_published(job: Job) -> None:
    job.begin(0)
    run = job.runner.run

    def overtaken(*arguments: Any, **named: Any) -> BatchOutcome:
        position = job.log.read()[-1][0]
        job.log.append(position + 1, opened(2))
        return run(*arguments, **named)

    job.runner.run = overtaken  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        job.begin(1)
    assert job.runner.calls[-1] == "discard token-1"
    assert [type(failure) for failure in job.failures] == [FencedError]
    assert job.status.commits == 1


def test_batches_of_spark_come_in_their_order(job: Job) -> None:
    job.begin(0)
    with pytest.raises(BatchOrderError):
        job.begin(2)
    with pytest.raises(RunEndedError):
        job.begin(1)
    assert len(job.failures) == 1, "the run ends with its first failure"


def test_a_pause_of_a_run_that_has_ended_and_a_pause_during_a_batch_are_refused_in_their_own_way(job: Job) -> None:
    with (
        job.loop.paused(LATER),
        pytest.raises(CheckpointNotBegunError),
        job.loop.paused(0.0),
    ):
        raise AssertionError("two pauses at once")
    job.loop.halt()
    with pytest.raises(RunEndedError), job.loop.paused(LATER):
        raise AssertionError("nothing is committed any more")


def test_a_newer_attempt_is_seen_between_batches_and_no_look_waits_for_a_batch(job: Job) -> None:
    job.begin(0)
    found = [job.loop.is_overtaken()]
    another = CommitLog(LocalObjectStore(job.path.parent / "store"), Layout(JobId("job")))
    another.append(another.read()[-1][0] + 1, opened(2))
    looking = threading.Thread(target=lambda: found.append(job.loop.is_overtaken()), daemon=True)
    with job.loop.paused(LATER):
        looking.start()
        looking.join(60)
        assert found == [False, False]
    assert job.loop.is_overtaken()


def test_a_plan_has_only_the_additions_of_a_compacted_source_log(job: Job) -> None:
    for number, name, content in ((0, "0", "v1\na"), (1, "1.compact", "v1\na\nb")):
        job.write(f"sources/0/{name}", content)
        job.begin(number)
    plans = [entry.positions for _, entry in job.log.read() if isinstance(entry, BatchPlanned)]
    assert [sorted(plan) for plan in plans] == [
        ["offsets/0", "sources/0/0"],
        ["offsets/1", "sources/0/1.compact.added"],
    ]
    assert plans[1]["sources/0/1.compact.added"] == "v1\nb"


def test_a_file_that_the_attempt_adds_to_its_positions_is_in_the_first_plan_alone(tmp_path: Path) -> None:
    job = Job(tmp_path, positions={"kinds": "of the sources"})
    for number in range(3):
        job.begin(number)
    plans = [entry.positions for _, entry in job.log.read() if isinstance(entry, BatchPlanned)]
    assert [sorted(plan) for plan in plans] == [["kinds", "offsets/0"], ["offsets/1"], ["offsets/2"]]
    assert job.loop.reached().files["kinds"] == "of the sources"


class Time:
    """Stands for the module `time`: its clocks go on only when told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def pass_before(self, seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that takes some seconds longer than `call`."""

        def slow(*arguments: Any, **named: Any) -> Any:
            self.seconds += seconds
            return call(*arguments, **named)

        return slow


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    played = Time()
    clocks = dict.fromkeys(("monotonic", "perf_counter"), lambda: played.seconds)
    monkeypatch.setattr(batch_loop, "time", SimpleNamespace(**clocks))
    return played


def test_each_part_of_a_batch_is_timed_on_its_own(time: Time, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.loop, "_plan", time.pass_before(1.0, job.loop._plan))
    monkeypatch.setattr(job.runner, "run", time.pass_before(2.0, job.runner.run))
    monkeypatch.setattr(job.loop, "_commit", time.pass_before(4.0, job.loop._commit))
    monkeypatch.setattr(job.runner, "publish", time.pass_before(8.0, job.runner.publish))
    time.seconds += 16.0
    job.begin(0)
    metrics = job.status.heartbeat().metrics
    assert metrics.batch_duration_ms == 6000
    assert {part.name: getattr(metrics, f"batch_{part.name}") for part in BATCH_PARTS} == {
        "wait_ms": 16_000,
        "plan_ms": 1000,
        "spark_ms": 2000,
        "function_ms": 0,
        "state_ms": 0,
        "store_ms": 0,
        "sink_ms": 0,
        "append_ms": 4000,
        "publish_ms": 8000,
    }
    assert [(sink.uid, sink.write_ms) for sink in metrics.sinks] == [(SINK, 8000)]


def test_the_time_in_which_spark_prepared_a_batch_is_no_waiting_for_input(
    time: Time, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_loop, "now_ms", lambda: 50_000)
    time.seconds += 30.0
    job.begin(0, 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":21000}\n{"end":1}')
    (batch,) = job.status.heartbeat().metrics.recent_batches
    assert (batch.wait_ms, batch.spark_ms) == (1000, 29_000)


def test_a_job_is_idle_when_its_last_batch_with_input_is_long_ago(time: Time, job: Job) -> None:
    time.seconds += 60.0
    job.begin(0)
    time.seconds += 9.0
    assert not job.loop.fire_timers(10.0)
    time.seconds += 1.0
    assert job.loop.fire_timers(10.0)
    assert job.loop.fire_timers(10.0), "a batch of time alone is no input"


def test_what_sinks_take_and_what_hosts_and_users_measure_is_told_with_the_batch(
    time: Time, job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, gauge = job.runner.run, UserSeries("counts", "age", GAUGE, {}, (7,))

    def run_with_times(*given: Any, **named: Any) -> BatchOutcome:
        found = run(*given, **named)
        (report,) = found.reports[COUNTS]
        told = structs.replace(report, user_series=(gauge,), user_help={"age": "of a session"})
        return replace(found, reports={COUNTS: (told,)}, sink_ms={SINK: 400.0}, waited_ms=300.0)

    monkeypatch.setattr(job.runner, "run", time.pass_before(2.0, run_with_times))
    measured = iter([{"process_ms": 5}, {}, {"process_ms": 9}])
    monkeypatch.setattr(job.loop, "_measure", lambda: next(measured))
    caplog.set_level("INFO")
    shown = []
    for number in range(3):
        job.begin(number)
        metrics = job.status.heartbeat().metrics
        shown.append(metrics.process_ms)
    assert shown == [5, 5, 9], "hosts are measured after a batch, and not after each"
    assert [batch.sink_ms for batch in metrics.recent_batches] == [700, 700, 700]
    assert [(sink.uid, sink.write_ms) for sink in metrics.sinks] == [(SINK, 8400.0)]
    assert [(series.name, series.values) for series in metrics.user_gauges] == [("age", [7])]
    assert metrics.user_help == {"age": "of a session"}
    moves = [f"batch {number}: counts[0] runs on host; its state is {StateSource.REBUILT.value}" for number in range(3)]
    assert caplog.messages == [moves[0], "first commit: batch 0 after 2000 ms", *moves[1:]]


def test_how_far_the_job_has_read_is_that_of_its_committed_batches(job: Job) -> None:
    assert job.loop.reached() == Reached({}, -1)
    job.begin(0, "v1\nzero")
    assert job.loop.reached() == Reached({"offsets/0": "v1\nzero"}, 0)
    assert job.loop.fire_timers()
    assert job.loop.reached().batch == 0, "Spark's own number"
    assert job.loop.committed.batch_id == 1


def test_a_stop_ends_the_wait_of_a_checkpoint_for_a_planned_batch(tmp_path: Path) -> None:
    job = Job(tmp_path, planned=True)
    job.loop.refuse()
    with pytest.raises(RunEndedError), job.loop.paused(LATER):
        raise AssertionError("the run has ended")
    with pytest.raises(RunEndedError, match="the run has ended"):
        job.begin(0)
    assert (job.runner.calls, job.failures) == ([], [])


def test_a_failed_batch_ends_the_loop_and_is_told_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("of the function")

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    job.begin(0)
    monkeypatch.setattr(job.runner, "run", fail)
    with pytest.raises(ValueError, match="of the function"):
        job.begin(1)
    assert job.failures == [error]
    with pytest.raises(RunEndedError):
        job.begin(1)
    assert (job.failures, len(job.commits()), job.loop.committed.batch_id) == ([error], 1, 0)
    assert not job.loop.fire_timers()


def test_a_new_base_is_taken_between_batches_and_of_several_the_newest(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    based: list[str] = []
    rebased = CommittedState.rebased

    def noted(state: CommittedState, manifest: Any) -> CommittedState:
        based.append(f"{manifest.name} after {state.batch_id}")
        return rebased(state, manifest)

    monkeypatch.setattr(CommittedState, "rebased", noted)

    def base(name: str) -> None:
        job.loop.rebase(cast("Any", SimpleNamespace(name=name, operators=())))

    base("first")
    base("second")
    assert based == []
    job.begin(0)
    assert based == ["second after -1"]
    base("third")
    assert job.loop.fire_timers()
    base("fourth")
    with job.loop.paused(LATER):
        assert based[1:] == ["third after 0", "fourth after 1"]
    base("fifth")
    job.loop.wait_until_rebased()
    job.loop.wait_until_rebased()
    assert based[3:] == ["fifth after 1"]


def test_a_query_that_starts_has_waited_for_no_input_before(
    time: Time, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[Callable[[Any, int], None]] = []
    query = SimpleNamespace(start=lambda: "query")
    writer = SimpleNamespace(option=lambda *_: query)
    frame = SimpleNamespace(foreachBatch=lambda run: batches.append(run) or writer)
    monkeypatch.setattr(job.loop, "_frame", SimpleNamespace(writeStream=frame))
    time.seconds += 50.0
    assert job.loop.start() == cast("Any", "query")
    time.seconds += 3.0
    job.write("offsets/0", "v1")
    batches[0]("frame", 0)
    (batch,) = job.status.heartbeat().metrics.recent_batches
    assert (batch.wait_ms, job.runner.calls[0]) == (3000, "run frame after -1")


def test_a_batch_of_spark_without_records_is_a_batch_with_input(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    run = job.runner.run
    monkeypatch.setattr(job.runner, "run", lambda *given, **named: replace(run(*given, **named), input_records=0))
    job.begin(0)
    metrics = job.status.heartbeat().metrics
    assert (metrics.batches, metrics.input_batches, metrics.input_records) == (1, 1, 0)
    assert job.status.has_looked_for_input
