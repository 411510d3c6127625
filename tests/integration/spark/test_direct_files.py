"""Subtasks write the files that Spark would write, and readers see only those that were reported."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyscale.identifiers import SubtaskIndex
from keyscale.jobs.errors import SinkPublishError
from keyscale.jobs.sinks.files import FileSink
from keyscale.jobs.sinks.sink import SinkContext
from keyscale.jobs.spark_internals.arrow_schemas import spark_schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keyscale.jobs.sinks.sink import DirectOutput, DirectStaging

pytestmark = pytest.mark.real

NUMBERS = pa.schema([("id", pa.int64())])
UTC_TIMES = {
    "at": (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)])
}
LOCAL_TIMES = {"at_local": (pa.timestamp("us"), [-1, 1_700_000_000_000_000])}
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "tiny": (pa.int8(), [-128, 127]),
    "small": (pa.int16(), [-1, 2**15 - 1]),
    "medium": (pa.int32(), [-1, 2**31 - 1]),
    "large": (pa.int64(), [-1, 2**63 - 1]),
    "single": (pa.float32(), [0.5, float("inf")]),
    "double": (pa.float64(), [-0.0, 1e300]),
    "text": (pa.string(), ["", "zwölf 🛫"]),
    "bytes": (pa.binary(), [b"", b"\x00\xff"]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "price": (pa.decimal128(7, 2), [Decimal("-12345.67"), Decimal(0)]),
    "amount": (pa.decimal128(18, 4), [Decimal("-1.5"), Decimal("99999999999999.9999")]),
    "huge": (pa.decimal128(38, 0), [Decimal(10) ** 37, Decimal(-1)]),
    "list": (pa.list_(pa.int32()), [[1, None], []]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("a", 1.0), ("b", None)], []]),
    "struct": (
        pa.struct([pa.field("n", pa.int64(), nullable=False), ("deep", pa.list_(pa.struct([("x", pa.string())])))]),
        [{"n": 1, "deep": [{"x": "y"}, None]}, {"n": 2, "deep": None}],
    ),
}


def context(batch_id: int = 0, *, attempt: int = 1, unique: str = "u") -> SinkContext:
    return SinkContext(job_id="job", uid="files", batch_id=batch_id, attempt=attempt, unique=unique)


def batches(*parts: list[int]) -> Iterator[pa.RecordBatch]:
    return (pa.record_batch({"id": pa.array(part, pa.int64())}) for part in parts)


def write(output: DirectOutput, *ids: int, subtask: int = 0) -> str:
    part = output.write(SubtaskIndex(subtask), batches(list(ids)))
    assert part is not None
    return part


def staged(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.glob("_staging/*/*/*"))


def files(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if entry.name.endswith(".parquet"))


def ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(path)).collect())


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(tmp_path.as_uri())


@pytest.fixture
def direct(spark: SparkSession, sink: FileSink) -> DirectStaging:  # noqa: ARG001 - it needs a session
    staging = sink.direct(NUMBERS)
    assert staging is not None
    return staging


@pytest.mark.parametrize(
    ("kinds", "timestamps"),
    [
        ({**KINDS, **UTC_TIMES}, "INT96"),
        ({**KINDS, **LOCAL_TIMES}, "INT96"),
        ({**UTC_TIMES, **LOCAL_TIMES}, "TIMESTAMP_MICROS"),
    ],
)
def test_readers_cannot_tell_a_subtasks_file_from_sparks(
    spark: SparkSession, tmp_path: Path, kinds: dict[str, tuple[pa.DataType, list[Any]]], timestamps: str
) -> None:
    fields = [pa.field(name, kind) for name, (kind, _) in kinds.items()]
    schema = pa.schema([*fields, pa.field("there", pa.int32(), nullable=False)])
    rows = pa.record_batch(
        [*(pa.array([*values, None], kind) for kind, values in kinds.values()), pa.array([1, 2, 3], pa.int32())],
        schema=schema,
    )

    def of_rows(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield rows

    spark_schema = spark_schema_of(schema)
    frame = spark.range(1).repartition(1).mapInArrow(of_rows, spark_schema)
    ours, sparks = FileSink(str(tmp_path / "ours")), FileSink(str(tmp_path / "sparks"))
    spark.conf.set("spark.sql.parquet.outputTimestampType", timestamps)
    try:
        sparks.publish(sparks.prepare(frame, context()))
        staging = ours.direct(schema)
        assert staging is not None
        output = staging.begin(context())
        part = output.write(SubtaskIndex(0), iter([rows]))
        staging.gather(output.token, [str(part)])
        ours.publish(output.token)
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")

    (our_file,), (spark_file,) = ((tmp_path / name).glob("batch=0/part-*.parquet") for name in ("ours", "sparks"))
    assert pq.ParquetFile(our_file).schema.equals(pq.ParquetFile(spark_file).schema)
    assert told_to_readers(our_file) == told_to_readers(spark_file)
    read_ours, read_sparks = (read_back(spark, tmp_path / name) for name in ("ours", "sparks"))
    assert read_ours.schema == read_sparks.schema
    assert read_ours.toArrow().equals(read_sparks.toArrow())


def told_to_readers(file: Path) -> tuple[str, Any]:
    told = pq.ParquetFile(file).metadata.metadata
    schema = json.loads(told.pop(b"org.apache.spark.sql.parquet.row.metadata"))
    return str(told), schema


def read_back(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.parquet(str(path))


def test_a_batch_is_seen_after_publish_with_the_files_that_sparks_directories_have(
    spark: SparkSession, tmp_path: Path, sink: FileSink, direct: DirectStaging
) -> None:
    output = direct.begin(context(7))
    parts = [write(output, 1, 2, subtask=0), write(output, 3, subtask=1)]
    direct.gather(output.token, parts)
    assert not list(tmp_path.glob("batch=*"))
    for _ in range(2):
        sink.publish(output.token)
    names = {entry.name for entry in (tmp_path / "batch=7").iterdir() if not entry.name.startswith(".")}
    assert names == {*parts, "_SUCCESS", "_keyscale"}
    assert ids(spark, tmp_path) == [1, 2, 3]
    assert staged(tmp_path) == []


def test_a_batch_without_rows_has_a_file_with_the_schema(
    spark: SparkSession, tmp_path: Path, sink: FileSink, direct: DirectStaging
) -> None:
    output = direct.begin(context())
    assert output.write(SubtaskIndex(0), batches([])) is None
    direct.gather(output.token, [])
    sink.publish(output.token)
    assert spark.read.parquet(str(tmp_path / "batch=0")).schema == spark_schema_of(NUMBERS)
    assert ids(spark, tmp_path) == []


def test_files_of_an_unreported_try_of_a_task_are_not_in_the_batch(
    spark: SparkSession, tmp_path: Path, sink: FileSink, direct: DirectStaging
) -> None:
    output = direct.begin(context())
    write(output, 666)
    again = write(output, 1)
    direct.gather(output.token, [again])
    sink.publish(output.token)
    assert files(tmp_path / "batch=0") == [again]
    assert ids(spark, tmp_path) == [1]


def test_a_task_that_still_writes_after_its_batch_was_published_adds_nothing(
    spark: SparkSession, tmp_path: Path, sink: FileSink, direct: DirectStaging
) -> None:
    """It survives its executor's connection, while another try of it has been reported."""
    output = direct.begin(context())

    def held() -> Iterator[pa.RecordBatch]:
        yield from batches([666] * (1 << 20))  # fills a row group, so that the file exists
        direct.gather(output.token, [write(output, 1)])
        sink.publish(output.token)
        yield from batches([667])

    assert output.write(SubtaskIndex(0), held()) is not None
    assert len(files(tmp_path / "batch=0")) == 1
    with pytest.raises(SinkPublishError):
        write(output, 668)
    assert ids(spark, tmp_path) == [1]
    assert staged(tmp_path) == []


def test_a_discarded_batch_leaves_nothing_and_its_tasks_cannot_write_any_more(
    tmp_path: Path, sink: FileSink, direct: DirectStaging
) -> None:
    output = direct.begin(context())
    write(output, 1)
    for _ in range(2):
        sink.discard(output.token)
    with pytest.raises(SinkPublishError):
        write(output, 2)
    assert staged(tmp_path) == []


def test_a_missing_part_is_an_error(direct: DirectStaging, tmp_path: Path) -> None:
    """As on a host with another directory at the path."""
    output = direct.begin(context())
    part = write(output, 1)
    (file,) = tmp_path.glob(f"_staging/*/*/*/{part}")
    file.unlink()
    with pytest.raises(SinkPublishError, match="lacks 1 file of"):
        direct.gather(output.token, [part])


def test_recovery_deletes_files_that_subtasks_of_earlier_runs_have_written(
    tmp_path: Path, sink: FileSink, direct: DirectStaging
) -> None:
    earlier = [direct.begin(context(3, attempt=1)), direct.begin(context(3, attempt=2, unique="before-a-restart"))]
    for output in earlier:
        write(output, 1)
    sink.recover(context(2, attempt=2))
    for output in earlier:
        with pytest.raises(SinkPublishError):
            write(output, 3)
    mine = direct.begin(context(3, attempt=2, unique="mine"))
    part = write(mine, 2)
    direct.gather(mine.token, [part])
    assert staged(tmp_path) == ["3-2-mine"]


@pytest.mark.parametrize(
    "sink",
    [
        FileSink("/nowhere", format="json"),
        FileSink("/nowhere", partitionOverwriteMode="dynamic"),
        FileSink("hdfs://nowhere/out"),
        FileSink("unheard-of://nowhere/out"),
    ],
)
def test_formats_that_subtasks_cannot_write_are_left_to_spark(spark: SparkSession, sink: FileSink) -> None:  # noqa: ARG001 - as above
    assert sink.direct(NUMBERS) is None
