"""Between Arrow batches and Python values, a column at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from jobs.errors import OutputTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# What is left of a batch that is cut reads from a dict what the first part has changed and not yet written.
COMBINED_ROWS_MAX = 1 << 17
COMBINED_BYTES_MAX = 32 << 20

_MS_IN = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


def combined(
    batches: Iterable[pa.RecordBatch], rows_max: int = COMBINED_ROWS_MAX, bytes_max: int = COMBINED_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, none of them empty: the larger a batch, the less its state costs a row.

    Args:
        batches: As Spark sends them.
        rows_max: A batch that has as many rows is not added to.
        bytes_max: Neither is one that has as many bytes, so that little more than that is in memory at once.
    """
    return (pa.concat_batches(group) for group in grouped(batches, rows_max, bytes_max))


def grouped(batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int) -> Iterator[list[pa.RecordBatch]]:
    """The batches that have rows, in groups that are as large as `combined` makes its batches."""
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
    """Has a worker do what its first rows of Python values take: Arrow imports pandas for them, which takes most of a second."""
    pa.array([None])
    return b""


def tuples_of(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns. A whole column is converted at a time, which is several times faster than a row is."""
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def timestamps_ms(batch: pa.RecordBatch, name: str) -> list[int | None]:
    """A column of times as milliseconds since the epoch; an integer column holds milliseconds already."""
    column = batch.column(name)
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]  # pyarrow publishes no types
    factor, divisor = _MS_IN[column.type.unit]
    # Floor, not truncation: a time before the epoch belongs to the millisecond that began before it.
    return [None if ticks is None else ticks * factor // divisor for ticks in column.cast(pa.int64()).to_pylist()]


def latest_ms(batch: pa.RecordBatch, name: str) -> int | None:
    """The latest time of a column, as `timestamps_ms` gives it; None if there is none."""
    column = batch.column(name)
    ticks = pc.max(column.cast(pa.int64())).as_py()
    return timestamps_ms(pa.record_batch({name: pa.array([ticks], pa.int64()).cast(column.type)}), name)[0]


def batch_of(results: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Output records, each a dict of all columns or a tuple in their order, as one batch.

    Raises:
        OutputTypeError: A result is neither, has other columns, or has a value of another type.
    """
    columns = _columns_of(results, tuple(schema.names))
    arrays = [_array(values, field) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_that_pass(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """A batch's rows as records of an output schema, if they can be such as they are; None if not.

    Not those with parts that a function can change in place.
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
                pass  # the loop below says which column it is
        _refuse_other_columns(results, names)
    rows = [tuple_of(result, names) for result in results]
    return list(zip(*rows, strict=True))


def tuple_of(result: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """A user's result, a dict of all columns or a tuple in their order, as a tuple.

    Raises:
        OutputTypeError: It is neither, or has other columns.
    """
    if isinstance(result, dict):
        _refuse_other_columns([result], names)
        return tuple(result[name] for name in names)
    if not isinstance(result, tuple):
        message = f"a result is a {type(result).__name__}; yield a dict of all output columns or a tuple in their order"
        raise OutputTypeError(message)
    if len(result) != len(names):
        message = f"a result has {len(result)} values for the {len(names)} columns {', '.join(names)}"
        raise OutputTypeError(message)
    return result


def _refuse_other_columns(results: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    wanted = set(names)
    for result in results:
        missing = [name for name in names if name not in result]
        # What is too many is counted, not named: a dict's keys may be data.
        extra = len(result.keys() - wanted)
        if missing or extra:
            message = f"a result lacks the columns [{', '.join(missing)}] and has {extra} that were not declared"
            raise OutputTypeError(message)


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        found = sorted({type(value).__name__ for value in values if value is not None})
    # Outside the handler: Arrow's own message quotes the value.
    message = f"output column {field.name!r} is declared {field.type} and was given values of: {', '.join(found)}"
    raise OutputTypeError(message)
