"""Relied on: which broadcast variables Spark takes a Python worker to hold.

A failure here means that tasks fail in workers that have exchanged their connections.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.spark_internals.socket_exchange import socket_exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark import Broadcast
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

JOBS = 30


def reads(broadcasts: list[Broadcast[str]], seed: int) -> Callable[[int, Iterable[object]], list[tuple[int, str]]]:
    """A task that takes its partition home, reads variables, and lets the tasks of a job end in any order."""

    def task(partition: int, _rows: Iterable[object]) -> list[tuple[int, str]]:
        socket_exchange().claim(partition)
        time.sleep(random.Random(f"{seed} {partition}").uniform(0, 0.05))
        return [(os.getpid(), "".join(broadcast.value for broadcast in broadcasts))]

    return task


def test_a_task_reads_its_broadcast_variables_in_whichever_worker_it_runs(spark: SparkSession) -> None:
    context = spark.sparkContext
    random_ = random.Random(1)
    letters = [context.broadcast(letter) for letter in "abcdef"]
    processes = set()
    for number in range(JOBS):
        if random_.random() < 0.2:  # a variable comes to its end, and another one begins
            place = random_.randrange(len(letters))
            letters[place].destroy()
            letters[place] = context.broadcast("abcdef"[place])
        some = random_.sample(range(6), random_.randrange(4))
        partitions = random_.choice([1, 2])
        task = reads([letters[place] for place in some], number)
        results = context.parallelize(range(partitions), partitions).mapPartitionsWithIndex(task).collect()
        assert [text for _, text in results] == ["".join("abcdef"[place] for place in some)] * partitions
        processes |= {process for process, _ in results}
    for letter in letters:
        letter.destroy()
    assert len(processes) > 1, "all tasks ran in one worker, so none was exchanged"
