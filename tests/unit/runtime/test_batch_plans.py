"""A batch is planned with its offsets or not at all, and whatever Spark has written is planned in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from jobs.runtime.attempt import Journal, OpenAttempt
from jobs.runtime.batch import BatchOutcome
from jobs.runtime.committed import CommittedState
from jobs.runtime.errors import PositionsMissingError
from jobs.runtime.query import BatchLoop
from jobs.runtime.status import DriverStatus
from state.hashing import HashId
from state.identifiers import Attempt, BatchId, JobId
from state.layout import Layout
from state.log import AttemptOpened, BatchPlanned, CommitLog, ResumePoint, resolve
from state.objects.local import LocalObjectStore

if TYPE_CHECKING:
    from pathlib import Path

OPENED = AttemptOpened(Attempt(1), 1, 128, HashId.SPARK, None, 0, {})


class Runner:
    """Takes every batch for done."""

    def __init__(self) -> None:
        self.rehearsals = 0

    def rehearse(self) -> None:
        self.rehearsals += 1

    def run(self, *_: Any, **__: Any) -> BatchOutcome:
        return BatchOutcome({}, {}, 0, 0, {})

    def is_due(self, *_: Any) -> bool:
        return True

    def publish(self, _: Any) -> None:
        """Nothing is staged."""


class Spark:
    """Stands for the query: writes what Spark writes before it calls foreachBatch."""

    def __init__(self, path: Path, *, planned: bool = False) -> None:
        self.path = path / "spark"
        self.log = CommitLog(LocalObjectStore(path / "store"), Layout(JobId("job")))
        self.failures: list[BaseException] = []
        self.runner = Runner()
        journal = Journal(self.log, 1)
        journal.append(OPENED)
        if planned:
            journal.append(BatchPlanned(Attempt(1), BatchId(0), {"offsets/0": "zero"}))
        resume = self.resume()
        self.loop = BatchLoop(
            cast("Any", None),
            cast("Any", self.runner),
            OpenAttempt(Attempt(1), journal, resume, None, resume.positions),
            CommittedState.resumed(resume, {}, resume.positions, journal.last_position),
            directory=self.path,
            status=DriverStatus(),
            on_failure=self.failures.append,
        )
        for name in resume.positions:
            self.write(name, "zero")

    def write(self, name: str, content: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(content)

    def begin(self, batch_id: int) -> None:
        self.loop._run_batch(cast("Any", "frame"), batch_id)

    def resume(self) -> ResumePoint:
        return resolve(None, self.log.read(), JobId("job"))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the loop takes for the time, in seconds; to be moved."""
    seconds = [100.0]
    monkeypatch.setattr("jobs.runtime.query.time.monotonic", lambda: seconds[0])
    return seconds


def test_a_batch_whose_offsets_are_not_there_is_neither_planned_nor_run(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.write("metadata", "of the query")
    with pytest.raises(PositionsMissingError, match="batch 0"):
        spark.begin(0)
    assert [type(failure) for failure in spark.failures] == [PositionsMissingError]
    resume = spark.resume()
    assert (resume.planned, resume.batch_id) == (None, -1)


def test_a_batch_whose_offsets_are_there_is_planned_and_run(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.write("offsets/0", "zero")
    spark.begin(0)
    assert not spark.failures
    assert (spark.resume().positions, spark.resume().batch_id) == ({"offsets/0": "zero"}, 0)


def test_what_spark_writes_while_a_planned_batch_is_run_again_is_in_the_next_plan(tmp_path: Path) -> None:
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


def test_only_input_holds_timers_back_and_not_the_timers_before_them(tmp_path: Path, now: list[float]) -> None:
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


def test_timers_are_rehearsed_when_a_batch_was_committed_and_no_input_comes(tmp_path: Path, now: list[float]) -> None:
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
