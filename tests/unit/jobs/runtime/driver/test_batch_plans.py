"""A batch is planned with its offsets or not at all, and every file that Spark has written is planned in the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.jobs.runtime.batch.batch_outcome import BatchOutcome
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver.attempt import OpenAttempt
from keyscale.jobs.runtime.driver.batch_loop import BatchLoop
from keyscale.jobs.runtime.driver.journal import Journal
from keyscale.jobs.runtime.errors import RunEndedError
from keyscale.jobs.spark_internals.checkpoint_directory import PositionsMissingError
from keyscale.state.documents.log_entries import AttemptOpened, BatchPlanned
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.log.resolution import ResumePoint, resolve
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable

OPENED = AttemptOpened(Attempt(1), 1, 128, HashId.SPARK, None, 0, {})


class Runner:
    """A runner for which every batch is done."""

    def __init__(self) -> None:
        self.rehearsals = 0
        self.fails_to_publish = False
        self.leaves = False

    def rehearse(self) -> None:
        self.rehearsals += 1

    def run(self, *_: Any, **__: Any) -> BatchOutcome:
        if self.leaves:
            raise SystemExit(3)
        return BatchOutcome({}, {}, 0, 0, {})

    def is_due(self, *_: Any, **__: Any) -> bool:
        return True

    def publish(self, _: Any) -> dict[str, float]:
        """Nothing is staged."""
        if self.fails_to_publish:
            raise BrokenPipeError
        return {}


class Query:
    """In place of the streaming query and what starts it: has the functions to which the queries gave their batches."""

    def __init__(self) -> None:
        self.batches: list[Callable[[Any, int], None]] = []
        self.triggers: list[dict[str, Any]] = []

    @property
    def writeStream(self) -> Query:  # noqa: N802 - Spark's name
        return self

    def foreachBatch(self, process: Callable[[Any, int], None]) -> Query:  # noqa: N802 - Spark's name
        self.batches.append(process)
        return self

    def trigger(self, **trigger: Any) -> Query:
        self.triggers.append(trigger)
        return self

    def option(self, name: str, location: str) -> Query:
        assert name == "checkpointLocation"
        self.location = Path(location.removeprefix("file://"))
        return self

    def start(self) -> Query:
        return self


class Spark:
    """In place of the query: writes the files that Spark writes before it calls foreachBatch."""

    def __init__(self, path: Path, *, planned: bool = False) -> None:
        self.path = path / "spark"
        self.log = CommitLog(LocalObjectStore(path / "store"), Layout(JobId("job")))
        self.failures: list[BaseException] = []
        self.runner = Runner()
        self.query = Query()
        journal = Journal(self.log, 1)
        journal.append(OPENED)
        if planned:
            journal.append(BatchPlanned(Attempt(1), BatchId(0), {"offsets/0": "zero"}))
        resume = self.resume()
        self.loop = BatchLoop(
            cast("Any", self.query),
            cast("Any", self.runner),
            OpenAttempt(Attempt(1), journal, resume, None, resume.positions, KeyGroupRanges.of_count(128, 2)),
            CommittedState.resumed(resume, {}, resume.positions, journal.last_position),
            directory=self.path,
            status=DriverStatus(),
            on_failure=self.failures.append,
        )
        self.loop.start()

    def write(self, name: str, content: str) -> None:
        path = self.query.location / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def begin(self, batch_id: int) -> None:
        self.query.batches[-1]("frame", batch_id)

    def resume(self) -> ResumePoint:
        return resolve(None, self.log.read(), JobId("job"))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the loop sees, in seconds; tests set it."""
    seconds = [100.0]
    monkeypatch.setattr("keyscale.jobs.runtime.driver.batch_loop.time.monotonic", lambda: seconds[0])
    return seconds


def test_a_batch_without_offsets_is_neither_planned_nor_run(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.write("metadata", "of the query")
    with pytest.raises(PositionsMissingError, match="batch 0"):
        spark.begin(0)
    assert [type(failure) for failure in spark.failures] == [PositionsMissingError]
    resume = spark.resume()
    assert (resume.planned, resume.batch_id) == (None, -1)


def test_a_batch_with_offsets_is_planned_and_run(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.write("offsets/0", "zero")
    spark.begin(0)
    assert not spark.failures
    assert (spark.resume().positions, spark.resume().batch_id) == ({"offsets/0": "zero"}, 0)


def test_code_that_leaves_the_program_in_a_batch_ends_the_run_and_spark_is_told(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.runner.leaves = True
    spark.write("offsets/0", "zero")
    with pytest.raises(RunEndedError, match="SystemExit was raised"):
        spark.begin(0)
    assert [type(failure) for failure in spark.failures] == [SystemExit]


def test_files_that_spark_writes_while_a_planned_batch_runs_again_are_in_the_next_plan(tmp_path: Path) -> None:
    spark = Spark(tmp_path, planned=True)
    spark.write("sources/1/0", "where a new source begins")
    spark.begin(0)
    assert "sources/1/0" not in spark.resume().positions
    spark.write("offsets/1", "one")
    spark.begin(1)
    assert spark.resume().positions == {
        "offsets/0": "zero",
        "offsets/1": "one",
        "sources/1/0": "where a new source begins",
    }


def test_timers_are_delayed_by_input_but_not_by_earlier_timers(tmp_path: Path, now: list[float]) -> None:
    spark = Spark(tmp_path)
    spark.write("offsets/0", "zero")
    spark.begin(0)
    assert not spark.loop.fire_timers(0.3)
    now[0] += 0.4
    assert spark.loop.fire_timers(0.3)
    assert spark.loop.fire_timers(0.3)
    assert spark.resume().batch_id == 2
    spark.write("offsets/1", "one")
    spark.begin(1)
    assert not spark.loop.fire_timers(0.3)


@pytest.mark.parametrize("of_time", [False, True])
def test_no_batch_of_time_is_committed_after_a_batch_that_was_not_published(tmp_path: Path, *, of_time: bool) -> None:
    spark = Spark(tmp_path)
    spark.runner.fails_to_publish = not of_time
    spark.write("offsets/0", "zero")
    if of_time:
        spark.begin(0)
        spark.runner.fails_to_publish = True
        with pytest.raises(BrokenPipeError):
            spark.loop.fire_timers()
    else:
        with pytest.raises(BrokenPipeError):
            spark.begin(0)
    committed = spark.resume().batch_id
    assert committed == (1 if of_time else 0)
    assert not spark.loop.fire_timers(), "only the batch committed last is published again by the next run"
    spark.write("offsets/1", "one")
    with pytest.raises(RunEndedError):
        spark.begin(1)
    assert spark.resume().batch_id == committed
    assert [type(failure) for failure in spark.failures] == [BrokenPipeError]


def test_timers_are_rehearsed_after_a_commit_when_there_is_no_input(tmp_path: Path, now: list[float]) -> None:
    spark = Spark(tmp_path)
    now[0] += 1
    assert not spark.loop.rehearse_timers(0.3)
    spark.write("offsets/0", "zero")
    spark.begin(0)
    assert not spark.loop.rehearse_timers(0.3)
    assert spark.runner.rehearsals == 0
    now[0] += 0.4
    assert spark.loop.rehearse_timers(0.3)
    assert spark.runner.rehearsals == 1
    assert spark.resume().batch_id == 0


def test_a_query_begins_batches_by_the_interval_of_that_moment_to_the_millisecond_unless_it_drains(
    tmp_path: Path,
) -> None:
    spark = Spark(tmp_path)
    for interval_ms in (0, 1, 1500):
        spark.loop.batch_interval_ms = interval_ms
        spark.loop.start()
    spark.loop.start(until_present_end=True)
    assert spark.query.triggers == [
        {"processingTime": "1 milliseconds"},
        {"processingTime": "1500 milliseconds"},
        {"availableNow": True},
    ]


def test_a_query_that_drains_goes_on_after_the_last_batch_and_takes_over_from_the_one_before(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.write("offsets/0", 'v1\n{"batchWatermarkMs":0}\nzero')
    spark.begin(0)
    spark.loop.start(until_present_end=True)
    assert spark.query.triggers == [{"availableNow": True}]
    written = {path.relative_to(spark.query.location).as_posix() for path in spark.query.location.glob("*/*")}
    assert written == {"offsets/0", "commits/0"}, "Spark would run the committed batch again"
    replaced, _ = spark.query.batches
    with pytest.raises(RunEndedError):
        replaced("frame", 1)
    assert not spark.failures, "the refused batch ended the run"
    spark.write("offsets/1", "one")
    spark.begin(1)
    assert spark.resume().batch_id == 1


def test_no_query_starts_once_the_run_has_ended(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.loop.halt()
    with pytest.raises(RunEndedError):
        spark.loop.start(until_present_end=True)
