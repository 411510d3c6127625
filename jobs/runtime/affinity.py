"""Keeps every subtask on the executor that holds its state, by public Spark means only.

A cached frame of one row a subtask, in the partition of the same number, is joined to each batch: Spark's scheduler prefers
the executor that caches the partition. When that executor dies the row is recomputed elsewhere, and the state follows.
It rests on the settings in spark_settings.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark user knows

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

SUBTASK_COLUMN = "__subtask"
PARTITIONS_MIN = 2


@dataclass(frozen=True)
class Anchor:
    """A cached frame with one row a subtask, subtask i in partition i.

    Its rows are cached by the first job that reads them, on the executors that Spark chooses then.

    A single subtask has a second, spare partition beside it, which stays empty: Spark would take a frame of one partition for
    one that it may partition as it likes.
    """

    frame: DataFrame
    hinted: DataFrame
    parallelism: int

    @classmethod
    def create(cls, spark: SparkSession, parallelism: int) -> Anchor:
        """Declares the rows; runs no job, which would take a second or two of a driver that has just started."""
        subtask = F.col("id").cast("int").alias(SUBTASK_COLUMN)
        partitions = max(parallelism, PARTITIONS_MIN)
        frame = spark.range(partitions).select(subtask).repartitionById(partitions, SUBTASK_COLUMN).cache()
        return cls(frame, frame.hint("shuffle_hash"), parallelism)

    def hold(self, frame: DataFrame) -> DataFrame:
        """Moves each row to the partition that its `__subtask` names, on the executor of that subtask."""
        moved = frame.repartitionById(max(self.parallelism, PARTITIONS_MIN), SUBTASK_COLUMN)
        return moved.join(self.hinted, SUBTASK_COLUMN)

    def hold_none(self, schema: StructType) -> DataFrame:
        """A frame of `schema` without a row, its partitions on the executors of the subtasks: what moves no rows, and in no time.

        Its condition is one on rows: Spark would leave out all that comes after a frame that it sees to be empty.
        """
        columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
        return self.frame.where(F.col(SUBTASK_COLUMN) < 0).select(*columns)

    @cached_property
    def subtasks(self) -> RDD[Row]:
        """The rows of the subtasks, without the spare one's; planned once, when first asked for."""
        return self.frame.where(F.col(SUBTASK_COLUMN) < self.parallelism).rdd

    def release(self) -> None:
        """Lets go of the cached rows."""
        self.frame.unpersist()
