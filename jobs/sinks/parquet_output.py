"""Parquet files that subtasks write themselves; readers cannot tell them from those of Spark's own writer."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.errors import SinkPublishError
from jobs.runtime.columns import grouped
from state.identifiers import SubtaskIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PARQUET = "parquet."
"""What the names of all settings of Hadoop's Parquet writer begin with."""

_CODEC_SETTING = "spark.sql.parquet.compression.codec"
_TIMESTAMPS_SETTING = "spark.sql.parquet.outputTimestampType"
_SHAPING = (PARQUET, "spark.sql.parquet.", "spark.sql.files.maxRecordsPerFile", "spark.sql.sources.commitProtocol")
_UTC = pa.timestamp("us", "UTC")
_ATOMS = frozenset(
    {
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), _UTC),
    }
)

ROWS_MAX = 1 << 20
BYTES_MAX = 32 << 20
"""Of a row group: so much is in a task's memory before it is written."""

# Arrow gives a dictionary up only when it has become this large, and a column of unique values has paid for it until then.
_DICTIONARY_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class _Codec:
    name: str
    ending: str
    level: int | None = None  # that of Spark's writer


_CODECS = {
    "none": _Codec("none", ""),
    "uncompressed": _Codec("none", ""),
    "snappy": _Codec("snappy", ".snappy"),
    "gzip": _Codec("gzip", ".gz", 6),
    "zstd": _Codec("zstd", ".zstd", 3),
}


@dataclass(frozen=True, slots=True)
class ParquetForm:
    """How Spark's writer would form its files.

    Attributes:
        schema: Of the rows.
        told: What Spark's readers want to find in a file.
        codec: Of the pages.
        int96: Whether timestamps are in Spark's old, still usual type.
    """

    schema: pa.Schema
    told: Mapping[str, str]
    codec: _Codec
    int96: bool

    @classmethod
    def of(
        cls, schema: pa.Schema, options: Mapping[str, object], settings: Mapping[str, str], spark_version: str
    ) -> ParquetForm | None:
        """The form of files of a schema; None if only Spark can give them theirs.

        Args:
            schema: Of the rows.
            options: Of the writer.
            settings: All that are set, of the session and of Hadoop.
            spark_version: Which says by what calendar old dates were written.
        """
        if options.keys() - {"compression"} or not all(_is_written_alike(kind) for kind in schema.types):
            return None
        others = {name for name in settings if name.startswith(_SHAPING)} - {_CODEC_SETTING, _TIMESTAMPS_SETTING}
        codec = _CODECS.get(str(options.get("compression", settings.get(_CODEC_SETTING, "snappy"))).lower())
        if others or codec is None:
            return None
        atoms = {atom for kind in schema.types for atom in _atoms(kind)}
        timestamps = settings.get(_TIMESTAMPS_SETTING, "INT96").upper()
        int96 = timestamps == "INT96" and _UTC in atoms
        if timestamps not in {"INT96", "TIMESTAMP_MICROS"} or (int96 and pa.timestamp("us") in atoms):
            return None  # Arrow writes all timestamps of a file in one type
        told = {
            "org.apache.spark.version": spark_version,
            "org.apache.spark.sql.parquet.row.metadata": from_arrow_schema(schema, prefer_timestamp_ntz=True).json(),
        }
        return cls(pa.schema([field.remove_metadata() for field in schema]), told, codec, int96)

    def writer(self, path: str) -> pq.ParquetWriter:
        """Opens a file of this form."""
        writer = pq.ParquetWriter(
            path,
            self.schema,
            compression=self.codec.name,
            compression_level=self.codec.level,
            use_deprecated_int96_timestamps=self.int96,
            store_decimal_as_integer=True,
            store_schema=False,
            dictionary_pagesize_limit=_DICTIONARY_BYTES_MAX,
            write_page_checksum=True,
        )
        writer.add_key_value_metadata(self.told)
        return writer


@dataclass(frozen=True, slots=True)
class ParquetOutput:
    """A batch's files, one a subtask that has rows, each of a name that no other task has.

    Attributes:
        token: What the sink finds the batch by.
        directory: Where the files are written: a local path. A task makes no directory, so none can write once this one is gone.
        form: Of the files.
    """

    token: str
    directory: str
    form: ParquetForm

    def write(self, subtask: SubtaskIndex, records: Iterator[pa.RecordBatch]) -> str | None:
        """Writes the file of a subtask, a row group at a time.

        Raises:
            SinkPublishError: The file system failed.
        """
        groups = grouped(records, ROWS_MAX, BYTES_MAX)
        first = next(groups, None)
        return None if first is None else self._write(subtask, chain([first], groups))

    def write_empty(self) -> str:
        """Writes a file without rows, for readers who take the schema from it. Raises as `write` does."""
        return self._write(SubtaskIndex(0), ())

    def _write(self, subtask: SubtaskIndex, groups: Iterable[list[pa.RecordBatch]]) -> str:
        name = f"part-{subtask:05d}-{uuid.uuid4()}-c000{self.form.codec.ending}.parquet"
        with file_failures(self.directory):
            writer = self.form.writer(f"{self.directory}/{name}")
        try:
            for group in groups:
                with file_failures(self.directory):
                    writer.write_table(pa.Table.from_batches(group).cast(self.form.schema))
        finally:
            with file_failures(self.directory):
                writer.close()
        return name


@contextlib.contextmanager
def file_failures(path: str) -> Iterator[None]:
    """Turns what the file system below a path refuses into SinkPublishError."""
    try:
        yield
    except OSError as failure:
        message = f"the file system of {path} failed: {failure.strerror or type(failure).__name__}"
        raise SinkPublishError(message) from failure


def _is_written_alike(kind: pa.DataType) -> bool:
    """Whether Arrow and Spark write values of a type in the same way."""
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_written_alike(kind.field(at).type) for at in range(kind.num_fields))
    return kind in _ATOMS or pa.types.is_decimal128(kind)


def _atoms(kind: pa.DataType) -> Iterator[pa.DataType]:
    if kind.num_fields == 0:
        yield kind
    for at in range(kind.num_fields):
        yield from _atoms(kind.field(at).type)
