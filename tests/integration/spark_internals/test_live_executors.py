"""Relied on: Spark's list of executors, and its dump of the threads of a JVM.

A failure here means that thread dumps of jobs have no JVMs, and that the logs of executors are not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.spark_internals.live_executors import DRIVER, executor_threads, live_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


def test_the_drivers_jvm_has_threads_with_names_and_stacks_and_no_log_pages(spark: SparkSession) -> None:
    (driver,) = live_executors(spark)
    assert (driver.id, driver.logs) == (DRIVER, {})
    assert driver.address.rpartition(":")[2].isdecimal()
    found = executor_threads(spark, DRIVER)
    assert '"dag-scheduler-event-loop"' in found
    assert "\tat " in found
    assert not executor_threads(spark, "7"), "no such executor"
