"""Relied on: Spark's Python daemon.

A failure here means that no Python worker starts, that workers exchange nothing, or that each imports for itself.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import psutil
import pyspark.daemon
import pytest

from keyscale.jobs.protocol.spark_settings import REQUIRED_SETTINGS
from tests.support.drivers.driver_process import command_line
from tests.support.spark.python_workers import kill_python_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

MODULE = REQUIRED_SETTINGS["spark.python.daemon.module"]


def test_the_daemon_runs_each_task_by_a_function_of_its_module_that_can_be_replaced() -> None:
    parameters = list(inspect.signature(pyspark.daemon.worker).parameters)
    assert parameters == ["sock", "authenticated"], "the daemon hands other things to its workers"
    assert "worker" in pyspark.daemon.manager.__code__.co_names, "manager() no longer calls worker() by its name"


def test_spark_starts_the_daemon_that_is_set(spark: SparkSession) -> None:
    spark.sparkContext.parallelize([1], 1).foreach(lambda _: None)
    commands = [command_line(process) for process in psutil.Process().children(recursive=True)]
    assert any(MODULE in command for command in commands), f"no process runs {MODULE}: {commands}"


def test_workers_inherit_modules_that_are_no_garbage(spark: SparkSession) -> None:
    def inherited(_: int) -> tuple[bool, bool]:
        import gc  # noqa: PLC0415 - in the worker
        import sys  # noqa: PLC0415 - in the worker

        return "keyscale.jobs.runtime.executor.task" in sys.modules, gc.get_freeze_count() > 10_000

    kill_python_workers()  # idle workers of other tests may have imported it themselves
    assert spark.sparkContext.parallelize([1], 1).map(inherited).collect() == [(True, True)]
