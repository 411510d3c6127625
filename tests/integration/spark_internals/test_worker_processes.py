"""Relied on: executor, daemon and workers are a family of processes.

A failure here means that executors have wrong names.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from keyscale.jobs.spark_internals.worker_processes import executor_name, parent_of_workers, settle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

IMPORTS_LATER = """
import gc
from keyscale.jobs.spark_internals.worker_processes import settle
settle()
first = gc.get_freeze_count()
settle()
assert gc.get_freeze_count() == first, "collecting takes as long as a small batch"
import pyarrow
settle()
assert gc.get_freeze_count() > first
"""


def family(_: Iterable[int]) -> list[tuple[str, int, int]]:
    settle()
    return [(executor_name(), parent_of_workers(), os.getpid())]


def test_all_workers_of_an_executor_have_one_parent_and_the_executor_is_its_parent(spark: SparkSession) -> None:
    seen = spark.sparkContext.parallelize(range(8), 8).mapPartitions(family).collect()
    [(name, parent)] = {(name, parent) for name, parent, _ in seen}
    executor = psutil.Process(parent).parent()
    assert executor is not None
    assert executor.name() == "java", "the parent of the workers' parent is no JVM"
    assert name == f"{platform.node()}/{executor.pid}"


def test_modules_that_a_worker_imports_later_are_hidden_from_the_garbage_collector_too() -> None:
    child = subprocess.run([sys.executable, "-c", IMPORTS_LATER], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
