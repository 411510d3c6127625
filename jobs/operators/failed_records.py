"""Records that an operator fails on, and their fate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from keyscale.errors import KeyscaleError
from keyscale.state.doors.values import KeyTooLargeError, exact_classes

from ..secret import without_secrets
from .column_values import batch_of, tuple_of
from .failures import exception_line, printable
from .split_name import split_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.state.doors.keyed import KeyedStateBackend

    from ..functions.subtask_info import SubtaskInfo

_SHOWN_CHARACTERS: Final = 200


class FailedRecords:
    """Counts the failed records that do not fail the batch.

    Attributes:
        keeps_batch: Whether a failed record leaves the other records of the batch as they are.
        count: The number of such records.
        first: The first of them: its error and its coordinates.
    """

    def __init__(self, info: SubtaskInfo, dead_letters: str | None = None) -> None:
        self._info = info
        self.keeps_batch = dead_letters is not None or info.failed_records == "drop"
        self.count = 0
        self.first: str | None = None

    def note(self, error: Exception, batch: pa.RecordBatch, row: int, info: SubtaskInfo | None = None) -> None:
        """Notes a failed record.

        Args:
            error: Why it failed.
            batch: The batch with the record.
            row: Its index in the batch.
            info: Describes the input of the batch; by default the first input.

        Raises:
            Exception: The error itself, if the record did not cause it.
        """
        if isinstance(error, KeyscaleError) and error.domain != "user":
            raise error
        self.count += 1
        if self.first is None:
            self.first = f"{exception_line(error)}, {coordinates_of(batch, row, info or self._info)}"


def coordinates_of(batch: pa.RecordBatch, row: int, info: SubtaskInfo) -> str:
    """Returns where a record comes from, as far as the operator knows.

    It is the record's split, its offset if the stream has such a column, and its key.
    """
    known = []
    split_columns = next((each.columns for each in info.splits.values()), ())
    if split_columns and set(split_columns) <= set(batch.schema.names):
        known.append(f"split {split_name([batch.column(name)[row].as_py() for name in split_columns])}")
    if "offset" in info.input_columns:
        known.append(f"offset {batch.column('offset')[row].as_py()}")
    key = [batch.column(name)[row].as_py() for name in info.key_columns]
    known.append(f"key {_shown(key[0] if len(key) == 1 else tuple(key))}")
    return ", ".join(known)


def without_large_keys(
    batch: pa.RecordBatch, state: KeyedStateBackend, info: SubtaskInfo
) -> tuple[pa.RecordBatch, list[tuple[int, KeyTooLargeError]]]:
    """Returns the records whose keys can be stored.

    Also returns the errors of the other records, by row.
    """
    errors = state.large_keys([batch.column(name) for name in info.key_columns])
    if not errors:
        return batch, []
    fits = np.ones(batch.num_rows, np.bool_)
    fits[[row for row, _ in errors]] = False
    return batch.filter(pa.array(fits)), errors


class OutputCheck:
    """Checks that single results fit an output schema.

    Values of the usual types cost little; other values are converted as in an output batch.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = tuple(schema.names)
        self._columns = [_cheap_check(field.type) for field in schema]

    def check(self, results: Sequence[Any]) -> None:
        """Checks results.

        Raises:
            OutputTypeError: A result has other columns, or a column cannot hold a value without loss.
        """
        for result in results:
            values = tuple_of(result, self._names)
            if not all(map(_fits, values, self._columns)):
                batch_of([values], self._schema)


def _cheap_check(of_type: pa.DataType) -> tuple[frozenset[type], int]:
    """Returns the types of values that need no conversion.

    Also returns the limit of integers.
    """
    if pa.types.is_signed_integer(of_type):
        return frozenset({int}), 1 << (of_type.bit_width - 1)
    if pa.types.is_string(of_type) or pa.types.is_boolean(of_type) or pa.types.is_float64(of_type):
        return frozenset(exact_classes(of_type)), 0
    return frozenset(), 0


def _fits(value: Any, column: tuple[frozenset[type], int]) -> bool:
    classes, limit = column
    if value is None:
        return True
    if type(value) not in classes:
        return False
    if type(value) is int:
        return -limit <= value < limit
    return type(value) is not str or value.isascii()  # UTF-8 cannot hold a lone surrogate


def _shown(key: Any) -> str:
    text = without_secrets(printable(repr(key)))  # before it is cut: a part of a secret would not be found
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"
