"""Relied on: the number of concurrent tasks, and the number of parts that Spark splits files into.

A failure here means that rescales take a new driver, or that batches have as many tasks as a driver has spare slots.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from keyscale.jobs.spark_internals.task_slots import parallelism_of_slots, split_sources_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

SPLITS = "spark.sql.leafNodeDefaultParallelism"


def test_a_local_spark_leaves_a_slot_for_the_source(spark: SparkSession) -> None:
    assert parallelism_of_slots(spark) == max(1, spark.sparkContext.defaultParallelism - 1)


def test_sources_are_split_as_for_a_parallelism(spark: SparkSession) -> None:
    session = spark.newSession()
    split_sources_for(session, 6)
    rows = ", ".join(f"({number})" for number in range(20))
    assert session.sql(f"SELECT * FROM VALUES {rows}").rdd.getNumPartitions() == 7  # noqa: S608 - of numbers
    assert spark.conf.get(SPLITS, None) is None, "other sessions keep their own"


def test_a_spark_that_does_not_say_has_no_known_slots() -> None:
    assert parallelism_of_slots(cast("SparkSession", SimpleNamespace())) is None
