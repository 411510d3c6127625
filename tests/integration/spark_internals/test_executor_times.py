"""Relied on: the store of what Spark's pages show.

A failure here means that the share of garbage collection is unknown, and that no job has it as a reason of its health.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.spark_internals.executor_times import executor_times
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


def test_the_times_grow_with_the_tasks_of_the_session(spark: SparkSession) -> None:
    before = executor_times(spark)
    assert before is not None

    def ratio() -> float | None:
        spark.range(1000).count()
        now = executor_times(spark)
        return None if now is None else now.collection_ratio(before)

    found = wait_until(lambda: [each for each in [ratio()] if each is not None], 30, what="tasks to be counted")
    assert 0 <= found[0] <= 1
