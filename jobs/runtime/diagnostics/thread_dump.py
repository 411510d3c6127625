"""A dump of the threads of driver, Python workers and JVMs."""

from __future__ import annotations

import sys
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING

from ...spark_internals.live_executors import executor_threads, executors_elsewhere, live_executors
from .local_workers import local_workers
from .readings import read_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from ...spark_internals.live_executors import LiveExecutor

_JVM_SECONDS = 8.0
"""How long executors may take to answer: less than the whole dump, so that the answers of the rest still arrive."""
_NOT_ASKED = "without its Python workers: the driver cannot ask other hosts"


def thread_dump(spark: SparkSession, workers: str) -> dict[str, Callable[[], str]]:
    """Returns how to read the stacks of each process.

    Args:
        spark: The session.
        workers: The name by which the Python workers offer their stacks.
    """
    found = {each.title: each.dump for each in local_workers(workers)}
    return {"driver": own_threads, **found, "JVM": partial(jvm_threads, spark)}


def own_threads() -> str:
    """Returns the stacks of this process's Python threads, by name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f'"{names.get(ident, ident)}"\n{"".join(traceback.format_stack(frame))}'
        for ident, frame in sys._current_frames().items()
    )


def jvm_threads(spark: SparkSession) -> str:
    """Returns the stacks of the threads of all JVMs of a session.

    It names the JVMs whose Python workers the driver cannot ask.
    """
    executors = live_executors(spark)
    reads = {title: partial(executor_threads, spark, each) for each, title in titles(executors).items()}
    return "\n".join(f"--- {each} ---\n{text}" for each, text in read_within(_JVM_SECONDS, reads).items())


def titles(executors: Sequence[LiveExecutor]) -> dict[str, str]:
    """Returns the titles of executors' stacks, by their ids."""
    elsewhere = executors_elsewhere(executors)
    return {each.id: f"{each.id} on {each.host}, {_NOT_ASKED}" if each in elsewhere else each.id for each in executors}
