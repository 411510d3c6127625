"""Conversions between Arrow batches and Python values, one column at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from keyscale.state.doors.values import SerializationError, exact_array, other_names
from keyscale.units import counted

from ..errors import OutputTypeError
from .split_name import split_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# When a batch is cut, its later part reads the earlier part's unwritten changes from a dict, which is slower.
COMBINED_ROWS_MAX = 1 << 17
COMBINED_BYTES_MAX = 32 << 20
RESULTS_MAX = 10_000
RESULT_BYTES_MAX = 8 << 20
_FIRST_RESULTS = 16
_RESULTS_GROWTH = 32

_INT64_MAX = (1 << 63) - 1
_MS_IN = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


class BatchSize:
    """The number of results per output batch.

    The number is lower if results are large, judged by the batches before.

    Attributes:
        rows: The number of results after which a batch is complete.
    """

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = _FIRST_RESULTS

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Takes note of a batch's size; returns the batch."""
        fit = RESULT_BYTES_MAX * batch.num_rows // max(1, batch.nbytes)
        self.rows = max(1, min(fit, RESULTS_MAX, _RESULTS_GROWTH * self.rows))
        return batch


def combined(
    batches: Iterable[pa.RecordBatch], rows_max: int = COMBINED_ROWS_MAX, bytes_max: int = COMBINED_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """Combines batches; state costs less per row in larger batches.

    The result has no empty batch.

    Args:
        batches: The batches as Spark sends them.
        rows_max: A batch with this many rows is complete.
        bytes_max: A batch with this many bytes is complete, so that little more is in memory at once.
    """
    return (pa.concat_batches(group) for group in grouped(batches, rows_max, bytes_max))


def grouped(batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int) -> Iterator[list[pa.RecordBatch]]:
    """Groups the batches with rows; each group is one batch of `combined`."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if rows >= rows_max or size >= bytes_max:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting


def rehearse_conversion(_: object) -> bytes:
    """Makes a worker import pandas ahead of the first batch.

    Arrow imports pandas for the first Python values, which takes most of a second.
    """
    pa.array([None])
    return b""


def tuples_of(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Returns the rows of some columns.

    Converting whole columns is several times faster than converting rows.
    """
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def timestamps_ms(batch: pa.RecordBatch, name: str) -> list[int | None]:
    """Converts a column of times to milliseconds since the epoch.

    An integer column already holds milliseconds.
    """
    column = batch.column(name)
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]  # pyarrow publishes no types
    factor, divisor = _MS_IN[column.type.unit]
    # Floor, not truncation, so that times before the epoch are also rounded down.
    return [None if ticks is None else ticks * factor // divisor for ticks in column.cast(pa.int64()).to_pylist()]


def latest_ms(batch: pa.RecordBatch, name: str) -> int | None:
    """Returns the latest time of a column in milliseconds since the epoch.

    Returns None if the column has no time.
    """
    column = batch.column(name)
    ticks = pc.max(column.cast(pa.int64())).as_py()
    return timestamps_ms(pa.record_batch({name: pa.array([ticks], pa.int64()).cast(column.type)}), name)[0]


def up_to_ms(batch: pa.RecordBatch, name: str, until_ms: int) -> pa.RecordBatch:
    """Returns the records up to a time.

    Records without a time stay.
    """
    column = batch.column(name)
    factor, divisor = _MS_IN[column.type.unit] if pa.types.is_timestamp(column.type) else (1, 1)
    last = min(((until_ms + 1) * divisor - 1) // factor, _INT64_MAX)
    ticks = column.cast(pa.int64())
    if (pc.max(ticks).as_py() or 0) <= last:
        return batch
    return batch.filter(pc.fill_null(pc.less_equal(ticks, last), True))


def latest_by_ms(batch: pa.RecordBatch, name: str, by: Sequence[str]) -> dict[str, int]:
    """Returns the latest time of a column by values of other columns.

    Times are in milliseconds since the epoch.

    Args:
        batch: The records.
        name: The column of times; records without a time do not count.
        by: The other columns. Their values are joined as in a split's name.
    """
    places = [f"by-{place}" for place in range(len(by))]
    columns = [batch.column(column) for column in by]
    kind = batch.schema.field(name).type
    times = pa.table([*columns, batch.column(name).cast(pa.int64())], names=[*places, "time"])
    latest = times.group_by(places).aggregate([("time", "max")])
    found = pa.record_batch({"latest": latest["time_max"].combine_chunks().cast(kind)})
    values = zip(*(latest[place].to_pylist() for place in places), strict=True)
    return {
        split_name(of_split): latest_ms
        for of_split, latest_ms in zip(values, timestamps_ms(found, "latest"), strict=True)
        if latest_ms is not None
    }


def batch_of(results: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Converts output records to one batch.

    Each record is a dict of all columns or a tuple in their order.

    Raises:
        OutputTypeError: A result is not a dict or tuple, has other columns, or has a value of another type.
    """
    columns = _columns_of(results, tuple(schema.names))
    arrays = [output_column(exact_array, values, field) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_that_pass(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Returns a batch's rows as records of an output schema, if equal.

    Returns None if the rows need conversion.

    Rows with nested values always need conversion, since a function can change nested values in place.
    """
    if (batch.schema.names, batch.schema.types) != (schema.names, schema.types) or any(
        map(pa.types.is_nested, schema.types)
    ):
        return None
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _columns_of(results: list[Any], names: tuple[str, ...]) -> list[list[Any]] | list[tuple[Any, ...]]:
    kinds = {type(result) for result in results}
    if kinds == {dict}:
        if {len(result) for result in results} == {len(names)}:
            try:
                return [[result[name] for result in results] for name in names]
            except KeyError:
                pass  # refused below, with the name of the column
        _refuse_other_columns(results, names)
    rows = [tuple_of(result, names) for result in results]
    return list(zip(*rows, strict=True)) if rows else [()] * len(names)


def tuple_of(result: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Converts a user's result to a tuple.

    The result is a dict of all columns or a tuple in their order.

    Raises:
        OutputTypeError: The result is not a dict or tuple, or has other columns.
    """
    if isinstance(result, dict):
        _refuse_other_columns([result], names)
        return tuple(result[name] for name in names)
    if not isinstance(result, tuple):
        raise OutputTypeError(
            f"a result is a {type(result).__name__}; yield a dict of all output columns or a tuple in their order, "
            "or return a list of them"
        )
    if len(result) != len(names):
        raise OutputTypeError(
            f"a result has {counted(len(result), 'value')} for the {counted(len(names), 'column')} {', '.join(names)}"
        )
    return result


def _refuse_other_columns(results: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    for result in results:
        if problem := other_names(result.keys(), names, "column"):
            raise OutputTypeError(f"a result comes {problem}")


def output_column(convert: Callable[[Any, pa.DataType], pa.Array], values: Any, field: pa.Field) -> pa.Array:
    """Returns values of a result as an output column.

    Args:
        convert: The conversion to the column's type.
        values: What the user's function returned.
        field: The output column.

    Raises:
        OutputTypeError: The column cannot hold a value without loss.
    """
    try:
        return convert(values, field.type)
    except SerializationError as error:
        reason = str(error)
    # Outside the handler: the error's context may quote a value.
    raise OutputTypeError(f"output column {field.name!r} is declared {field.type}: {reason}")
