"""The two forms of a processor's records.

They are Spark's Rows and pandas DataFrames, for input and output.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row

from keyscale.state.doors.values import encoded_keys, exact_array
from keyscale.units import counted

from ..errors import OutputTypeError
from ..operators.column_values import batch_of, output_column, tuple_of, tuples_of
from ..operators.operator_contract import KEY_GROUP_COLUMN
from ..spark_internals.pandas_columns import column_of_series, series_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

FRAME_ROWS: Final = 10_000
"""The maximum number of rows of a DataFrame, as in Spark by default."""


class RecordForm(StrEnum):
    """The form of the records that `handleInputRows` takes and returns."""

    ROWS = "rows"
    PANDAS = "pandas"


class KeyRecords(NamedTuple):
    """All records of one key in a batch.

    Read the records once, and before the records of the next key.

    Attributes:
        key_group: The key's group.
        key: The key.
        shown_key: The key as the processor sees it.
        records: The records: Rows, or DataFrames of one or more.
    """

    key_group: int
    key: tuple[Any, ...]
    shown_key: tuple[Any, ...]
    records: Iterator[Any]


class _Piece(NamedTuple):
    """Some records of one key: a Row, or a DataFrame.

    `code` numbers the key.
    """

    code: int
    key_group: int
    key: tuple[Any, ...]
    shown_key: tuple[Any, ...]
    records: Any


def records_by_key(
    batches: list[pa.RecordBatch], key_columns: tuple[str, ...], form: RecordForm
) -> Iterator[KeyRecords]:
    """Yields the records of each key, in their order.

    Records are single Rows, or DataFrames of many rows.
    """
    if not batches:
        return
    table = pa.Table.from_batches(batches).combine_chunks()
    if not table.num_rows:
        return
    codes = _key_codes(table, key_columns)
    order = np.argsort(codes, kind="stable")
    pieces = _row_pieces if form is RecordForm.ROWS else _frame_pieces
    for _, group in groupby(pieces(table, codes[order], order, key_columns), attrgetter("code")):
        first = next(group)
        yield KeyRecords(first.key_group, first.key, first.shown_key, _records(first, group))  # noqa: B031 - begins with `first`


def output_batch(result: Any, schema: pa.Schema, form: RecordForm) -> pa.RecordBatch:
    """Converts output, a list of Rows or one DataFrame, to a batch.

    Raises:
        OutputTypeError: The output is something else, or does not fit the schema.
    """
    if form is RecordForm.PANDAS:
        return _of_frame(result, schema)
    return batch_of([_values_of(row, schema.names) for row in result], schema)


def _key_codes(table: pa.Table, key_columns: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Numbers the keys of rows by first occurrence.

    Rows of one key share a number.
    """
    encoded = encoded_keys([table.column(name).combine_chunks() for name in key_columns])
    known: dict[bytes, int] = {}
    numbers = (known.setdefault(raw, len(known)) for raw in encoded.to_list())
    return np.fromiter(numbers, np.int64, len(encoded))


def _taken(table: pa.Table, rows: npt.NDArray[np.intp]) -> pa.RecordBatch:
    return table.take(pa.array(rows)).combine_chunks().to_batches()[0]


def _row_pieces(
    table: pa.Table, codes: npt.NDArray[np.int64], order: npt.NDArray[np.intp], key_columns: tuple[str, ...]
) -> Iterator[_Piece]:
    names = [name for name in table.schema.names if name != KEY_GROUP_COLUMN]
    row = Row(*names)
    for start in range(0, len(order), FRAME_ROWS):
        chunk = _taken(table, order[start : start + FRAME_ROWS])
        groups = chunk.column(KEY_GROUP_COLUMN).to_pylist()
        keys, rows = tuples_of(chunk, key_columns), tuples_of(chunk, names)
        chunk_codes = codes[start : start + FRAME_ROWS].tolist()
        for code, group, key, values in zip(chunk_codes, groups, keys, rows, strict=True):
            yield _Piece(code, group, key, key, row(*values))


def _frame_pieces(
    table: pa.Table, codes: npt.NDArray[np.int64], order: npt.NDArray[np.intp], key_columns: tuple[str, ...]
) -> Iterator[_Piece]:
    for bounds in _chunk_bounds(codes):
        first = bounds[0]
        chunk = _taken(table, order[first : bounds[-1]])
        frames = Frames(chunk.drop_columns([KEY_GROUP_COLUMN]))
        beginnings = chunk.take(pa.array([start - first for start in bounds[:-1]]))
        groups = beginnings.column(KEY_GROUP_COLUMN).to_pylist()
        keys = tuples_of(beginnings, key_columns)
        shown = zip(*(_shown(beginnings.column(name), chunk.schema.field(name)) for name in key_columns), strict=True)
        for (start, end), group, key, shown_key in zip(pairwise(bounds), groups, keys, shown, strict=True):
            yield _Piece(int(codes[start]), group, key, shown_key, frames.of(start - first, end - first))


def _chunk_bounds(codes: npt.NDArray[np.int64]) -> Iterator[list[int]]:
    """Yields the bounds of frames, in chunks of about a frame's maximum.

    A frame has rows of one key. A key has several frames only if its rows do not fit into one frame.
    """
    keys = pairwise([0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)])
    bounds = [0]
    for key_start, key_end in keys:
        for start in range(key_start, key_end, FRAME_ROWS):
            end = min(start + FRAME_ROWS, key_end)
            if end - bounds[0] > FRAME_ROWS and len(bounds) > 1:
                yield bounds
                bounds = [start]
            bounds.append(end)
    yield bounds


def _records(first: _Piece, others: Iterable[_Piece]) -> Iterator[Any]:
    yield first.records
    for piece in others:
        yield piece.records


class Frames:
    """The rows of a batch as DataFrames.

    A frame's types depend on its own rows alone. The types are as in Spark's frames: 64 bits for all numbers; floats
    for integers, and objects for booleans, if there is a null; nanoseconds for times. Unlike in Spark, numbers are
    never rounded and times never out of range: in such a frame integers with nulls are objects, and times have
    microseconds.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._by_frame: list[pa.Field] = []  # columns with types that depend on the rows of a frame
        whole: dict[str, Any] = {}
        for field, column in zip(batch.schema, batch.columns, strict=True):
            whole[field.name] = None
            if not _depends_on_rows(column):
                try:
                    whole[field.name] = series_of(_widened(column), field)
                    continue
                except pa.ArrowInvalid:  # a time is out of range
                    pass
            self._by_frame.append(field)
        self._whole = _pandas().DataFrame(whole, index=range(batch.num_rows))

    def of(self, start: int, end: int) -> Any:
        """Returns the rows from `start` up to `end`."""
        frame = self._whole.iloc[start:end].reset_index(drop=True)
        for field in self._by_frame:
            frame[field.name] = _frame_series(self._batch.column(field.name).slice(start, end - start), field)
        return frame


def _depends_on_rows(column: pa.Array) -> bool:
    kind = column.type
    may: bool = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return bool(pa.types.is_nested(kind)) or (may and column.null_count > 0)


def _widened(column: pa.Array) -> pa.Array:
    """Widens numbers to 64 bits.

    Spark's numbers have 64 bits, since Spark builds frames from Python values.

    Raises:
        ArrowInvalid: An integer next to a null is not exact as a float.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        return column.cast(pa.float64() if column.null_count else pa.int64())
    return column.cast(pa.float64()) if pa.types.is_floating(kind) else column


def _frame_series(column: pa.Array, field: pa.Field) -> Any:
    try:
        return series_of(_widened(column), field)
    except pa.ArrowInvalid:
        local = pc.local_timestamp(column) if getattr(column.type, "tz", None) else column
        return local.to_pandas(integer_object_nulls=True)


def _shown(column: pa.Array, field: pa.Field) -> list[Any]:
    """Returns key columns as a processor of frames sees them.

    Times are pandas' Timestamps, also within structs.
    """
    values: list[Any] = column.to_pylist()
    if not (pa.types.is_timestamp(field.type) or pa.types.is_nested(field.type)):
        return values
    series = _frame_series(column, field)
    return [None if value is None else at for value, at in zip(values, series.tolist(), strict=True)]


def _pandas() -> Any:
    """Imports pandas, which takes most of a second.

    Only jobs that use DataFrames pay for the import.
    """
    import pandas  # type: ignore[import-untyped]  # noqa: ICN001, PLC0415 - publishes no types

    return pandas


def _values_of(row: Any, names: list[str]) -> tuple[Any, ...]:
    """Returns a Row's values by name, or a plain tuple's by position.

    Missing values are null, as in Spark.
    """
    if isinstance(row, Row) and hasattr(row, "__fields__"):
        values = row.asDict(recursive=True)
        return tuple(values.get(name) for name in names)
    if isinstance(row, tuple):
        return tuple_of(row, tuple(names))
    raise OutputTypeError(f"a result is a {type(row).__name__}; yield Rows with the output's columns")


def _of_frame(frame: Any, schema: pa.Schema) -> pa.RecordBatch:
    if not isinstance(frame, _pandas().DataFrame):
        raise OutputTypeError(
            f"a result is a {type(frame).__name__}; yield pandas DataFrames, or leave out pandas=True"
        )
    if not len(frame.columns):
        return pa.RecordBatch.from_pylist([{}] * len(frame), schema=schema)
    by_name = any(isinstance(label, str) for label in frame.columns)
    missing = [name for name in schema.names if name not in frame.columns] if by_name else []
    if missing or len(frame.columns) < len(schema.names):
        raise OutputTypeError(f"a result has {counted(len(frame.columns), 'column')} and lacks [{', '.join(missing)}]")
    series = [frame[field.name] if by_name else frame.iloc[:, at] for at, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays([_array(*each) for each in zip(series, schema, strict=True)], schema=schema)


def _array(series: Any, field: pa.Field) -> pa.Array:
    objects = _objects_of(series) if not pa.types.is_nested(field.type) else None
    if objects is not None:
        return output_column(exact_array, objects, field)
    try:
        return column_of_series(series, field)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
        pass
    # Raised outside the handler: the message of Spark or Arrow quotes the value.
    raise OutputTypeError(
        f"output column {field.name!r} is declared {field.type}: a series of {series.dtype} is not of that type"
    )


def _objects_of(series: Any) -> list[Any] | None:
    """Returns the values of a series of Python objects as a list.

    Missing values are None. Returns None for other series.

    Spark would cut fractions off such objects. A series of strings is left to Spark, which parses numbers.
    """
    if series.dtype != object:
        return None
    objects = [None if is_missing else value for is_missing, value in zip(series.isna(), series, strict=True)]
    return None if any(isinstance(each, str) for each in objects) else objects
