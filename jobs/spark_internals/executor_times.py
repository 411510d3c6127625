"""The times of executors' tasks and garbage collections.

It relies on Spark's store of what its pages show (`SparkContext.statusStore`, since Spark 2.3), which exists without
pages, too. If Spark renames it, the share of garbage collection is unknown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


class ExecutorTimes(NamedTuple):
    """The times of all executors since the session began, in ms."""

    tasks_ms: int
    collections_ms: int

    def collection_ratio(self, before: ExecutorTimes) -> float | None:
        """Returns the share of garbage collection in the tasks' time since then.

        None if no task has ended since.
        """
        passed_ms = self.tasks_ms - before.tasks_ms
        return min(1.0, (self.collections_ms - before.collections_ms) / passed_ms) if passed_ms > 0 else None


def executor_times(spark: SparkSession) -> ExecutorTimes | None:
    """Returns the times of all executors; None if Spark does not tell."""
    try:
        context: Any = spark.sparkContext._jsc.sc()
        found = context.statusStore().executorList(False)
        executors = [found.apply(index) for index in range(found.size())]
        tasks_ms = sum(int(each.totalDuration()) for each in executors)
        return ExecutorTimes(tasks_ms, sum(int(each.totalGCTime()) for each in executors))
    except Exception as error:  # noqa: BLE001 - py4j raises many kinds; a metric must not end the job
        logger.debug("the times of executors are unknown: %s", error)
        return None
