"""Relied on: how Spark's message of a task begins.

A failure here means that stores move between Python workers.
"""

from __future__ import annotations

import os
import random
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.spark_internals.socket_exchange import socket_exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

JOBS = 12


def at_home(seed: int) -> Callable[[int, Iterable[object]], list[tuple[int, int]]]:
    """A task that takes its partition home, and lets the tasks of a job end in any order."""

    def task(partition: int, _rows: Iterable[object]) -> list[tuple[int, int]]:
        socket_exchange().claim(partition)
        time.sleep(random.Random(f"{seed} {partition}").uniform(0, 0.1))
        return [(partition, os.getpid())]

    return task


def test_a_partition_s_tasks_run_in_the_worker_that_the_first_one_ran_in(spark: SparkSession) -> None:
    partitions = spark.sparkContext.parallelize(range(2), 2)
    homes = [dict(partitions.mapPartitionsWithIndex(at_home(seed)).collect()) for seed in range(JOBS)]
    settled = homes[1:]  # the first job may meet workers of earlier tests that are being replaced
    moves = sum(before != after for before, after in pairwise(settled))
    assert moves <= 1, f"tasks changed workers {moves} times in {JOBS} jobs; see how Spark's message of a task begins"


def test_tasks_of_frames_run_in_the_workers_of_rdds(spark: SparkSession) -> None:
    """Else the store that a batch has open is closed for every checkpoint; see the setting simplifiedTraceback."""
    partitions = spark.sparkContext.parallelize(range(2), 2)
    homes = dict(partitions.mapPartitionsWithIndex(at_home(0)).collect())

    def process(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - in the worker

        list(batches)
        yield pa.RecordBatch.from_pydict({"process": pa.array([os.getpid()], pa.int64())})

    of_frames = spark.range(0, 2, numPartitions=2).mapInArrow(process, "process bigint").collect()
    assert {row.process for row in of_frames} <= set(homes.values())
