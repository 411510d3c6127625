"""Keys that users write as text."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale.errors import KeyscaleError
from keyscale.state.doors.values import SerializationError, exact_array
from keyscale.units import counted

from .json_scalar import value_of_scalar

if TYPE_CHECKING:
    from collections.abc import Sequence


class KeyTextError(KeyscaleError):
    """A text does not fit the key columns of the operator."""

    code = "STATE_KEY_INVALID"
    domain = "user"
    advice = (
        "Write a key of one column as it is, such as `ada` or `17`. Write a key of several columns as a JSON list in "
        'the order of the columns, such as `["ada", 17]`, or as an object with their names.'
    )


def key_of_text(text: str, columns: pa.Schema) -> tuple[Any, ...]:
    """Returns the key in a text, with a value per key column.

    A key of one column is the text itself, or `null`. A key of several columns is a JSON list or object.

    Raises:
        KeyTextError: The text does not fit the columns.
    """
    values = _values(text, columns)
    return tuple(_typed(value, field) for value, field in zip(values, columns, strict=True))


def _values(text: str, columns: pa.Schema) -> Sequence[Any]:
    if len(columns) == 1:
        if text == "null":
            return [None]
        is_json = not pa.types.is_string(columns.field(0).type) and text[:1] in {"{", "["}
        return [_json(text)] if is_json else [text]
    given = _json(text)
    if isinstance(given, dict):
        if set(given) != set(columns.names):
            raise KeyTextError(f"the key has the columns {', '.join(columns.names)}")
        return [given[name] for name in columns.names]
    if not isinstance(given, list) or len(given) != len(columns):
        raise KeyTextError(f"the key has {counted(len(columns), 'column')}: {', '.join(columns.names)}")
    return given


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise KeyTextError("a key of several columns is written as JSON") from None


def _typed(value: Any, field: pa.Field) -> Any:
    """Returns a value of JSON as a value of a key column."""
    if value is None:
        return None
    try:
        if isinstance(value, (dict, list)) or pa.types.is_nested(field.type):
            return exact_array([value], field.type)[0].as_py()
        if field.type == pa.uuid():
            return uuid.UUID(str(value))
        return value_of_scalar(value, field.type)
    except (ValueError, TypeError, pa.ArrowException, SerializationError):
        raise KeyTextError(
            f"{field.name!r} is a column of type {field.type}, which cannot hold the given value exactly"
        ) from None
