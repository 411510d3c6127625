"""The threads of the JVMs of a session.

It relies on `SparkContext.getExecutorThreadDump` (since Spark 1.2), which Spark's pages use, on the Java form of its
result as text, and on Spark's store of executors (`statusStore`, since Spark 2.3). Without them, dumps have no JVMs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def executor_ids(spark: SparkSession) -> list[str]:
    """Returns the ids of the live executors; the driver's JVM is `driver`."""
    context: Any = spark.sparkContext._jsc.sc()
    found = context.statusStore().executorList(True)
    return sorted(str(found.apply(index).id()) for index in range(found.size()))


def executor_threads(spark: SparkSession, executor: str) -> str:
    """Returns the stacks of all threads of an executor's JVM.

    It waits for the executor's answer. The result is empty if the executor has ended.
    """
    context: Any = spark.sparkContext._jsc.sc()
    dump = context.getExecutorThreadDump(executor)
    return "" if dump.isEmpty() else "".join(thread.toString() for thread in dump.get())
