"""Relied on: Spark's dump of the threads of a JVM.

A failure here means that thread dumps of jobs have no JVMs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.spark_internals.executor_threads import executor_ids, executor_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


def test_the_threads_of_the_drivers_jvm_have_names_and_stacks(spark: SparkSession) -> None:
    assert executor_ids(spark) == ["driver"]
    found = executor_threads(spark, "driver")
    assert '"dag-scheduler-event-loop"' in found
    assert "\tat " in found
    assert not executor_threads(spark, "7"), "no such executor"
