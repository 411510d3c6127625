"""The number of tasks that Spark runs at once.

It relies on `SparkContext.maxNumConcurrentTasks` (since Spark 2.4, private). If Spark renames it, the number is
unknown. Spark would also split files into as many parts as it has slots: `spark.sql.leafNodeDefaultParallelism` (since
Spark 3.2) sets another number for a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPLITS = "spark.sql.leafNodeDefaultParallelism"


def parallelism_of_slots(spark: SparkSession) -> int | None:
    """Returns the largest parallelism whose subtasks run at once.

    On a local master a slot is left for the source. None: Spark does not say.
    """
    try:
        context: Any = spark.sparkContext._jsc.sc()
        slots = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
        return max(1, slots - 1) if _is_local(spark) else slots
    except Exception:  # noqa: BLE001 - whatever a private interface raises
        return None


def split_sources_for(spark: SparkSession, parallelism: int) -> None:
    """Makes a local Spark split files as for this parallelism."""
    if _is_local(spark):
        spark.conf.set(_SPLITS, parallelism + 1)


def _is_local(spark: SparkSession) -> bool:
    return str(spark.sparkContext.master).startswith("local")
