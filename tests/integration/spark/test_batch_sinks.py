"""The files of a batch appear together, once, and only if it was committed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.errors import SinkFunctionError, SinkOccupiedError, SinkPublishError, UserFunctionError
from keyscale.jobs.operators.failures import CarriedFailure, TaskOrigin, origin_of
from keyscale.jobs.sinks.files import FileSink
from keyscale.jobs.sinks.foreach_batch import ForeachBatchSink
from keyscale.jobs.sinks.sink import SinkContext
from keyscale.jobs.spark_internals.hadoop_files import HadoopDirectory
from tests.support.short_form import short_form

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real


def context(batch_id: int = 0, *, attempt: int = 1, unique: str = "u", job_id: str = "job") -> SinkContext:
    return SinkContext(job_id=job_id, uid="files", batch_id=batch_id, attempt=attempt, unique=unique)


def fork(batch_id: int, attempt: int = 1) -> SinkContext:
    return replace(context(batch_id, attempt=attempt, job_id="fork"), forked_from="job")


def batches(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("_"))


def staged(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.glob("_staging/*/*/*"))


def ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(path)).collect())


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(str(tmp_path))


def test_a_batch_is_invisible_before_publish_and_complete_after_it(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    token = sink.prepare(spark.range(5).toDF("id"), context(7))
    assert batches(tmp_path) == []
    sink.publish(token)
    assert batches(tmp_path) == ["batch=7"]
    assert ids(spark, tmp_path) == [0, 1, 2, 3, 4]
    assert staged(tmp_path) == []


@pytest.mark.exhaustive  # the model of the file system shows it in the fast tier
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


@pytest.mark.exhaustive  # the model of the file system shows it in the fast tier
def test_a_discarded_batch_leaves_nothing(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    token = sink.prepare(spark.range(5).toDF("id"), context())
    sink.discard(token)
    sink.discard(token)
    assert staged(tmp_path) == []
    with pytest.raises(SinkPublishError, match="missing from staging and from the output"):
        sink.publish(token)


def test_a_batch_that_failed_while_it_was_written_leaves_nothing(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    broken = spark.range(5).selectExpr("id", "raise_error('no') as never")
    with pytest.raises(Exception, match="no"):
        sink.prepare(broken, context())
    assert staged(tmp_path) == []


def test_two_tries_of_a_batch_do_not_share_files(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    first = sink.prepare(spark.range(5).toDF("id"), context(unique="a"))
    second = sink.prepare(spark.range(9, 11).toDF("id"), context(unique="b"))
    sink.publish(second)
    sink.discard(first)
    assert ids(spark, tmp_path) == [9, 10]


def test_an_interrupted_rename_on_an_object_store_is_repeated(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    """On an object store a rename copies every file and deletes the sources afterwards."""
    token = sink.prepare(spark.range(100).repartition(4).toDF("id"), context())
    copied = tmp_path / "batch=0"
    (source,) = tmp_path.glob("_staging/*/*/*")
    shutil.copytree(source, copied)
    for file in sorted(copied.glob("*.parquet"))[:2]:
        file.unlink()
    sink.publish(token)
    assert ids(spark, tmp_path) == list(range(100))
    assert staged(tmp_path) == []


@pytest.mark.exhaustive  # the model of the file system shows it in the fast tier
def test_another_jobs_output_is_not_touched(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    sink.publish(sink.prepare(spark.range(1).toDF("id"), context(job_id="first")))
    token = sink.prepare(spark.range(9, 10).toDF("id"), context(job_id="second"))
    with pytest.raises(SinkOccupiedError, match="first"):
        sink.publish(token)
    assert ids(spark, tmp_path) == [0]


@pytest.mark.exhaustive  # the model of the file system shows it in the fast tier
def test_a_job_that_went_back_to_a_savepoint_replaces_the_batches_that_it_runs_again(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    sink.publish(sink.prepare(spark.range(1).toDF("id"), context(5, attempt=1)))
    token = sink.prepare(spark.range(9, 10).toDF("id"), context(5, attempt=2, unique="v"))
    sink.publish(token)
    sink.publish(token)
    assert ids(spark, tmp_path) == [9]


@pytest.mark.exhaustive  # the model of the file system shows it in the fast tier
@pytest.mark.parametrize("is_published", [True, False], ids=["published", "only committed"])
def test_a_batch_is_published_where_it_was_staged_after_the_jobs_directory_has_changed(
    spark: SparkSession, tmp_path: Path, is_published: bool
) -> None:
    before, after = FileSink(str(tmp_path / "before")), FileSink(str(tmp_path / "after"))
    before.recover(context(-1))
    token = before.prepare(spark.range(3).toDF("id"), context(0))
    if is_published:
        before.publish(token)
    after.publish(token)
    after.recover(context(0, attempt=2))
    after.publish(after.prepare(spark.range(3, 5).toDF("id"), context(1, attempt=2)))
    assert ids(spark, tmp_path / "before") == [0, 1, 2]
    assert ids(spark, tmp_path / "after") == [3, 4]


@pytest.mark.exhaustive  # the model of the file system shows it in the fast tier
def test_an_older_attempt_cannot_replace_a_newer_ones_output(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    late = sink.prepare(spark.range(1).toDF("id"), context(5, attempt=1))
    sink.publish(sink.prepare(spark.range(9, 10).toDF("id"), context(5, attempt=2, unique="v")))
    with pytest.raises(SinkOccupiedError, match="attempt 2"):
        sink.publish(late)
    assert ids(spark, tmp_path) == [9]


def test_recovery_removes_what_runs_up_to_this_one_have_left_and_disowned_batches_only(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    for batch_id in (0, 1, 2):
        sink.publish(sink.prepare(spark.range(1).toDF("id"), context(batch_id, attempt=1)))
    sink.publish(sink.prepare(spark.range(1).toDF("id"), context(3, job_id="neighbour")))
    sink.prepare(spark.range(1).toDF("id"), context(3, attempt=1))
    sink.prepare(spark.range(1).toDF("id"), context(2, attempt=2, unique="of-a-run-before-a-restart"))
    sink.prepare(spark.range(1).toDF("id"), context(2, attempt=3, unique="newer"))
    (tmp_path / "batch=9").mkdir()
    sink.recover(context(1, attempt=2))
    assert batches(tmp_path) == ["batch=0", "batch=1", "batch=3", "batch=9"]
    assert staged(tmp_path) == ["2-3-newer"]


def test_recovery_of_a_path_that_does_not_exist_yet_does_nothing(tmp_path: Path, spark: SparkSession) -> None:  # noqa: ARG001 - it needs a session
    FileSink(str(tmp_path / "new")).recover(context(-1))


def test_a_published_batch_may_be_removed_by_a_reader(spark: SparkSession, tmp_path: Path, sink: FileSink) -> None:
    for batch_id in range(3):
        token = sink.prepare(spark.range(1).toDF("id"), context(batch_id))
        sink.publish(token)
    shutil.rmtree(tmp_path / "batch=2")
    for attempt in (2, 3):  # the first driver after it was removed, and one after that has committed nothing
        started = FileSink(str(tmp_path))
        started.publish(token)
        started.recover(context(2, attempt=attempt))
    assert batches(tmp_path) == ["batch=0", "batch=1"]


@pytest.mark.exhaustive  # the test above removes the last batch
def test_a_removed_batch_before_the_savepoint_that_a_job_goes_back_to_is_no_failure(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    tokens = []
    for batch_id in range(4):
        tokens.append(sink.prepare(spark.range(1).toDF("id"), context(batch_id)))
        sink.publish(tokens[-1])
    shutil.rmtree(tmp_path / "batch=1")
    for attempt in (2, 3):
        started = FileSink(str(tmp_path))
        started.publish(tokens[1])
        started.recover(context(1, attempt=attempt))
    assert batches(tmp_path) == ["batch=0"]
    lost = started.prepare(spark.range(1).toDF("id"), context(2, attempt=3))
    started.discard(lost)
    with pytest.raises(SinkPublishError, match="missing from staging and from the output"):
        FileSink(str(tmp_path)).publish(lost)


def test_a_late_batch_of_a_replaced_attempt_is_removed_at_the_next_start(
    spark: SparkSession, tmp_path: Path, sink: FileSink
) -> None:
    sink.recover(context(-1))
    FileSink(str(tmp_path)).recover(context(5, attempt=2))
    sink.publish(sink.prepare(spark.range(1).toDF("id"), context(7, attempt=1)))
    FileSink(str(tmp_path)).recover(context(5, attempt=3))
    assert batches(tmp_path) == []


def test_recovery_lists_the_published_batches_only_if_the_job_went_back(
    spark: SparkSession, tmp_path: Path, sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []

    def names(directory: HadoopDirectory) -> list[str]:
        listed.append(directory.path)
        return names_of(directory)

    names_of = HadoopDirectory.names
    monkeypatch.setattr(HadoopDirectory, "names", names)
    sink.recover(context(-1))
    for batch_id in range(3):
        sink.publish(sink.prepare(spark.range(1).toDF("id"), context(batch_id)))
    for attempt, committed, lists in ((2, 2, False), (3, 1, True), (4, 1, False)):
        listed.clear()
        FileSink(str(tmp_path)).recover(context(committed, attempt=attempt))
        assert (str(tmp_path) in listed) is lists
        assert len(listed) == 2 + lists
    assert batches(tmp_path) == ["batch=0", "batch=1"]
    assert [path.name for path in tmp_path.glob("_published/*/*/*")] == ["4.1"]


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


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_the_error_of_a_failing_foreach_batch_function_has_its_uid_and_the_exception(
    spark: SparkSession, kind: type[BaseException]
) -> None:
    raised = kind("no such table")

    def write(frame: DataFrame, key: SinkContext) -> None:  # noqa: ARG001 - it fails first
        raise raised

    with pytest.raises(SinkFunctionError, match=f"files failed: {type(raised).__name__}: no such table") as failure:
        ForeachBatchSink(write).prepare(spark.range(1).toDF("id"), context())
    assert "in write" in str(origin_of(failure.value).user_traceback)


def test_an_operator_that_fails_while_a_foreach_batch_function_reads_is_not_the_functions_error(
    spark: SparkSession,
) -> None:
    def fail(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from rows
        raise CarriedFailure(UserFunctionError("ValueError: x"), TaskOrigin("totals", 1))

    frame = spark.range(1).mapInArrow(fail, "id long")
    with pytest.raises(UserFunctionError, match="ValueError: x") as failure:
        ForeachBatchSink(lambda rows, _: rows.foreach(id)).prepare(frame, context())
    assert origin_of(failure.value).operator_uid == "totals"


@pytest.mark.exhaustive  # the model of the file system shows it in the fast tier
def test_a_fork_is_refused_the_directory_of_the_job_that_runs_on_and_leaves_all_of_its_files_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    original, shared, own = (FileSink(str(tmp_path / name)) for name in ("shared", "shared", "own"))
    original.recover(context(-1))
    original.publish(original.prepare(spark.range(3).toDF("id"), context(0)))
    running = original.prepare(spark.range(3, 5).toDF("id"), context(1))
    with pytest.raises(SinkOccupiedError, match=r"sink files of job job writes to .*/shared"):
        shared.recover(fork(0))
    own.recover(fork(0))
    for batch_id in (1, 2):
        own.publish(own.prepare(spark.range(9, 10).toDF("id"), replace(fork(batch_id), forked_from=None)))
    original.publish(running)
    assert ids(spark, tmp_path / "shared") == [0, 1, 2, 3, 4]
    assert batches(tmp_path / "own") == ["batch=1", "batch=2"]
    own.recover(fork(0, attempt=2))
    assert batches(tmp_path / "own") == [], "the fork was killed before its first checkpoint, and has gone back"
    assert ids(spark, tmp_path / "shared") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("job", short_form(["an unrelated job", "a fork of a fork"], ["an unrelated job"]))
def test_no_other_job_may_write_to_a_jobs_directory_even_once_its_files_are_gone(
    spark: SparkSession, tmp_path: Path, job: str
) -> None:
    origin = "fork" if job == "a fork of a fork" else None
    original = FileSink(str(tmp_path))
    original.recover(context(-1))
    original.publish(original.prepare(spark.range(3).toDF("id"), context(0)))
    shutil.rmtree(tmp_path / "batch=0")
    for _ in range(2):  # a refusal leaves nothing by which the next start would be let in
        with pytest.raises(
            SinkOccupiedError, match=r"sink files of job job writes to .* give sink files its own directory"
        ):
            FileSink(str(tmp_path)).recover(replace(context(0, job_id="another"), forked_from=origin))
    assert [entry.name for entry in (tmp_path / "_published").iterdir()] == ["job"]
    FileSink(str(tmp_path)).recover(context(0, attempt=2))


def test_a_fork_takes_a_directory_over_once_the_other_jobs_marker_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    original, heir = FileSink(str(tmp_path)), FileSink(str(tmp_path))
    original.recover(context(-1))
    original.publish(original.prepare(spark.range(3).toDF("id"), context(0)))
    shutil.rmtree(tmp_path / "_published" / "job")
    heir.recover(fork(0))
    heir.publish(heir.prepare(spark.range(3, 4).toDF("id"), context(1, job_id="fork")))
    assert ids(spark, tmp_path) == [0, 1, 2, 3]
