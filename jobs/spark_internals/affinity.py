"""Keeps every subtask on the executor that holds its state.

A cached frame with one row per subtask, each in the partition of the same number, is joined to every batch: Spark's
scheduler prefers the executor that caches the partition. When that executor dies, the row is recomputed elsewhere and
the state follows.

It relies on undocumented behaviour (seen in Spark 4.3; `repartitionById` is new in 4.1):

- A cached partition is a preferred location, and a shuffle hash join hands on the locations of its cached side. Other
  preferences come first unless `spark.shuffle.reduceLocality.enabled` is off (since Spark 1.5, undocumented).
- The join of two frames that `repartitionById` has partitioned in one way moves no row a second time, and the rows of
  partition id `i` are in partition `i`.
- A filter on the cached rows that drops all of them leaves their partitions in place, with their locations.

With the switch `affinity` off, rows still go to the partition of their subtask, but Spark chooses the executor again in
each batch. Results are the same. State is rebuilt from the object store wherever it is missing, and on several hosts
checkpoints may fail because a snapshot's files are on another host: switch affinity off only on one host, or to find
out whether affinity is broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from ..protocol.spark_switches import SparkUse, switched_off

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

SUBTASK_COLUMN = "__subtask"
PARTITIONS_MIN = 2


@dataclass(frozen=True)
class PlacementDataset:
    """A cached frame with subtask i's row in partition i.

    Its rows are cached by the first job that reads them, on the executors that Spark chooses then.

    A single subtask has a second, spare partition beside it, which stays empty: Spark may repartition a frame of one
    partition.

    Attributes:
        frame: The rows.
        joined: The rows as they are joined to batches; None where affinity is switched off.
        parallelism: Number of subtasks.
    """

    frame: DataFrame
    joined: DataFrame | None
    parallelism: int

    @classmethod
    def create(cls, spark: SparkSession, parallelism: int) -> PlacementDataset:
        """Declares the rows.

        It runs no job, which would take a new driver a second or two.
        """
        subtask = F.col("id").cast("int").alias(SUBTASK_COLUMN)
        partitions = max(parallelism, PARTITIONS_MIN)
        frame = spark.range(partitions).select(subtask).repartitionById(partitions, SUBTASK_COLUMN)
        if SparkUse.AFFINITY in switched_off():
            return cls(frame, None, parallelism)
        cached = frame.cache()
        return cls(cached, cached.hint("shuffle_hash"), parallelism)

    def route(self, frame: DataFrame) -> DataFrame:
        """Moves each row to the partition and executor of its `__subtask`."""
        routed = frame.repartitionById(max(self.parallelism, PARTITIONS_MIN), SUBTASK_COLUMN)
        return routed if self.joined is None else routed.join(self.joined, SUBTASK_COLUMN)

    def empty(self, schema: StructType) -> DataFrame:
        """Returns an empty frame with partitions on the subtasks' executors.

        Reading it moves nothing. Its condition is on rows: Spark would skip all steps after a frame that it knows to be
        empty.
        """
        columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
        return self.frame.where(F.col(SUBTASK_COLUMN) < 0).select(*columns)

    @cached_property
    def subtasks(self) -> RDD[Row]:
        """The rows of the subtasks, without the spare row.

        They are planned once, at first use.
        """
        return self.frame.where(F.col(SUBTASK_COLUMN) < self.parallelism).rdd

    def release(self) -> None:
        """Drops the cached rows."""
        self.frame.unpersist()
