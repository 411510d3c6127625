"""Relied on: a join with cached rows keeps subtasks in place.

A failure here means that state moves between executors. That the scheduler follows the cached rows shows with several
executors alone: see tests/integration/spark/test_spark_cluster.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale.jobs.protocol.spark_switches import SPARK_WITHOUT_VARIABLE
from keyscale.jobs.spark_internals.affinity import SUBTASK_COLUMN, PlacementDataset
from tests.support.short_form import short_form
from tests.support.spark.batch_rig import Rig, assert_totals_equal_a_fold, declared, main_job, random_reports
from tests.support.spark.spark_plans import physical_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real

PARALLELISM = 3


@pytest.fixture(params=["", "affinity"], ids=["on", "off"])
def placement(
    spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PlacementDataset]:
    monkeypatch.setenv(SPARK_WITHOUT_VARIABLE, request.param)
    placement = PlacementDataset.create(spark, PARALLELISM)
    yield placement
    placement.release()


def records(spark: SparkSession) -> DataFrame:
    return spark.range(100).withColumn(SUBTASK_COLUMN, (F.col("id") % PARALLELISM).cast("int"))


def test_with_and_without_affinity_a_row_is_in_the_partition_of_its_subtask(
    spark: SparkSession, placement: PlacementDataset
) -> None:
    placed = placement.route(records(spark)).withColumn("partition", F.spark_partition_id()).collect()
    assert sorted(row.id for row in placed) == list(range(100))
    assert all(row["partition"] == row[SUBTASK_COLUMN] for row in placed), "repartitionById goes by other numbers"


def test_with_and_without_affinity_an_empty_frame_has_a_partition_for_each_subtask(
    spark: SparkSession, placement: PlacementDataset
) -> None:
    empty = placement.empty(records(spark).schema)
    assert empty.collect() == []
    assert empty.rdd.getNumPartitions() == PARALLELISM, "Spark sees that the frame is empty, so no task would run"


def test_with_and_without_affinity_each_subtask_has_one_row_of_its_own(placement: PlacementDataset) -> None:
    found = placement.subtasks.mapPartitionsWithIndex(lambda at, rows: [(at, [row[0] for row in rows])]).collect()
    assert found == [(at, [at]) for at in range(PARALLELISM)]


def test_the_join_reads_the_cached_rows_and_moves_no_record_a_second_time(spark: SparkSession) -> None:
    placement = PlacementDataset.create(spark, PARALLELISM)
    placement.subtasks.collect()
    plan = physical_plan(placement.route(records(spark)))
    placement.release()
    before_cache = plan.split("InMemoryRelation")[0]
    assert "InMemoryTableScan" in plan, f"the rows are not cached, so subtasks have no home:\n{plan}"
    assert "ShuffledHashJoin" in plan, f"another join does not hand on where the cached rows are:\n{plan}"
    assert before_cache.count("Exchange") == 1, f"records are shuffled a second time:\n{plan}"


@pytest.mark.parametrize("parallelism", short_form([1, 2], [2]))
def test_without_affinity_batches_give_the_same_results(
    spark: SparkSession, tmp_path: Path, parallelism: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPARK_WITHOUT_VARIABLE, "affinity")
    rig = Rig(spark, tmp_path, declared(spark, tmp_path, main_job), parallelism=parallelism)
    batches = [random_reports(seed, 30) for seed in range(2)]
    for batch in batches:
        rig.run(batch)
    rig.run(None)
    assert_totals_equal_a_fold(rig.output(), batches)
