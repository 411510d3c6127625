"""Parquet files that subtasks write directly.

To readers they look like files of Spark's own writer.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from keyscale.identifiers import SubtaskIndex

from ..operators.column_values import grouped
from ..spark_internals.arrow_schemas import spark_schema_of
from ..spark_internals.hadoop_files import file_failures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PARQUET = "parquet."
"""The prefix of all settings of Hadoop's Parquet writer."""

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
"""The size limit of a row group, which is in a task's memory until it is written."""

# Arrow abandons a dictionary only at this size; until then, a column of unique values pays for the dictionary.
_DICTIONARY_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class _Codec:
    name: str
    ending: str
    level: int | None = None  # as in Spark's writer


_CODECS = {
    "none": _Codec("none", ""),
    "uncompressed": _Codec("none", ""),
    "snappy": _Codec("snappy", ".snappy"),
    "gzip": _Codec("gzip", ".gz", 6),
    "zstd": _Codec("zstd", ".zstd", 3),
}


@dataclass(frozen=True, slots=True)
class ParquetForm:
    """The form of the files that Spark's writer would write.

    Attributes:
        schema: The schema of the rows.
        told: Metadata that Spark's readers expect in a file.
        codec: The compression of pages.
        int96: Whether timestamps have the type INT96, Spark's default.
    """

    schema: pa.Schema
    told: Mapping[str, str]
    codec: _Codec
    int96: bool

    @classmethod
    def of(
        cls, schema: pa.Schema, options: Mapping[str, object], settings: Mapping[str, str], spark_version: str
    ) -> ParquetForm | None:
        """Returns the form of files with a schema.

        Returns None if only Spark can write them.

        Args:
            schema: The schema of the rows.
            options: The options of the writer.
            settings: All settings of the session and of Hadoop.
            spark_version: The version of Spark, from which readers infer the calendar of old dates.
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
            return None  # Arrow writes all timestamps of a file with the same type
        told = {
            "org.apache.spark.version": spark_version,
            "org.apache.spark.sql.parquet.row.metadata": spark_schema_of(schema).json(),
        }
        return cls(pa.schema([field.remove_metadata() for field in schema]), told, codec, int96)

    def writer(self, path: str) -> pq.ParquetWriter:
        """Returns a writer of a new file of this form."""
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
    """The files of a batch, one per subtask with rows.

    Each file has a name that no other task uses.

    Attributes:
        token: The token by which the sink finds the batch.
        directory: The local directory that the files are written to. Tasks do not create it, so they cannot write once
            it is gone.
        form: The form of the files.
    """

    token: str
    directory: str
    form: ParquetForm

    def write(self, subtask: SubtaskIndex, records: Iterator[pa.RecordBatch]) -> str | None:
        """Writes the file of a subtask, a row group at a time.

        Raises:
            SinkForbiddenError: The process's user may not write there.
            SinkPublishError: The directory is gone.
            SinkUnavailableError: The file system failed.
        """
        groups = grouped(records, ROWS_MAX, BYTES_MAX)
        first = next(groups, None)
        return None if first is None else self._write(subtask, chain([first], groups))

    def write_empty(self) -> str:
        """Writes a file without rows, for readers that need the schema.

        Raises as `write` does.
        """
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


def _is_written_alike(kind: pa.DataType) -> bool:
    """Returns whether Arrow and Spark write values of a type equally."""
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_written_alike(kind.field(at).type) for at in range(kind.num_fields))
    return kind in _ATOMS or pa.types.is_decimal128(kind)


def _atoms(kind: pa.DataType) -> Iterator[pa.DataType]:
    if kind.num_fields == 0:
        yield kind
    for at in range(kind.num_fields):
        yield from _atoms(kind.field(at).type)
