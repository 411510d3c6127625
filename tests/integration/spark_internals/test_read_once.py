"""Relied on: the names of the nodes of Spark's optimised plan.

A failure here means that a step's input is cached without need, or that batches with such a step fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as usual in PySpark

from keyscale.jobs.spark_internals.read_once import reads_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real

SCHEMA = "id bigint, name string, numbers array<int>"


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


@pytest.mark.parametrize(
    "step",
    [
        lambda frame: frame,
        lambda frame: frame.selectExpr("id + 1 AS id"),
        lambda frame: frame.where("1 = 0"),  # stays in the plan: see the excluded rules
        lambda frame: frame.select(F.lit(1)),
        lambda frame: frame.where("id > 1").withColumn("x", F.explode("numbers")),
        lambda frame: frame.withColumn("x", F.udf(lambda name: name)("name")),
        lambda frame: frame.mapInArrow(same, SCHEMA),
        lambda frame: frame.repartition(3),
        lambda frame: frame.repartition(3, "id").sortWithinPartitions("name"),
        lambda frame: frame.dropDuplicates(["id"]),
        lambda frame: frame.groupBy("id").count(),
        lambda frame: frame.withColumn("x", F.row_number().over(Window.partitionBy("id").orderBy("name"))),
    ],
)
def test_a_step_that_reads_all_partitions_once_is_known(
    spark: SparkSession, step: Callable[[DataFrame], DataFrame]
) -> None:
    assert reads_once(step(spark.createDataFrame([], SCHEMA)))


@pytest.mark.parametrize(
    "step",
    [
        lambda frame: frame.limit(3),
        lambda frame: frame.limit(0),
        lambda frame: frame.offset(3),
        lambda frame: frame.orderBy("id").select("id"),
        lambda frame: frame.coalesce(1),
        lambda frame: frame.repartitionByRange(3, "id"),
        lambda frame: frame.union(frame),
        lambda frame: frame.join(frame.select("id"), "id"),
        lambda frame: frame.select(F.expr("1 / 0")),
    ],
)
def test_a_step_that_reads_some_partitions_not_or_twice_or_several_in_one_task_is_known(
    spark: SparkSession, step: Callable[[DataFrame], DataFrame]
) -> None:
    assert not reads_once(step(spark.createDataFrame([], SCHEMA)))


def test_without_a_plan_the_safe_way_is_taken() -> None:
    class Connected:
        """A frame of Spark Connect has no reference into the JVM."""

    assert not reads_once(Connected())  # type: ignore[arg-type]
