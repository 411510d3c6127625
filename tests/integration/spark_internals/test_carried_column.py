"""Relied on: the nodes of Spark's analysed plan, which pass on a column or are made again with it.

A failure here means that a source has one watermark, and not one per split, once its split columns are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as usual in PySpark

from keyscale.jobs.operators.operator_contract import SPLIT_COLUMN
from keyscale.jobs.operators.split_name import split_name
from keyscale.jobs.sources.carried_split import with_split_of_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real

SCHEMA = "value string, topic string, number int"


def source(spark: SparkSession) -> DataFrame:
    rows = [('{"a": 1}', "t", 0), ('{"a": 2}', "t\\/u", 1), ('{"a": 3}', None, 1)]
    frame = spark.createDataFrame(rows, SCHEMA)
    return frame.withMetadata("topic", {"keyscale.split": [0, 2]}).withMetadata("number", {"keyscale.split": [1, 2]})


@pytest.mark.parametrize(
    "steps",
    [
        lambda frame: (
            frame.selectExpr("CAST(value AS STRING) AS json")
            .select(F.from_json("json", "a int").alias("record"))
            .select("record.*")
            .where("a > 0")
        ),
        lambda frame: (
            frame.select(F.explode(F.array("value")).alias("json"), F.lit("mine").alias("topic"))
            .withColumn("a", F.get_json_object("json", "$.a").cast("int"))
            .drop("json", "topic")
        ),
        lambda frame: (
            frame.withColumnRenamed("topic", "place")
            .repartition(2)
            .select(F.get_json_object("value", "$.a").cast("int").alias("a"))
            .alias("records")
        ),
    ],
)
def test_steps_carry_the_split_that_they_drop(spark: SparkSession, steps: Callable[[DataFrame], DataFrame]) -> None:
    frame = steps(source(spark))
    found = with_split_of_source(frame)
    assert found is not None
    carried, names = found
    assert len(names) == 2
    assert carried.columns == [*frame.columns, SPLIT_COLUMN]
    splits = [split_name(values) for values in (("t", 0), ("t\\/u", 1), (None, 1))]
    assert sorted(carried.collect()) == list(enumerate(splits, start=1))


@pytest.mark.parametrize(
    "steps",
    [
        lambda frame: frame.groupBy("value").count(),
        lambda frame: frame.select("value").union(frame.select("value")),
        lambda frame: frame.select("value").distinct(),
    ],
)
def test_steps_over_several_records_carry_no_split(
    spark: SparkSession, steps: Callable[[DataFrame], DataFrame]
) -> None:
    assert with_split_of_source(steps(source(spark))) is None


def test_a_source_without_splits_has_none_to_carry(spark: SparkSession) -> None:
    assert with_split_of_source(spark.createDataFrame([("a", "t", 0)], SCHEMA).select("value")) is None
