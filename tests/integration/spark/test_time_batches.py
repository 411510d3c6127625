"""Batches of time alone by real operators: through all subtasks, by as little of Spark as possible, and rehearsed."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark import RDD

from keyscale import FileSink, KeyedProcessFunction, TumblingWindows
from keyscale.clock import now_ms
from keyscale.identifiers import SubtaskIndex
from keyscale.jobs.errors import IncompleteReportsError, UserFunctionError
from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.runtime.batch.processing_clock import ProcessingClock
from keyscale.jobs.runtime.executor.task import TasksWithoutRecords
from tests.support.short_form import short_form
from tests.support.spark.batch_rig import (
    PARALLELISM,
    Rig,
    assert_totals_equal_a_fold,
    declared,
    main_job,
    random_reports,
)
from tests.support.spark.spark_plans import physical_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keyscale import DataStream, OnTimerContext, ProcessContext, Row

pytestmark = pytest.mark.real


class Later(KeyedProcessFunction):
    """Emits each record's key when its timer fires, and fails for some."""

    def process_element(self, record: Row, context: ProcessContext) -> None:
        context.timer_service().register_processing_time_timer(record.delay)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Any]:
        if not context.current_key.startswith("N"):
            raise ValueError(context.current_key)
        yield context.current_key, timestamp


class Clock:
    """The time of a driver, which tests set."""

    def __init__(self, at_ms: int = 0) -> None:
        self.at_ms = at_ms

    def of_driver(self) -> ProcessingClock:
        return ProcessingClock(self.at_ms, lambda: self.at_ms, lambda: self.at_ms)


def later_job(reports: DataStream, output: str) -> None:
    later = reports.key_by("aircraft").process(Later(), output={"aircraft": "string", "delay": "bigint"}).uid("later")
    later.sink_to(FileSink(output)).uid("files")


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(spark, tmp_path, declared(spark, tmp_path, main_job))
    yield rig
    rig.placement.release()


def test_a_batch_of_time_alone_shuffles_only_records_between_operators(rig: Rig) -> None:
    for _ in range(2):  # the first one is built, later ones reuse it
        planned = rig.runner._plan("plan", rig.committed, is_at_end=False)
        with rig.runner._frames(None, partial(rig.runner._run_on, planned)) as frames:
            last = frames[rig.topology.sinks[0].input]
            plan = physical_plan(last)
        assert plan.count("InMemoryTableScan") == len(rig.topology.operators) == 2
        assert plan.count("ShuffledHashJoin") == 1


def rows_collected(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Collects the results of all jobs of RDDs and frames from now on."""
    collected: list[list[Any]] = []

    def noted(collect: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
        def collect_and_note(read: Any) -> list[Any]:
            collected.append(collect(read))
            return collected[-1]

        return collect_and_note

    for kind in (RDD, type(rig.placement.frame)):
        monkeypatch.setattr(kind, "collect", noted(kind.collect))
    return collected


def test_a_rehearsal_of_a_batch_of_time_alone_runs_its_plan_but_no_operator(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run(random_reports(1, 50))
    written, committed = rig.output(), rig.committed
    collected = rows_collected(rig, monkeypatch)
    rig.runner._collector.clear()
    rig.runner.rehearse()
    monkeypatch.undo()
    assert [len(rows) for rows in collected] == [PARALLELISM, 0]  # of a checkpoint's job, and of the batch
    assert rig.runner._collector.accumulator.value == []
    assert rig.output() == written
    assert rig.committed == committed
    assert rig.run(None).input_records == 0


def test_a_batch_of_time_alone_goes_through_all_subtasks_and_through_no_transform_before_an_operator(
    spark: SparkSession, tmp_path: Path
) -> None:
    asked: list[DataFrame] = []

    def noted(frame: DataFrame) -> DataFrame:
        asked.append(frame)
        return frame

    def job(reports: DataStream, output: str) -> None:
        main_job(reports.transform(noted), output)

    rig = Rig(spark, tmp_path, declared(spark, tmp_path, job))
    reports = random_reports(1, 50)
    rig.run(reports)
    rig.run(None)
    asked_until_then = len(asked)
    outcome = rig.run(None)
    assert len(asked) == asked_until_then
    assert {uid: len(of_operator) for uid, of_operator in outcome.reports.items()} == {"unique": 2, "totals": 2}
    assert (outcome.input_records, outcome.output_records) == (0, 0)
    assert rig.run(random_reports(2, 50)).input_records == 50
    assert len(asked) == asked_until_then + 1
    assert_totals_equal_a_fold(rig.output(), [reports, random_reports(2, 50)])
    rig.placement.release()


def test_entries_that_have_expired_stay_so_although_the_next_drivers_clock_is_behind(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expires_ms, clock = 86_400_000, Clock()
    rig = Rig(spark, tmp_path, declared(spark, tmp_path, main_job), clock=clock.of_driver())
    rig.run([("r1", "N1", 1)])
    clock.at_ms = expires_ms
    rig.run([("r2", "N1", 1)])
    rig.clock = Clock(expires_ms - 5000).of_driver()
    rig.restart()
    assert rig.run([("r1", "N1", 1)]).output_records == 1
    assert rig.run([("r1", "N1", 1), ("r2", "N1", 1)]).output_records == 0
    assert rig.committed.time.processing_ms == expires_ms
    assert len([each for each in caplog.messages if "is 5 s behind" in each]) == 1
    rig.placement.release()


def dropped_steps(reports: DataStream) -> DataStream:
    """Drops the split's column in steps of each kind."""
    dropped = reports.where("delay >= 0").select("id", "delay").with_column("more", "delay + 1")
    return dropped.transform(lambda frame: frame.select("id", "delay").where("id <> ''"))


def test_records_of_a_split_that_is_behind_are_not_late_because_another_one_is_ahead(
    spark: SparkSession, tmp_path: Path
) -> None:
    def job(reports: DataStream, output: str) -> None:
        for uid, stream, split in (
            ("split", reports, "aircraft"),
            ("dropped", dropped_steps(reports), None),
            ("together", reports, ()),
        ):
            timed = stream.with_timestamps("delay", split=split)
            windows = timed.key_by("id").window(TumblingWindows(10)).reduce(lambda first, _: first).uid(uid)
            windows.sink_to(FileSink(f"{output}-{uid}")).uid(f"files-{uid}")

    rig = Rig(spark, tmp_path, declared(spark, tmp_path, job, split_column="aircraft"))
    late = Counter[str]()
    for batch_number in range(4):
        ahead, behind = 1000 + 100 * batch_number, 10 + 10 * batch_number
        outcome = rig.run([("r1", "ahead", ahead), ("r2", "ahead", ahead + 1), ("r3", "behind", behind)])
        late.update(
            {uid: sum(each.count_of("late_records") for each in reports) for uid, reports in outcome.reports.items()}
        )
    assert late == {"split": 0, "dropped": 0, "together": 2}
    watermarks = {uid: times.watermark_ms for uid, times in rig.committed.time.event_times.items()}
    assert watermarks == {"split": 29, "dropped": 29, "together": 1200}
    rig.placement.release()


@pytest.mark.parametrize("jump_ms", short_form([3_600_000, -3_600_000], [3_600_000]))
def test_a_clock_that_jumps_makes_no_split_idle(spark: SparkSession, tmp_path: Path, jump_ms: int) -> None:
    def job(reports: DataStream, output: str) -> None:
        timed = reports.with_timestamps("delay", split="aircraft", idle_after_ms=600_000)
        windows = timed.key_by("id").window(TumblingWindows(10)).reduce(lambda first, _: first).uid("windows")
        windows.sink_to(FileSink(output)).uid("files")

    host = Clock(now_ms())
    clock = ProcessingClock(host.at_ms, lambda: host.at_ms)
    rig = Rig(spark, tmp_path, declared(spark, tmp_path, job), clock=clock)
    rig.run([("r1", "ahead", 1000), ("r2", "behind", 10)])
    host.at_ms += jump_ms
    for number in (3, 4):
        outcome = rig.run([(f"r{number}", "ahead", 1000 + number)])
    assert outcome.times["windows"].timers_ms == 9
    rig.placement.release()


@pytest.mark.parametrize("parallelism", short_form([1, 2], [2]))
def test_a_batch_of_time_alone_is_one_job_without_a_frame_where_subtasks_write_all_rows_themselves(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    clock = Clock()
    topology = declared(spark, tmp_path, later_job)
    rig = Rig(spark, tmp_path, topology, parallelism=parallelism, clock=clock.of_driver())
    assert rig.run([(f"r{number}", f"N{number}", 1 + number) for number in range(20)]).output_records == 0
    clock.at_ms = 20
    with monkeypatch.context() as patched:
        collected = rows_collected(rig, patched)
        patched.setattr(rig.runner, "_frames", None)
        rig.runner.rehearse()
        outcome = rig.run(None)
    assert [len(results) for results in collected] == [parallelism, parallelism]
    assert (outcome.input_records, outcome.output_records) == (0, 20)
    fired = spark.read.parquet(str(tmp_path / "out" / "batch=1")).collect()
    assert sorted(tuple(row) for row in fired) == sorted((f"N{number}", 1 + number) for number in range(20))
    assert rig.run(None).output_records == 0
    rig.placement.release()


def test_the_error_of_a_failing_timer_has_operator_and_traceback_and_leaves_no_output(
    spark: SparkSession, tmp_path: Path
) -> None:
    clock = Clock()
    rig = Rig(spark, tmp_path, declared(spark, tmp_path, later_job), clock=clock.of_driver())
    rig.run([("r1", "secret", 1), ("r2", "N2", 2)])
    clock.at_ms = 2
    with pytest.raises(UserFunctionError) as failure:
        rig.run(None)
    origin = origin_of(failure.value)
    assert origin.operator_uid == "later"
    assert "in on_timer" in str(origin.user_traceback)
    assert list(tmp_path.glob("out/_staging/*/*/*")) == []
    assert not (tmp_path / "out" / "batch=1").exists()
    rig.placement.release()


def test_rows_without_a_reader_are_refused() -> None:
    class Task:
        info = type("Info", (), {"operator_uid": "later"})

        def run_partition(self, batches: Iterator[Any]) -> Iterator[Any]:
            yield from [*batches, "a row"]

    with pytest.raises(IncompleteReportsError, match="later"):
        TasksWithoutRecords((cast("Any", Task()),))(SubtaskIndex(0))
