"""The types of Avro schemas in Flink's serializers.

Flink writes values of Avro in a form of its own: numbers have a fixed size, as in Java's `DataOutput`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .errors import FlinkSavepointError, ImportUnsupportedError
from .java_data import JavaData

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    AvroType = tuple[pa.DataType, Callable[[JavaData], Any]]

_DEPTH_MAX = 32


def avro_type(schema: str) -> AvroType:
    """Returns the type of a schema's values, and their reader.

    Raises:
        ImportUnsupportedError: Values of the schema have no type here, such as unions of several types.
    """
    try:
        return _type(json.loads(schema), 0)
    except (ValueError, KeyError, TypeError):
        raise ImportUnsupportedError("the schema of an Avro serializer cannot be read") from None


def _type(schema: Any, depth: int) -> AvroType:
    if depth > _DEPTH_MAX:
        raise ImportUnsupportedError("an Avro schema is nested too deeply")
    if isinstance(schema, list):
        return _union(schema, depth)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and kind in _COMPLEX:
        return _COMPLEX[kind](schema, depth + 1)
    if isinstance(kind, dict | list):
        return _type(kind, depth + 1)
    if kind not in _PRIMITIVE:
        raise ImportUnsupportedError(f"an Avro schema uses the type {kind!r}, which cannot be read")
    return _PRIMITIVE[kind]


def _record(schema: Mapping[str, Any], depth: int) -> AvroType:
    fields = [(each["name"], *_type(each["type"], depth)) for each in schema["fields"]]
    of_type = pa.struct([(name, each) for name, each, _ in fields])
    return of_type, lambda data: {name: read(data) for name, _, read in fields}


def _array(schema: Mapping[str, Any], depth: int) -> AvroType:
    of_item, read = _type(schema["items"], depth)
    return pa.list_(of_item), lambda data: _blocks(data, read)


def _map(schema: Mapping[str, Any], depth: int) -> AvroType:
    of_value, read = _type(schema["values"], depth)
    return pa.map_(pa.string(), of_value), lambda data: _blocks(data, lambda each: (_text(each), read(each)))


def _enum(schema: Mapping[str, Any], _depth: int) -> AvroType:
    symbols = [str(each) for each in schema["symbols"]]
    return pa.string(), lambda data: symbols[_place(data, len(symbols))]


def _fixed(schema: Mapping[str, Any], _depth: int) -> AvroType:
    size = int(schema["size"])
    return pa.binary(), lambda data: data.read(size)


def _union(branches: list[Any], depth: int) -> AvroType:
    others = [branch for branch in branches if branch != "null"]
    if len(others) != 1:
        raise ImportUnsupportedError("an Avro schema has a union of several types")
    of_type, read_other = _type(others[0], depth + 1)

    def read(data: JavaData) -> Any:
        return None if branches[_place(data, len(branches))] == "null" else read_other(data)

    return of_type, read


def _place(data: JavaData, count: int) -> int:
    place = data.int32()
    if not 0 <= place < count:
        raise FlinkSavepointError("the file is damaged: an Avro value has an unknown type or symbol")
    return place


def _text(data: JavaData) -> str:
    try:
        return data.block().decode()
    except UnicodeError:
        raise FlinkSavepointError("the file is damaged: a text has impossible characters") from None


def _blocks(data: JavaData, read: Callable[[JavaData], Any]) -> list[Any]:
    """Reads the items of blocks.

    Each block begins with the number of its items; the number 0 ends the last.
    """
    found: list[Any] = []
    while count := data.varint():
        data.check_count(count)
        found.extend(read(data) for _ in range(count))
    return found


_COMPLEX: dict[str, Callable[[Mapping[str, Any], int], AvroType]] = {
    "record": _record,
    "array": _array,
    "map": _map,
    "enum": _enum,
    "fixed": _fixed,
}
_PRIMITIVE: dict[str, AvroType] = {
    "boolean": (pa.bool_(), JavaData.boolean),
    "int": (pa.int32(), JavaData.int32),
    "long": (pa.int64(), JavaData.int64),
    "float": (pa.float32(), JavaData.float32),
    "double": (pa.float64(), JavaData.float64),
    "bytes": (pa.binary(), JavaData.block),
    "string": (pa.string(), _text),
}
