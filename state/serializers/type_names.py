"""Arrow types as readable JSON, for stored schemas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..errors import UnsupportedTypeError
from .pickled import Pickled
from .structured import Structured

TypeJson = str | list[Any]

_SIMPLE = {
    "bool": pa.bool_(), "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(),
    "date": pa.date32(), "uuid": pa.uuid(), "pickle": Pickled(),
}  # fmt: skip
_TEXTS = {pa.uuid(): "uuid", Pickled(): "pickled object"}
_NAMES = {**{each: name for name, each in _SIMPLE.items()}, pa.large_string(): "string", pa.large_binary(): "binary"}


def type_to_json(of_type: pa.DataType) -> TypeJson:  # noqa: PLR0911 (one branch per type)
    """Returns a type as a name, or a name with parts.

    Large strings become plain strings.

    Raises:
        UnsupportedTypeError: The type cannot be stored.
    """
    types = pa.types
    if isinstance(of_type, Structured):
        return type_to_json(of_type.storage_type)
    if of_type in _NAMES:
        return _NAMES[of_type]
    if types.is_timestamp(of_type):
        return ["timestamp", of_type.unit, of_type.tz]
    if types.is_decimal(of_type):
        return ["decimal", of_type.precision, of_type.scale]
    if types.is_fixed_size_binary(of_type):
        return ["binary", of_type.byte_width]
    if types.is_list(of_type) or types.is_large_list(of_type):
        return ["list", type_to_json(of_type.value_type)]
    if types.is_map(of_type):
        return ["map", type_to_json(of_type.key_type), type_to_json(of_type.item_type)]
    if types.is_struct(of_type):
        return ["struct", *([field.name, type_to_json(field.type)] for field in of_type)]
    raise UnsupportedTypeError(f"{of_type} cannot be stored")


def type_from_json(json: TypeJson) -> pa.DataType:  # noqa: PLR0911 (one branch per type)
    """Returns the type that `type_to_json` wrote.

    Raises:
        UnsupportedTypeError: This version does not know the type.
    """
    match json:
        case str() if json in _SIMPLE:
            return _SIMPLE[json]
        case ["timestamp", str(unit), zone]:
            return pa.timestamp(unit, zone)
        case ["decimal", int(precision), int(scale)]:
            return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
        case ["binary", int(width)]:
            return pa.binary(width)
        case ["list", item]:
            return pa.list_(type_from_json(item))
        case ["map", key, item]:
            return pa.map_(type_from_json(key), type_from_json(item))
        case ["struct", *fields]:
            return pa.struct([pa.field(name, type_from_json(each)) for name, each in fields])
        case _:
            raise UnsupportedTypeError(f"{json!r} is not a stored type that this version knows")


def type_text(json: TypeJson) -> str:
    """Returns a stored type as readable text.

    For example `struct<name: string, at: uuid>`.
    """
    text = str(type_from_json(json))
    for of_type, name in _TEXTS.items():
        text = text.replace(str(of_type), name)
    return text
