"""Each pool has Python workers of its own, and a pool's functions leave the environment of other functions alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.spark_internals.worker_pools import environment_of, in_pool, use_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


def process(_: Iterator[int]) -> Iterator[int]:
    yield os.getpid()


def test_each_pool_has_workers_of_its_own(spark: SparkSession) -> None:
    context, numbers = spark.sparkContext, spark.sparkContext.parallelize(range(2), 2)
    before = dict(context.environment)
    own, others = ({*in_pool(numbers.mapPartitions(process), pool).collect()} for pool in (0, 1))
    assert own.isdisjoint(others)
    assert context.environment == before
    use_pool(context, 1)
    assert {*numbers.mapPartitions(process).collect()} & others
    use_pool(context, 0)
    assert {*numbers.mapPartitions(process).collect()} & own
    assert context.environment == before


def test_a_pool_keeps_all_other_variables() -> None:
    given = {"PYTHONPATH": "libraries"}
    other = environment_of(given, 1)
    assert (other["PYTHONPATH"], len(other)) == ("libraries", 2)
    assert environment_of(other, 0) == given == {"PYTHONPATH": "libraries"}
