"""Values that users write as JSON, in the forms of `keyscale.state_io.row_files.plain_value`."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from keyscale.errors import KeyscaleError

from .json_scalar import value_of_scalar


class ValueJsonError(KeyscaleError):
    """A JSON value does not fit the type of a state."""

    code = "STATE_JSON_INVALID"
    domain = "user"
    advice = (
        "Write the value as `./keyscale state get` shows it: numbers and text as they are, bytes as base64, times as"
        " ISO 8601, structs and maps as objects, lists as lists."
    )


def value_of_json(value: Any, of_type: pa.DataType) -> Any:
    """Returns a JSON value as a Python value of a type.

    Raises:
        ValueJsonError: The type cannot hold the value without loss.
    """
    try:
        typed = _typed(value, of_type)
        pa.array([typed], of_type)  # checks lengths and nulls, also of parts
    except (ValueError, TypeError, AttributeError, KeyError, pa.ArrowException):
        raise ValueJsonError(f"the value is not of type {of_type}, or does not fit into it exactly") from None
    return typed


def _typed(value: Any, of_type: pa.DataType) -> Any:  # noqa: C901, PLR0911 (one branch per type)
    types = pa.types
    if value is None:
        return None
    if types.is_struct(of_type):
        if not isinstance(value, dict) or {*value} - {each.name for each in of_type}:
            raise TypeError
        return {each.name: _typed(value[each.name], each.type) for each in of_type}
    if types.is_map(of_type):
        key, item = of_type.key_type, of_type.item_type
        if value == []:  # an empty map is shown as an empty list
            return []
        return [(_typed(_name(name, key), key), _typed(each, item)) for name, each in value.items()]
    if types.is_list(of_type) or types.is_large_list(of_type):
        if not isinstance(value, list):
            raise TypeError
        return [_typed(each, of_type.value_type) for each in value]
    if types.is_binary(of_type) or types.is_large_binary(of_type) or types.is_fixed_size_binary(of_type):
        return base64.b64decode(value, validate=True)
    if types.is_boolean(of_type) is not isinstance(value, bool):
        raise TypeError
    if types.is_string(of_type) and not isinstance(value, str):
        raise TypeError
    if types.is_boolean(of_type):
        return value
    return value_of_scalar(value, of_type)


def _name(name: str, of_type: pa.DataType) -> Any:
    """Returns the key of a JSON object as a value of JSON."""
    return json.loads(name) if pa.types.is_nested(of_type) or pa.types.is_boolean(of_type) else name
