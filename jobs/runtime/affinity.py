"""Keeps every subtask on the executor that holds its state, by public Spark means only.

A cached frame of one row a subtask, in the partition of the same number, is joined to each batch: Spark's scheduler prefers
the executor that caches the partition. When that executor dies the row is recomputed elsewhere, and the state follows.
It rests on the settings in spark_settings.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark user knows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUBTASK_COLUMN = "__subtask"


@dataclass(frozen=True, slots=True)
class Anchor:
    """A cached frame with one row a subtask, subtask i in partition i."""

    frame: DataFrame
    parallelism: int

    @classmethod
    def create(cls, spark: SparkSession, parallelism: int) -> Anchor:
        """Caches the anchor's rows on the executors that Spark chooses now."""
        subtask = F.col("id").cast("int").alias(SUBTASK_COLUMN)
        frame = spark.range(parallelism).select(subtask).repartitionById(parallelism, SUBTASK_COLUMN).cache()
        frame.count()
        return cls(frame, parallelism)

    def hold(self, frame: DataFrame) -> DataFrame:
        """Moves each row to the partition that its `__subtask` names, on the executor of that subtask."""
        moved = frame.repartitionById(self.parallelism, SUBTASK_COLUMN)
        return moved.join(self.frame.hint("shuffle_hash"), SUBTASK_COLUMN)

    def release(self) -> None:
        """Lets go of the cached rows."""
        self.frame.unpersist()
