"""The keyed state of a Flink operator.

A file of a canonical savepoint has a header and then the entries of each key group, in any backend's savepoint alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from .errors import FlinkSavepointError, ImportUnsupportedError, UnknownSerializerError
from .flink_serializers import TTL, FlinkType, read_serializer
from .java_data import JavaData
from .snappy_frames import SnappyFrames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .flink_metadata import FlinkOperator, KeyGroupsFile

_VERSION = 6
_METADATA_FOLLOWS = 0x80
_END_OF_KEY_GROUP = -1
_ONE_BYTE_MAX = 128
_DELIMITER = b","
_VALUE_STATE, _TIMERS = 0, 3


class FlinkKind(StrEnum):
    """The kinds of keyed state, by Flink's names."""

    VALUE = "VALUE"
    LIST = "LIST"
    MAP = "MAP"
    REDUCING = "REDUCING"
    AGGREGATING = "AGGREGATING"
    TIMERS = "TIMERS"


@dataclass(frozen=True, slots=True)
class FlinkState:
    """A keyed state, or timers.

    Attributes:
        name: Its name.
        kind: Its kind.
        namespace: The type of its namespaces.
        value: The type of its values, or of its elements; None for timers.
        map_key: The type of the keys of a map.
        has_ttl: Whether values have the time of their last access.
        problem: Why it cannot be read; empty if it can.
    """

    name: str
    kind: FlinkKind
    namespace: FlinkType | None
    value: FlinkType | None = None
    map_key: FlinkType | None = None
    has_ttl: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KeyedHeader:
    """The header of a file of keyed state.

    Attributes:
        key: The type of the keys.
        states: The states, in the order of their numbers.
        problem: Why further states cannot be read; empty if there are none.
        is_compressed: Whether key groups are compressed.
    """

    key: FlinkType
    states: tuple[FlinkState, ...]
    problem: str
    is_compressed: bool


@dataclass(frozen=True, slots=True)
class FlinkRow:
    """A value, a map entry, a list element or a timer.

    Attributes:
        key: The key.
        namespace: Its namespace; None for the void namespace.
        value: The value; None for timers.
        map_key: The key of a map's entry.
        place: The place of a list's element; the time of a timer in milliseconds.
        accessed_ms: The time of the last access, with a TTL.
    """

    key: Any
    namespace: Any
    value: Any = None
    map_key: Any = None
    place: int | None = None
    accessed_ms: int | None = None


def read_header(file: KeyGroupsFile) -> KeyedHeader:
    """Reads the header of a file.

    Raises:
        FlinkSavepointError: The file is damaged.
        ImportUnsupportedError: The file has an unknown version, or keys that cannot be read.
    """
    with file.file.open() as stream:
        data = JavaData(stream, file.file.size_bytes)
        version = data.int32()
        if version != _VERSION:
            raise ImportUnsupportedError(f"the state has version {version} of its header; {_VERSION} can be read")
        is_compressed = data.boolean()
        key = read_serializer(data)
        states: list[FlinkState] = []
        count = data.int16()
        for _ in range(count):
            name = data.utf()
            try:
                states.append(_state(data, name))
            except UnknownSerializerError as error:
                rest = f", nor can the {count - len(states) - 1} states after it" if len(states) + 1 < count else ""
                problem = f"state {name!r} cannot be read{rest}: {error!s}"
                return KeyedHeader(key, tuple(states), problem, is_compressed)
        return KeyedHeader(key, tuple(states), "", is_compressed)


def _state(data: JavaData, name: str) -> FlinkState:
    backend_kind = data.int32()
    options = {data.utf(): data.utf() for _ in range(data.count())}
    serializers = {data.utf(): read_serializer(data) for _ in range(data.count())}
    namespace = serializers.get("NAMESPACE_SERIALIZER")
    value = serializers.get("VALUE_SERIALIZER")
    if backend_kind == _TIMERS:
        return _timers(name, value)
    found = options.get("KEYED_STATE_TYPE", "")
    if backend_kind != _VALUE_STATE or found not in {*FlinkKind} or value is None or namespace is None:
        return FlinkState(name, FlinkKind.VALUE, namespace, problem=f"its kind is {found or backend_kind}")
    kind = FlinkKind(found)
    map_key = None
    if kind is FlinkKind.MAP and len(value.parts) == 2:
        map_key, value = value.parts
    elif kind is FlinkKind.LIST and len(value.parts) == 1:
        (value,) = value.parts
    problem = namespace.problem or value.problem or ("" if map_key is None else map_key.problem)
    return FlinkState(name, kind, namespace, value, map_key, value.name == TTL, problem)


def _timers(name: str, timer: FlinkType | None) -> FlinkState:
    if timer is None or len(timer.parts) != 2:
        return FlinkState(name, FlinkKind.TIMERS, None, problem="it is a queue of other things than timers")
    return FlinkState(name, FlinkKind.TIMERS, timer.parts[1], problem=timer.problem)


def read_rows(
    operator: FlinkOperator, file: KeyGroupsFile, header: KeyedHeader
) -> Iterator[tuple[int, int, list[FlinkRow]]]:
    """Yields the rows of each entry.

    Each has its key group and the number of its state.

    States that cannot be read are left out.

    Raises:
        FlinkSavepointError: The file is damaged.
        ImportUnsupportedError: A value cannot be read.
    """
    prefix = 1 if operator.max_parallelism <= _ONE_BYTE_MAX else 2
    readable = {number for number, state in enumerate(header.states) if not state.problem}
    with file.file.open() as stream:
        for key_group, offset in sorted(file.offsets.items()):
            size = file.file.size_bytes - offset
            if offset < 0 or size < 0:
                raise FlinkSavepointError("the file is damaged: a key group begins outside of it")
            stream.seek(offset)
            data = JavaData(SnappyFrames(stream)) if header.is_compressed else JavaData(stream, size)
            for number, key, value in _entries(data):
                if number not in readable:
                    continue
                where = JavaData.of(key)
                found = int.from_bytes(where.read(prefix), "big")
                if found != key_group:
                    raise FlinkSavepointError(f"the file is damaged: a key of group {found} is in group {key_group}")
                try:
                    rows = _rows(header.key, header.states[number], where, value)
                except (ValueError, OverflowError):  # a date or a time that cannot be
                    raise FlinkSavepointError(f"state {header.states[number].name!r} is damaged") from None
                yield key_group, number, rows


def _entries(data: JavaData) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields the entries of a key group, with their states' numbers."""
    number = data.int16()
    while number != _END_OF_KEY_GROUP:
        key, value = data.block(), data.block()
        if not key:
            raise FlinkSavepointError("the file is damaged: an entry has no key")
        follows = key[0] & _METADATA_FOLLOWS
        if follows:
            key = bytes([key[0] & ~_METADATA_FOLLOWS]) + key[1:]
        yield number, key, value
        if follows:
            number = data.int16()


def _rows(key_type: FlinkType, state: FlinkState, where: JavaData, value: bytes) -> list[FlinkRow]:
    if state.kind is FlinkKind.TIMERS:
        time_ms = where.int64() + (1 << 63)  # its sign is turned, so that timers are in order
        time_ms = time_ms - (1 << 64) if time_ms >= 1 << 63 else time_ms
        key = key_type.read(where)
        return [FlinkRow(key, _namespace(state, where), place=time_ms)]
    key = key_type.read(where)
    namespace = _namespace(state, where)
    held = JavaData.of(value)
    if state.kind is FlinkKind.LIST:
        return [FlinkRow(key, namespace, *each) for each in _elements(state, held)]
    map_key = None
    if state.map_key is not None:
        map_key = state.map_key.read(where)
        if held.boolean():
            return [FlinkRow(key, namespace, None, map_key)]
    found, accessed_ms = _value(state, held)
    if not held.is_at_end or not where.is_at_end:
        raise FlinkSavepointError(f"state {state.name!r} is damaged: an entry is longer than its type")
    return [FlinkRow(key, namespace, found, map_key, None, accessed_ms)]


def _elements(state: FlinkState, held: JavaData) -> Iterator[tuple[Any, None, int, int | None]]:
    place = 0
    while not held.is_at_end:
        if place and held.read(1) != _DELIMITER:
            raise FlinkSavepointError(f"state {state.name!r} is damaged: elements of a list are not separated")
        value, accessed_ms = _value(state, held)
        yield value, None, place, accessed_ms
        place += 1


def _value(state: FlinkState, held: JavaData) -> tuple[Any, int | None]:
    if state.value is None:
        return None, None
    if state.has_ttl:
        accessed_ms, value = state.value.read(held)
        return value, accessed_ms
    return state.value.read(held), None


def _namespace(state: FlinkState, where: JavaData) -> Any:
    return None if state.namespace is None else state.namespace.read(where)
