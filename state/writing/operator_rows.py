"""Converts the rows of an operator state to the state of subtasks.

It is the reverse of `OperatorTable` in `keyscale.state.inspection.state_table`, and takes the same columns.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ..operator_state.backend import OperatorStateSnapshot, redistribute
from ..serializers.key_columns import encode_column
from ..serializers.pickled import Pickled
from ..serializers.type_names import type_from_json
from ..serializers.value_serializer import serializer_for
from .row_encoder import RowsInvalidError, named_column, typed_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..operator_state.backend import StoredOperatorState


def operator_states_of(
    state: str, declared: StoredOperatorState, batches: Iterable[pa.RecordBatch], parallelism: int
) -> list[OperatorStateSnapshot]:
    """Returns the state of each subtask, with one operator state.

    An element of a list goes to the subtask that its row names. If a row names no subtask, or a subtask beyond the
    parallelism, then all elements are cut into runs of almost the same length.

    Args:
        state: The name of the state.
        declared: Its distribution and types; its items are ignored.
        batches: The rows: `map_key` and `value` of a broadcast map; `value` of a list, with or without `subtask` and
            `list_index`.
        parallelism: The number of subtasks.

    Raises:
        RowsInvalidError: A column is missing or unknown, a value is missing or does not fit, or two rows have the same
            place or map key.
    """
    rows = _together(state, batches)
    if declared.key_type is not None:
        parts = [_map_items(state, declared, rows)]
    else:
        parts = _list_items(state, declared, rows, parallelism)
    snapshots = [OperatorStateSnapshot({state: msgspec.structs.replace(declared, items=tuple(part))}) for part in parts]
    return redistribute(snapshots, parallelism, claimed=False)


def _together(state: str, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Returns all rows as one batch; None: there are none."""
    some = list(batches)
    try:
        return pa.concat_batches(some) if some else None
    except pa.ArrowInvalid as error:
        raise RowsInvalidError(f"{state!r}: the record batches have different columns") from error


def _map_items(state: str, declared: StoredOperatorState, rows: pa.RecordBatch | None) -> list[Any]:
    if rows is None:
        return []
    _check_columns(state, rows, ("map_key", "value"))
    assert declared.key_type is not None  # noqa: S101 - of a map
    keys = _held_column(rows, type_from_json(declared.key_type), "map_key", state)
    if any(map(_has_nan, keys.to_pylist())):
        raise RowsInvalidError(f"{state!r}: a map_key is a NaN, which a job cannot look up; leave such rows out")
    stored = encode_column(keys).to_list()
    _check_unique(state, stored)
    return list(zip(stored, _values(state, declared, rows), strict=True))


def _list_items(
    state: str, declared: StoredOperatorState, rows: pa.RecordBatch | None, parallelism: int
) -> list[list[Any]]:
    """Returns the elements of each subtask, or all elements in one list."""
    if rows is None:
        return [[]]
    _check_columns(state, rows, ("subtask", "list_index", "value"))
    values = _values(state, declared, rows)
    if None in values:
        raise RowsInvalidError(f"{state!r}: a row has no value; leave such rows out")
    subtasks = _numbers(state, rows, "subtask", [0] * len(rows))
    indexes = _numbers(state, rows, "list_index", range(len(rows)))
    _check_unique(state, list(zip(subtasks, indexes, strict=True)))
    are_named = "subtask" in rows.schema.names and max(subtasks, default=0) < parallelism
    parts: list[list[Any]] = [[] for _ in range(parallelism if are_named else 1)]
    for row in sorted(range(len(rows)), key=lambda row: (subtasks[row], indexes[row])):
        parts[subtasks[row] if are_named else 0].append(values[row])
    return parts


def _values(state: str, declared: StoredOperatorState, rows: pa.RecordBatch) -> list[bytes | None]:
    """Returns the stored value of each row; None for a null."""
    of_type = type_from_json(declared.value_type)
    if isinstance(of_type, Pickled):
        pickles: list[bytes | None] = _held_column(rows, pa.binary(), "value", state).to_pylist()
        return pickles
    column = _held_column(rows, of_type, "value", state)
    encoded = serializer_for(of_type).encode_array(column)
    return [raw if there else None for raw, there in zip(encoded, column.is_valid().to_pylist(), strict=True)]


def _held_column(rows: pa.RecordBatch, of_type: pa.DataType, name: str, state: str) -> pa.Array:
    """Returns a column with values that a job can hold.

    A job has operator state as Python values. Arrow has values that Python lacks, such as times after the year 9999.
    """
    column = typed_column(named_column(rows, name, state), of_type, name, state)
    try:
        column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise RowsInvalidError(f"{state!r}: the column {name!r} does not fit: a job cannot hold a value") from error
    return column


def _numbers(state: str, rows: pa.RecordBatch, name: str, otherwise: Sequence[int]) -> Sequence[int]:
    """Returns a column of numbers from 0, or `otherwise` without it."""
    if name not in rows.schema.names:
        return otherwise
    numbers: list[int | None] = typed_column(named_column(rows, name, state), pa.int64(), name, state).to_pylist()
    if any(number is None or number < 0 for number in numbers):
        raise RowsInvalidError(f"{state!r}: {name} is a number from 0")
    return numbers  # type: ignore[return-value]  # none is null


def _has_nan(key: Any) -> bool:
    """Returns whether a key of a map in memory differs from itself."""
    return any(map(_has_nan, key)) if isinstance(key, list) else key != key  # noqa: PLR0124 - NaN alone


def _check_columns(state: str, rows: pa.RecordBatch, known: Sequence[str]) -> None:
    unknown = sorted({*rows.schema.names} - {*known})
    if unknown:
        raise RowsInvalidError(f"{state!r}: the rows have the unknown columns {', '.join(unknown)}")


def _check_unique(state: str, places: Sequence[Any]) -> None:
    twice = sum(count - 1 for count in Counter(places).values())
    if twice:
        raise RowsInvalidError(f"{state!r}: {twice} rows have the place or map key of another row")
