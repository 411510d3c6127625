"""Relied on: tasks of frames report by accumulators.

A failure here means that batches fail with JOB_REPORTS_INCOMPLETE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from keyscale.jobs.spark_internals.accumulators import list_accumulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


def reporting(
    reports: Accumulator[list[int]], *, fails: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        reports.add([context.partitionId()])
        if fails and context.partitionId() == 1:
            raise ValueError("after its report")

    return task


def test_the_driver_has_one_report_of_each_task_of_a_frame_when_the_job_has_ended(spark: SparkSession) -> None:
    reports = list_accumulator(spark.sparkContext)
    spark.range(0, 9, numPartitions=3).mapInArrow(reporting(reports, fails=False), "id bigint").collect()
    assert sorted(reports.value) == [0, 1, 2]


def test_a_task_that_failed_reports_nothing(spark: SparkSession) -> None:
    reports = list_accumulator(spark.sparkContext)
    frame = spark.range(0, 9, numPartitions=3).mapInArrow(reporting(reports, fails=True), "id bigint")
    with pytest.raises(Exception, match="after its report"):
        frame.collect()
    assert 1 not in reports.value
