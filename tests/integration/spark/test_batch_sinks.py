"""Files appear a batch at a time, once, and only those that were committed."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from jobs.errors import SinkFunctionError, SinkOccupiedError, SinkPublishError
from jobs.runtime.failures import origin_of
from jobs.sinks import FileSink, ForeachBatchSink, SinkContext

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def context(batch_id: int = 0, *, attempt: int = 1, unique: str = "u", job_id: str = "job") -> SinkContext:
    return SinkContext(job_id=job_id, uid="files", batch_id=batch_id, attempt=attempt, unique=unique)


def batches(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("_"))


def staged(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.glob("_staging/*/*/*"))


def ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(path)).collect())


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path))


def test_nothing_is_seen_before_publish_and_all_of_it_after(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    token = sink.prepare(spark.range(5).toDF("id"), context(7))
    assert batches(tmp_path) == []
    sink.publish(token)
    assert batches(tmp_path) == ["batch=7"]
    assert ids(spark, tmp_path) == [0, 1, 2, 3, 4]
    assert staged(tmp_path) == []


def test_publishing_again_changes_nothing(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    token = sink.prepare(spark.range(5).toDF("id"), context())
    for _ in range(3):
        sink.publish(token)
    assert ids(spark, tmp_path) == [0, 1, 2, 3, 4]


def test_a_batch_without_rows_has_its_directory_too(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    sink.publish(sink.prepare(spark.range(0).toDF("id"), context(3)))
    assert batches(tmp_path) == ["batch=3"]
    assert ids(spark, tmp_path) == []


def test_readers_see_the_batch_number_as_a_column(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    for batch_id in (2, 10):
        sink.publish(sink.prepare(spark.range(1).toDF("id"), context(batch_id)))
    assert sorted(row.batch for row in spark.read.parquet(str(tmp_path)).collect()) == [2, 10]


def test_a_discarded_batch_leaves_nothing(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    token = sink.prepare(spark.range(5).toDF("id"), context())
    sink.discard(token)
    sink.discard(token)
    assert staged(tmp_path) == []
    with pytest.raises(SinkPublishError, match="neither staged nor published"):
        sink.publish(token)


def test_a_batch_that_failed_while_it_was_written_leaves_nothing(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    broken = spark.range(5).selectExpr("id", "raise_error('no') as never")
    with pytest.raises(Exception, match="no"):
        sink.prepare(broken, context())
    assert staged(tmp_path) == []


def test_two_tries_of_a_batch_do_not_meet(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    first = sink.prepare(spark.range(5).toDF("id"), context(unique="a"))
    second = sink.prepare(spark.range(9, 11).toDF("id"), context(unique="b"))
    sink.publish(second)
    sink.discard(first)
    assert ids(spark, tmp_path) == [9, 10]


def test_a_rename_that_was_cut_short_on_an_object_store_is_done_again(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    """There a rename copies every file and deletes the sources afterwards."""
    token = sink.prepare(spark.range(100).repartition(4).toDF("id"), context())
    copied = tmp_path / "batch=0"
    (source,) = tmp_path.glob("_staging/*/*/*")
    shutil.copytree(source, copied)
    for file in sorted(copied.glob("*.parquet"))[:2]:
        file.unlink()
    sink.publish(token)
    assert ids(spark, tmp_path) == list(range(100))
    assert staged(tmp_path) == []


def test_another_jobs_output_is_not_touched(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    sink.publish(sink.prepare(spark.range(1).toDF("id"), context(job_id="first")))
    token = sink.prepare(spark.range(9, 10).toDF("id"), context(job_id="second"))
    with pytest.raises(SinkOccupiedError, match="first"):
        sink.publish(token)
    assert ids(spark, tmp_path) == [0]


def test_a_job_that_went_back_to_a_savepoint_replaces_what_it_runs_anew(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    sink.publish(sink.prepare(spark.range(1).toDF("id"), context(5, attempt=1)))
    token = sink.prepare(spark.range(9, 10).toDF("id"), context(5, attempt=2, unique="v"))
    sink.publish(token)
    sink.publish(token)
    assert ids(spark, tmp_path) == [9]


def test_an_older_attempt_cannot_replace_a_newer_ones_output(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    late = sink.prepare(spark.range(1).toDF("id"), context(5, attempt=1))
    sink.publish(sink.prepare(spark.range(9, 10).toDF("id"), context(5, attempt=2, unique="v")))
    with pytest.raises(SinkOccupiedError, match="attempt 2"):
        sink.publish(late)
    assert ids(spark, tmp_path) == [9]


def test_recovery_removes_older_attempts_leftovers_and_disowned_batches_only(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    for batch_id in (0, 1, 2):
        sink.publish(sink.prepare(spark.range(1).toDF("id"), context(batch_id, attempt=1)))
    sink.publish(sink.prepare(spark.range(1).toDF("id"), context(3, job_id="neighbour")))
    sink.prepare(spark.range(1).toDF("id"), context(3, attempt=1))
    sink.prepare(spark.range(1).toDF("id"), context(2, attempt=2, unique="mine"))
    (tmp_path / "batch=9").mkdir()
    sink.recover(context(1, attempt=2))
    assert batches(tmp_path) == ["batch=0", "batch=1", "batch=3", "batch=9"]
    assert staged(tmp_path) == ["2-2-mine"]


def test_recovery_of_a_path_that_is_not_there_yet_does_nothing(tmp_path: Path, spark: SparkSession) -> None:  # noqa: ARG001 - the session must be there
    FileSink(str(tmp_path / "new")).recover(context(-1))


def test_formats_and_options_are_sparks(spark: SparkSession, tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path), format="json", compression="none")
    sink.publish(sink.prepare(spark.range(2).toDF("id"), context()))
    lines = [json.loads(line) for file in tmp_path.glob("batch=0/*.json") for line in file.read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == [0, 1]


def test_a_foreach_batch_function_gets_the_frame_and_its_idempotency_key(spark: SparkSession) -> None:
    seen: list[tuple[int, SinkContext]] = []

    def write(frame: DataFrame, key: SinkContext) -> None:
        seen.append((frame.count(), key))

    sink = ForeachBatchSink(write)
    sink.publish(sink.prepare(spark.range(4).toDF("id"), context(2)))
    assert seen == [(4, context(2))]


def test_a_foreach_batch_function_that_fails_is_told_by_uid_without_its_data(spark: SparkSession) -> None:
    def write(frame: DataFrame, key: SinkContext) -> None:  # noqa: ARG001 - it fails before it looks
        raise ValueError("secret")

    with pytest.raises(SinkFunctionError, match="files") as failure:
        ForeachBatchSink(write).prepare(spark.range(1).toDF("id"), context())
    assert "secret" not in str(failure.value)
    assert "in write" in str(origin_of(failure.value).user_traceback)
