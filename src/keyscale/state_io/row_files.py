"""Rows as CSV, JSON or Parquet."""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
import math
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa


class RowFormat(StrEnum):
    """A format of rows."""

    CSV = "csv"
    JSON = "json"  # an object per line
    PARQUET = "parquet"  # only in files


def write_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: Path, row_format: RowFormat) -> int:
    """Writes rows to a file, which appears only when it is complete.

    Returns:
        The number of rows.

    Raises:
        OSError: The file cannot be written.
    """
    unfinished = file.with_name(f"{file.name}.unfinished")
    counted = _Counted(batches)
    try:
        if row_format is RowFormat.PARQUET:
            with parquet.ParquetWriter(unfinished, schema) as writer:
                for batch in counted:
                    writer.write_batch(batch)
        else:
            with unfinished.open("w", encoding="utf-8", newline="") as text:
                text.writelines(lines_of(counted, schema, row_format))
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return counted.rows


def lines_of(batches: Iterable[pa.RecordBatch], schema: pa.Schema, row_format: RowFormat) -> Iterator[str]:
    """Yields rows as lines of text, with a head in CSV.

    Values of structs, lists and maps are JSON in CSV.
    """
    if row_format is RowFormat.CSV:
        yield _csv_line(schema.names)
    for batch in batches:
        for row in batch.to_pylist():
            plain = {name: plain_value(value) for name, value in row.items()}
            if row_format is RowFormat.CSV:
                yield _csv_line([_csv_value(value) for value in plain.values()])
            else:
                yield json.dumps(plain, ensure_ascii=False) + "\n"


def plain_value(value: Any) -> Any:  # noqa: PLR0911 (one branch per type)
    """Returns a value of a row as JSON can hold it.

    Bytes are base64, times are ISO 8601, decimals are text unless they are whole numbers, and `NaN`, `Infinity` and
    `-Infinity` are text.
    """
    match value:
        case dict():
            return {str(name): plain_value(each) for name, each in value.items()}
        case list():
            if value and all(isinstance(each, tuple) and len(each) == 2 for each in value):  # a map
                return {_name(name): plain_value(each) for name, each in value}
            return [plain_value(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else str(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def _name(value: Any) -> str:
    plain = plain_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _csv_value(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def _csv_line(values: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


class _Counted:
    """Batches, of which the rows are counted."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.rows = 0
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            yield batch
            self.rows += batch.num_rows
