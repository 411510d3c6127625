"""Subtasks write the same files as Spark, where they can, and a late task writes none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyscale.identifiers import SubtaskIndex
from keyscale.jobs.errors import SinkForbiddenError, SinkPublishError, SinkUnavailableError
from keyscale.jobs.sinks import parquet_output
from keyscale.jobs.sinks.parquet_output import ParquetForm, ParquetOutput
from keyscale.jobs.spark_internals import hadoop_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NUMBERS = pa.schema([("n", pa.int64())])
MICROS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


def form_of(
    schema: pa.Schema = NUMBERS,
    options: Mapping[str, object] | None = None,
    settings: Mapping[str, str] | None = None,
) -> ParquetForm | None:
    return ParquetForm.of(schema, options or {}, settings or {}, "4.3.0")


def output(directory: Path, form: ParquetForm | None = None) -> ParquetOutput:
    found = form or form_of()
    assert found is not None
    return ParquetOutput("token", str(directory), found)


def numbers(*parts: list[int]) -> Iterator[pa.RecordBatch]:
    return (pa.record_batch({"n": pa.array(part, pa.int64())}) for part in parts)


@pytest.mark.parametrize(
    ("options", "settings", "codec", "ending"),
    [
        ({}, {}, "SNAPPY", "-c000.snappy.parquet"),
        ({"compression": "none"}, {}, "UNCOMPRESSED", "-c000.parquet"),
        ({"compression": "GZIP"}, {"spark.sql.parquet.compression.codec": "zstd"}, "GZIP", "-c000.gz.parquet"),
        ({}, {"spark.sql.parquet.compression.codec": "zstd"}, "ZSTD", "-c000.zstd.parquet"),
    ],
)
def test_files_are_compressed_and_named_like_sparks(
    tmp_path: Path, options: Mapping[str, object], settings: Mapping[str, str], codec: str, ending: str
) -> None:
    form = form_of(options=options, settings=settings)
    name = output(tmp_path, form).write(SubtaskIndex(3), numbers([1, 2]))
    assert name is not None
    assert name.startswith("part-00003-")
    assert name.endswith(ending)
    assert pq.ParquetFile(tmp_path / name).metadata.row_group(0).column(0).compression == codec


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"compression": "lz4"}, {}),
        ({"maxRecordsPerFile": 10}, {}),
        ({"parquet.bloom.filter.enabled": True}, {}),
        ({}, {"parquet.crypto.factory.class": "Factory"}),
        ({}, {"spark.sql.parquet.writeLegacyFormat": "true"}),
        ({}, {"spark.sql.sources.commitProtocolClass": "Protocol"}),
        ({}, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}),
    ],
)
def test_options_that_only_sparks_writer_supports_are_left_to_it(
    options: Mapping[str, object], settings: Mapping[str, str]
) -> None:
    assert form_of(options=options, settings=settings) is None


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.duration("us"),
        pa.large_string(),
        pa.binary(4),
        pa.timestamp("ms", "UTC"),
        pa.timestamp("us", "Europe/Paris"),
        pa.struct([]),
        pa.list_(pa.struct([("inner", pa.uint8())])),
    ],
)
def test_types_that_arrow_writes_differently_are_left_to_spark(kind: pa.DataType) -> None:
    assert form_of(pa.schema([("value", kind)])) is None


def test_timestamps_of_both_kinds_are_left_to_spark_if_only_one_kind_is_int96() -> None:
    both = pa.schema([("at", pa.timestamp("us", "UTC")), ("local", pa.list_(pa.timestamp("us")))])
    assert form_of(both) is None
    assert form_of(both, settings=MICROS) is not None


def test_a_subtask_without_rows_has_no_file(tmp_path: Path) -> None:
    assert output(tmp_path).write(SubtaskIndex(0), numbers([], [])) is None
    assert list(tmp_path.iterdir()) == []


def test_two_tasks_of_a_subtask_write_separate_files(tmp_path: Path) -> None:
    names = [output(tmp_path).write(SubtaskIndex(0), numbers([at])) for at in range(3)]
    assert [pq.read_table(tmp_path / str(name)).column("n").to_pylist() for name in names] == [[0], [1], [2]]


def test_rows_are_written_as_soon_as_they_fill_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_output, "ROWS_MAX", 3)
    sizes: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in numbers([1], [2, 3], [], [4, 5, 6, 7], [8]):
            yield batch
            sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))

    name = output(tmp_path).write(SubtaskIndex(0), batches())
    written = pq.ParquetFile(tmp_path / str(name))
    assert [written.metadata.row_group(at).num_rows for at in range(written.num_row_groups)] == [3, 4, 1]
    assert written.read().column("n").to_pylist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sizes[0] == 0 < sizes[-1]


def test_a_task_whose_directory_is_gone_fails_and_creates_none(tmp_path: Path) -> None:
    with pytest.raises(SinkPublishError, match="No such file"):
        output(tmp_path / "gone").write(SubtaskIndex(0), numbers([1]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("refusal", [FileNotFoundError, NotADirectoryError])
def test_a_directory_that_refuses_is_not_waited_for(refusal: type[OSError]) -> None:
    with pytest.raises(SinkPublishError, match="failed: no"), hadoop_files.file_failures("/out"):
        raise refusal(1, "no")


def test_a_right_that_is_missing_is_named_and_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(SinkForbiddenError, match=f"^{tmp_path}: no$"), hadoop_files.file_failures("/out"):
        raise PermissionError(1, "no", str(tmp_path))


def test_a_full_disk_is_awaited() -> None:
    with pytest.raises(SinkUnavailableError, match="No space left"), hadoop_files.file_failures("/out"):
        Path("/dev/full").write_text("full")


def test_an_error_of_the_operator_is_not_taken_for_the_file_systems(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from numbers([1])
        raise FileNotFoundError("the user's")

    with pytest.raises(FileNotFoundError, match="the user's"):
        output(tmp_path).write(SubtaskIndex(0), batches())
