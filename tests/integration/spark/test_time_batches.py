"""Batches of time alone, by real operators: through all subtasks, with no more of Spark than they need, and rehearsed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from state.identifiers import BatchId
from state.job_time import JobTime
from tests.support.batch_rig import PARALLELISM, Rig, assert_totals_equal_a_fold, declared, main_job, random_reports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from jobs import DataStream

pytestmark = pytest.mark.spark


@pytest.fixture
def rig(spark: SparkSession, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(spark, tmp_path, declared(spark, tmp_path, main_job))
    yield rig
    rig.anchor.release()


def test_a_batch_of_time_alone_shuffles_only_what_operators_give_to_operators(rig: Rig) -> None:
    for _ in range(2):  # the first one is put together, those after it are not
        planned = rig.runner._plan("plan", BatchId(0), rig.committed.starts, JobTime(), {})
        with rig.runner._frames(None, partial(rig.runner._run_on, planned)) as frames:
            last = frames[rig.topology.sinks[0].input]
            plan = last._jdf.queryExecution().executedPlan().toString()
        assert plan.count("InMemoryTableScan") == len(rig.topology.operators) == 2
        assert plan.count("ShuffledHashJoin") == 1


def test_a_rehearsal_of_a_batch_of_time_alone_runs_its_plan_but_no_operator(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run(random_reports(1, 50))
    written, committed = rig.output(), rig.committed
    collected: list[list[Any]] = []
    collect = type(rig.anchor.frame).collect

    def noted(frame: DataFrame) -> list[Any]:
        collected.append(collect(frame))
        return collected[-1]

    monkeypatch.setattr(type(rig.anchor.frame), "collect", noted)
    rig.runner._collector.clear()
    rig.runner.rehearse()
    monkeypatch.undo()
    assert [len(rows) for rows in collected] == [PARALLELISM, 0]  # those of a checkpoint's job, and those of the batch
    assert rig.runner._collector.accumulator.value == []
    assert rig.output() == written
    assert rig.committed == committed
    assert rig.run(None).input_records == 0


def test_a_batch_of_time_alone_goes_through_all_subtasks_and_asks_no_transform_before_an_operator(
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
    rig.anchor.release()
