"""The types that the snapshots of Flink's serializers tell.

A snapshot is the name of its class, a version, and what the class writes. The snapshots of nested serializers follow in
it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .avro_schema import avro_type
from .errors import FlinkSavepointError, ImportUnsupportedError, UnknownSerializerError
from .java_data import JavaData

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PROXY_VERSION = 2
_OUTER_MAGIC = 911108
_NESTED_MAGIC = 1333245
_MAP_MAGIC = 0x4F2C69A3D70
_AVRO_UTF, _AVRO_TEXT = 2, 3
_DEPTH_MAX = 32
_NULL, _OWN_CLASS, _OTHER_CLASS, _TAGGED_CLASS = 1, 2, 4, 8
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class FlinkType:
    """A type of Flink's, and how its values are read.

    Attributes:
        name: The name of the snapshot's class, without its package.
        arrow: The type of the values; null if they cannot be read.
        read: Reads a value.
        parts: The types of the elements, of key and value, or of the fields.
        problem: Why values cannot be read; empty if they can.
        is_tuple: Whether the fields have no names of their own.
    """

    name: str
    arrow: pa.DataType
    read: Callable[[JavaData], Any]
    parts: tuple[FlinkType, ...] = ()
    problem: str = ""
    is_tuple: bool = False


def read_serializer(data: JavaData) -> FlinkType:
    """Reads the snapshot of a serializer in the header of state.

    Raises:
        UnknownSerializerError: The class of the snapshot is unknown.
        FlinkSavepointError: The snapshot is damaged.
    """
    version = data.int32()
    if version != _PROXY_VERSION:
        raise ImportUnsupportedError(f"a serializer's snapshot has version {version}; {_PROXY_VERSION} can be read")
    return _snapshot(data, 0)


def _snapshot(data: JavaData, depth: int) -> FlinkType:
    if depth > _DEPTH_MAX:
        raise FlinkSavepointError("the file is damaged: serializers are nested without an end")
    class_name = data.utf()
    version = data.int32()
    name = class_name.rpartition(".")[2].rpartition("$")[2]
    if (simple := _SIMPLE.get(name)) is not None:
        return FlinkType(name, *simple)
    if (composite := _COMPOSITE.get(name)) is not None:
        return composite(data, name, depth)
    match name:
        case "PojoSerializerSnapshot":
            return _pojo(data, name, depth)
        case "KryoSerializerSnapshot":
            return _kryo(data, name)
        case "EnumSerializerSnapshot":
            return _enum(data, name)
        case "AvroSerializerSnapshot" if version in {_AVRO_UTF, _AVRO_TEXT}:
            return _avro(data, name, version)
    raise UnknownSerializerError(f"the serializer {class_name} is unknown")


def _unreadable(name: str, problem: str) -> FlinkType:
    def refuse(_data: JavaData) -> Any:
        raise ImportUnsupportedError(problem)

    return FlinkType(name, pa.null(), refuse, problem=problem)


# Composite types


def _nested(data: JavaData, depth: int) -> list[FlinkType]:
    """Reads the snapshots of nested serializers."""
    if data.int32() != _NESTED_MAGIC:
        raise FlinkSavepointError("the file is damaged: nested serializers are missing")
    data.int32()
    return [_snapshot(data, depth + 1) for _ in range(data.count())]


def _outer(data: JavaData) -> None:
    if data.int32() != _OUTER_MAGIC:
        raise FlinkSavepointError("the file is damaged: a composite serializer is incomplete")
    data.int32()


def _problem_of(parts: Sequence[FlinkType]) -> str:
    return next((part.problem for part in parts if part.problem), "")


def _tuple(data: JavaData, name: str, depth: int) -> FlinkType:
    _outer(data)
    data.utf()  # the class
    parts = _nested(data, depth)
    if problem := _problem_of(parts):
        return _unreadable(name, problem)
    names = [f"f{place}" for place in range(len(parts))]

    def read(values: JavaData) -> dict[str, Any]:
        return {field: part.read(values) for field, part in zip(names, parts, strict=True)}

    of_struct = pa.struct([(field, part.arrow) for field, part in zip(names, parts, strict=True)])
    return FlinkType(name, of_struct, read, tuple(parts), is_tuple=True)


def _parts(data: JavaData, depth: int, count: int) -> list[FlinkType]:
    _outer(data)
    parts = _nested(data, depth)
    if len(parts) != count:
        raise FlinkSavepointError("the file is damaged: a composite serializer has another number of parts")
    return parts


def _list(data: JavaData, name: str, depth: int) -> FlinkType:
    (element,) = _parts(data, depth, 1)

    def read(values: JavaData) -> list[Any]:
        return [element.read(values) for _ in range(values.count())]

    return FlinkType(name, pa.list_(element.arrow), read, (element,), element.problem)


def _map(data: JavaData, name: str, depth: int) -> FlinkType:
    key, value = _parts(data, depth, 2)

    def read(values: JavaData) -> list[tuple[Any, Any]]:
        return [(key.read(values), None if values.boolean() else value.read(values)) for _ in range(values.count())]

    of_map = pa.map_(key.arrow, value.arrow)
    return FlinkType(name, of_map, read, (key, value), key.problem or value.problem)


def _ttl(data: JavaData, _name: str, depth: int) -> FlinkType:
    """Reads the serializer of a value with a TTL.

    The time of the last access is before the value.
    """
    _, value = _parts(data, depth, 2)

    def read(values: JavaData) -> tuple[int, Any]:
        return values.int64(), value.read(values)

    return FlinkType(TTL, value.arrow, read, (value,), value.problem)


def _timer(data: JavaData, name: str, depth: int) -> FlinkType:
    key, namespace = _parts(data, depth, 2)
    return FlinkType(name, pa.null(), _nothing, (key, namespace), key.problem or namespace.problem)


TTL = "TtlSerializerSnapshot"
_COMPOSITE: dict[str, Callable[[JavaData, str, int], FlinkType]] = {
    "TupleSerializerSnapshot": _tuple,
    "ListSerializerSnapshot": _list,
    "MapSerializerSnapshot": _map,
    TTL: _ttl,
    "TimerSerializerSnapshot": _timer,
}


@dataclass(slots=True)
class _Frames:
    """The entries of an optional map: names, and bytes."""

    values: dict[str, bytes | None] = field(default_factory=dict)

    @classmethod
    def read(cls, data: JavaData) -> _Frames:
        if data.int64() != _MAP_MAGIC:
            raise FlinkSavepointError("the file is damaged: a map of a serializer is missing")
        found = cls()
        for _ in range(data.count()):
            name = data.utf()
            if data.boolean():
                data.block()
            found.values[name] = data.block() if data.boolean() else None
        return found


def _pojo(data: JavaData, name: str, depth: int) -> FlinkType:
    class_name = data.utf()
    fields, registered, others = (_Frames.read(data).values for _ in range(3))
    parts = {}
    for each, snapshot in fields.items():
        if snapshot is None:
            return _unreadable(name, f"the class {class_name} has lost its field {each}")
        try:
            parts[each] = _snapshot(JavaData.of(snapshot), depth + 1)
        except UnknownSerializerError as error:
            return _unreadable(name, str(error))
    if problem := _problem_of([*parts.values()]):
        return _unreadable(name, problem)
    if registered or others:
        return _unreadable(name, f"values of the class {class_name} are of several classes")

    def read(values: JavaData) -> dict[str, Any] | None:
        flags = values.uint8()
        if flags & _NULL:
            return None
        if flags & (_OTHER_CLASS | _TAGGED_CLASS) or not flags & _OWN_CLASS:
            raise ImportUnsupportedError(f"a value of the class {class_name} is of a subclass")
        return {each: None if values.boolean() else part.read(values) for each, part in parts.items()}

    return FlinkType(name, pa.struct([(each, part.arrow) for each, part in parts.items()]), read, tuple(parts.values()))


def _kryo(data: JavaData, name: str) -> FlinkType:
    class_name = data.utf()
    for _ in range(3):
        _Frames.read(data)
    return _unreadable(name, f"Kryo has written the class {class_name}, and only its own code can read it")


def _enum(data: JavaData, name: str) -> FlinkType:
    data.utf()  # the class
    constants = [data.utf() for _ in range(data.count())]

    def read(values: JavaData) -> str:
        place = values.int32()
        if not 0 <= place < len(constants):
            raise FlinkSavepointError("the file is damaged: an enum has no such constant")
        return constants[place]

    return FlinkType(name, pa.string(), read)


def _avro(data: JavaData, name: str, version: int) -> FlinkType:
    _, schema = (data.utf(), data.utf()) if version == _AVRO_UTF else (data.text(), data.text())
    try:
        return FlinkType(name, *avro_type(schema or ""))
    except ImportUnsupportedError as error:
        return _unreadable(name, str(error))


# Simple types


def _bytes(data: JavaData) -> bytes:
    return data.block()


def _character(data: JavaData) -> str:
    return chr(int.from_bytes(data.read(2), "big"))


_NO_TIME = -(1 << 63)


def _date(data: JavaData) -> dt.datetime | None:
    millis = data.int64()
    return None if millis == _NO_TIME else _EPOCH + dt.timedelta(milliseconds=millis)


def _instant(data: JavaData) -> dt.datetime | None:
    seconds, nanos = data.int64(), data.int32()
    return None if seconds == _NO_TIME else _EPOCH + dt.timedelta(seconds=seconds, microseconds=nanos // 1000)


def _local_date(data: JavaData) -> dt.date | None:
    year, month, day = data.int32(), data.int8(), data.int8()
    return None if month <= 0 else dt.date(year, month, day)


def _nothing(_data: JavaData) -> None:
    return None


def _void_namespace(data: JavaData) -> None:
    data.uint8()


def _window(data: JavaData) -> dict[str, int]:
    return {"start": data.int64(), "end": data.int64()}


def _array_of(read: Callable[[JavaData], Any]) -> Callable[[JavaData], list[Any]]:
    return lambda data: [read(data) for _ in range(data.count())]


_TIMESTAMP = pa.timestamp("us", "UTC")
WINDOW = "TimeWindow"
_NUMBERS: dict[str, tuple[pa.DataType, Callable[[JavaData], Any]]] = {
    "Boolean": (pa.bool_(), JavaData.boolean),
    "Byte": (pa.int8(), JavaData.int8),
    "Short": (pa.int16(), JavaData.int16),
    "Int": (pa.int32(), JavaData.int32),
    "Long": (pa.int64(), JavaData.int64),
    "Float": (pa.float32(), JavaData.float32),
    "Double": (pa.float64(), JavaData.float64),
}
_SIMPLE: dict[str, tuple[pa.DataType, Callable[[JavaData], Any]]] = {
    **{f"{name}SerializerSnapshot": simple for name, simple in _NUMBERS.items()},
    **{f"{name}ValueSerializerSnapshot": simple for name, simple in _NUMBERS.items()},
    **{
        f"{name}PrimitiveArraySerializerSnapshot": (pa.list_(of_type), _array_of(read))
        for name, (of_type, read) in _NUMBERS.items()
    },
    "BytePrimitiveArraySerializerSnapshot": (pa.binary(), _bytes),
    "StringSerializerSnapshot": (pa.string(), JavaData.text),
    "StringArraySerializerSnapshot": (pa.list_(pa.string()), _array_of(JavaData.text)),
    "CharSerializerSnapshot": (pa.string(), _character),
    "DateSerializerSnapshot": (_TIMESTAMP, _date),
    "SqlTimestampSerializerSnapshot": (_TIMESTAMP, _instant),
    "InstantSerializerSnapshot": (_TIMESTAMP, _instant),
    "LocalDateSerializerSnapshot": (pa.date32(), _local_date),
    "VoidSerializerSnapshot": (pa.null(), _void_namespace),
    "VoidNamespaceSerializerSnapshot": (pa.null(), _void_namespace),
    "TimeWindowSerializerSnapshot": (pa.struct([("start", pa.int64()), ("end", pa.int64())]), _window),
}
