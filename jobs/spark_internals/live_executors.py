"""The live executors of a session, with their logs and threads.

It relies on Spark's store of what its pages show (`SparkContext.statusStore`, `executorList` and `executorLogs`, since
Spark 2.3), and on `SparkContext.getExecutorThreadDump` (since Spark 1.2) with the text form of its result. Without
them, thread dumps have no JVMs, and the logs of executors are not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

DRIVER = "driver"
"""The id of the driver's own JVM, which runs the tasks of a local master."""
_STREAMS = ("stdout", "stderr")


class LiveExecutor(NamedTuple):
    """An executor.

    Attributes:
        id: Its id in Spark.
        address: Its host and port.
        logs: The addresses of Spark's pages with its output, by the name of the stream.
    """

    id: str
    address: str
    logs: dict[str, str]

    @property
    def host(self) -> str:
        """Its host."""
        return self.address.rpartition(":")[0]


def live_executors(spark: SparkSession) -> list[LiveExecutor]:
    """Returns the live executors and the driver's JVM."""
    context: Any = spark.sparkContext._jsc.sc()
    found = context.statusStore().executorList(True)
    executors = [found.apply(index) for index in range(found.size())]
    return sorted(LiveExecutor(str(each.id()), str(each.hostPort()), _logs_of(each)) for each in executors)


def executors_elsewhere(executors: Sequence[LiveExecutor]) -> list[LiveExecutor]:
    """Returns the executors on other hosts than the driver's."""
    here = next((each.host for each in executors if each.id == DRIVER), None)
    return [each for each in executors if each.host != here]


def executor_threads(spark: SparkSession, executor: str) -> str:
    """Returns the stacks of all threads of an executor's JVM.

    It waits for the executor's answer. The result is empty if the executor has ended.
    """
    context: Any = spark.sparkContext._jsc.sc()
    dump = context.getExecutorThreadDump(executor)
    return "" if dump.isEmpty() else "".join(thread.toString() for thread in dump.get())


def _logs_of(executor: Any) -> dict[str, str]:
    logs = executor.executorLogs()
    return {name: str(logs.apply(name)) for name in _STREAMS if logs.contains(name)}
