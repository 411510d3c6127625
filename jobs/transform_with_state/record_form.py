"""The two forms that a processor may see records in, Spark's Rows and pandas frames, and what it may put out in each."""

from __future__ import annotations

from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from jobs.errors import OutputTypeError
from jobs.runtime.body import KEY_GROUP_COLUMN
from jobs.runtime.columns import batch_of, tuple_of, tuples_of
from state.serializers.key_columns import encode_column, join_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

_ROWS_A_CHUNK: Final = 10_000  # as many as Spark's own default for a frame


class RecordForm(StrEnum):
    """What `handleInputRows` is given and gives."""

    ROWS = "rows"
    PANDAS = "pandas"


class KeyRecords(NamedTuple):
    """All records of one key in a micro-batch, to be read once and before the next key's."""

    key_group: int
    key: tuple[Any, ...]
    records: Iterator[Any]


def records_by_key(
    batches: list[pa.RecordBatch], key_columns: tuple[str, ...], form: RecordForm
) -> Iterator[KeyRecords]:
    """The records of each key one after another, in their order within it; Rows one by one, or frames of many rows."""
    if not batches:
        return
    table = pa.Table.from_batches(batches).combine_chunks()
    codes = _key_codes(table, key_columns)
    order = np.argsort(codes, kind="stable")
    pieces = _row_pieces if form is RecordForm.ROWS else _frame_pieces
    ordered = _chunks(table, codes, order)
    for _, group in groupby(
        (piece for chunk, chunk_codes in ordered for piece in pieces(chunk, chunk_codes, key_columns)), itemgetter(0)
    ):
        first = next(group)
        yield KeyRecords(first[1], first[2], _records(first, group))  # noqa: B031 - what `next` took is put back


def output_batch(result: Any, schema: pa.Schema, form: RecordForm) -> pa.RecordBatch:
    """Output as records: a list of Rows, or one frame.

    Raises:
        OutputTypeError: It is none, or does not fit the schema.
    """
    if form is RecordForm.PANDAS:
        return _of_frame(result, schema)
    return batch_of([_values_of(row, schema.names) for row in result], schema)


def _key_codes(table: pa.Table, key_columns: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """A number for each row that is the same for rows of one key, in the order that keys come first in."""
    encoded = join_columns([encode_column(table.column(name).combine_chunks()) for name in key_columns])
    known: dict[bytes, int] = {}
    numbers = (known.setdefault(raw, len(known)) for raw in encoded.to_list())
    return np.fromiter(numbers, np.int64, len(encoded))


def _chunks(
    table: pa.Table, codes: npt.NDArray[np.int64], order: npt.NDArray[np.intp]
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
    for start in range(0, len(order), _ROWS_A_CHUNK):
        rows = order[start : start + _ROWS_A_CHUNK]
        yield table.take(pa.array(rows)).combine_chunks().to_batches()[0], codes[rows]


def _row_pieces(
    chunk: pa.RecordBatch, codes: npt.NDArray[np.int64], key_columns: tuple[str, ...]
) -> Iterator[tuple[int, int, tuple[Any, ...], Any]]:
    names = [name for name in chunk.schema.names if name != KEY_GROUP_COLUMN]
    row = Row(*names)
    groups = chunk.column(KEY_GROUP_COLUMN).to_pylist()
    keys, rows = tuples_of(chunk, key_columns), tuples_of(chunk, names)
    for code, group, key, values in zip(codes.tolist(), groups, keys, rows, strict=True):
        yield code, group, key, row(*values)


def _frame_pieces(
    chunk: pa.RecordBatch, codes: npt.NDArray[np.int64], key_columns: tuple[str, ...]
) -> Iterator[tuple[int, int, tuple[Any, ...], Any]]:
    frame = _frame(chunk.drop_columns([KEY_GROUP_COLUMN]))
    groups = chunk.column(KEY_GROUP_COLUMN)
    starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    firsts = chunk.select(list(key_columns)).take(pa.array(starts[:-1], pa.int64()))
    keys = tuples_of(firsts, key_columns)
    for key, start, end in zip(keys, starts[:-1], starts[1:], strict=True):
        yield int(codes[start]), groups[start].as_py(), key, frame.iloc[start:end].reset_index(drop=True)


def _records(first: tuple[Any, ...], others: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    yield first[3]
    for piece in others:
        yield piece[3]


def _frame(batch: pa.RecordBatch) -> Any:
    """As Spark gives it: timestamps without a time zone, here in UTC, dates as objects."""
    frame = batch.to_pandas(date_as_object=True)
    for name, column in frame.items():
        if isinstance(column.dtype, _pandas().DatetimeTZDtype):
            frame[name] = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return frame


def _pandas() -> Any:
    """The package, which takes most of a second to import: only jobs that see records as frames pay for it."""
    import pandas  # type: ignore[import-untyped]  # noqa: ICN001, PLC0415 - publishes no types

    return pandas


def _values_of(row: Any, names: list[str]) -> tuple[Any, ...]:
    """A Row's values by name, null where it has none, as in Spark; a plain tuple's by position."""
    if isinstance(row, Row) and hasattr(row, "__fields__"):
        values = row.asDict(recursive=True)
        return tuple(values.get(name) for name in names)
    if isinstance(row, tuple):
        return tuple_of(row, tuple(names))
    message = f"a result is a {type(row).__name__}; yield Rows with the output's columns"
    raise OutputTypeError(message)


def _of_frame(frame: Any, schema: pa.Schema) -> pa.RecordBatch:
    if not isinstance(frame, _pandas().DataFrame):
        message = f"a result is a {type(frame).__name__}; yield pandas DataFrames, or use the form of Rows"
        raise OutputTypeError(message)
    by_name = all(isinstance(label, str) for label in frame.columns)
    missing = [name for name in schema.names if name not in frame.columns] if by_name else []
    if missing or len(frame.columns) < len(schema.names):
        message = f"a result has {len(frame.columns)} columns and lacks [{', '.join(missing)}]"
        raise OutputTypeError(message)
    series = [frame[field.name] if by_name else frame.iloc[:, at] for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays([_array(*each) for each in zip(series, schema, strict=True)], schema=schema)


def _array(series: Any, field: pa.Field) -> pa.Array:
    try:
        return pa.Array.from_pandas(series, type=field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    # Outside the handler: Arrow's own message quotes the value.
    message = f"output column {field.name!r} is declared {field.type} and was given a series of: {series.dtype}"
    raise OutputTypeError(message)
