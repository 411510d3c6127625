"""Relied on: broadcast variables in tasks, and that PySpark keeps a file for each large function.

A failure here means that large operators fill the driver's disk, or that their tasks fail.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.jobs.spark_internals.broadcast_payloads import INLINE_BYTES_MAX, BroadcastPayload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

LARGE = 3 << 20


def files_of(spark: SparkSession) -> set[Path]:
    return {path for path in Path(str(spark.sparkContext._temp_dir)).rglob("*") if path.is_file()}


def counting(thing: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        content = thing.open() if isinstance(thing, BroadcastPayload) else thing
        assert len(content) == LARGE
        yield from batches

    return task


def test_a_large_function_would_leave_a_file_for_each_use(spark: SparkSession) -> None:
    before = files_of(spark)
    for _ in range(2):
        assert spark.range(2).mapInArrow(counting(bytes(LARGE)), "id long").count() == 2
    assert len(files_of(spark) - before) == 2


def test_a_large_payload_has_one_file_until_it_is_released(spark: SparkSession) -> None:
    before = files_of(spark)
    payload = BroadcastPayload.of(spark.sparkContext, bytes(LARGE))
    for _ in range(3):
        assert spark.range(2).mapInArrow(counting(payload), "id long").count() == 2
        assert spark.sparkContext.parallelize([1, 2], 2).map(lambda _: len(payload.open())).collect() == [LARGE] * 2
    assert len(files_of(spark) - before) == 1
    payload.release()
    assert files_of(spark) == before
    payload.release()  # which may happen twice


def test_a_small_payload_travels_with_the_task(spark: SparkSession) -> None:
    before = files_of(spark)
    payload = BroadcastPayload.of(spark.sparkContext, b"x" * (INLINE_BYTES_MAX // 2))
    assert files_of(spark) == before
    assert spark.sparkContext.parallelize([1], 1).map(lambda _: payload.open()[:2]).collect() == [b"xx"]
    payload.release()
    assert payload.open()[:1] == b"x"
