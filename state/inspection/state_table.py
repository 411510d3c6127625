"""Converts stored entries to the Arrow rows of tables.

No class of the job is needed, because manifests and changelogs hold the schemas. Pickled Python objects stay bytes, and
UUIDs become text, which every tool can read.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from ..keyed.formats import ValueFormats
from ..keyed.schema import StateKind
from ..keyed.timer_queue import parse_stored_timer
from ..keys.key_groups import KEY_GROUP_BYTES, KeyGroupRange
from ..keys.stored_key import parse_stored_key, prefix_end
from ..serializers.arrow_columns import column_over
from ..serializers.key_codecs import key_codec_for
from ..serializers.key_columns import byte_matrix, decoded_integers
from ..serializers.key_serializer import KeySerializer
from ..serializers.pickled import Pickled
from ..serializers.type_names import type_from_json
from ..serializers.value_serializer import serializer_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..keyed.schema import KeyedSchema, StateSchema, TimersSchema
    from ..operator_state.backend import StoredOperatorState
    from ..serializers.key_codecs import KeyCodec
    from ..serializers.type_names import TypeJson

BATCH_ROWS_MAX = 65_536
BATCH_BYTES_MAX = 16 << 20
_ROWS_AT_ONCE = 8
TIMERS_KIND = "timers"
_SHOWN_MIN_MS = -62_135_596_800_000

RawEntry: TypeAlias = tuple[bytes, bytes]
"""A stored key and a stored value."""


class KeyedTable(ABC):
    """The rows of a keyed state, or of timers.

    Attributes:
        name: The name of the state or the timers.
        kind: The kind of the state, or `timers`.
        schema: The columns of the rows.
        identity: The columns that identify a row; they come first.
    """

    name: str
    kind: str
    schema: pa.Schema
    identity: tuple[str, ...]

    def __init__(self, keys: KeyedSchema) -> None:
        self._keys = KeySerializer(keys.key_schema())

    @property
    def key_schema(self) -> pa.Schema:
        """The stored columns of the key."""
        return self._keys.schema

    def batches(self, entries: Iterable[RawEntry]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of ordered entries in batches of bounded size.

        Raises:
            CorruptValueError: An entry is damaged.
        """
        for some in _chunks(entries):
            yield self.batch(some)

    @abstractmethod
    def batch(self, entries: Sequence[RawEntry]) -> pa.RecordBatch:
        """Returns the rows of some entries."""

    @abstractmethod
    def range_of(self, key_group: int, key: tuple[Any, ...]) -> tuple[bytes, bytes]:
        """Returns the range of stored keys with a key's entries.

        Raises:
            SerializationError: The key has other columns or types.
        """

    @abstractmethod
    def identity_of(self, raw: bytes) -> dict[str, Any]:
        """Returns the columns that identify an entry, without `key`."""

    def is_of(self, raw: bytes, key: tuple[Any, ...]) -> bool:  # noqa: ARG002 (for timers)
        """Returns whether an entry in a key's range belongs to it."""
        return True

    def _key_field(self) -> pa.Field:
        return pa.field("key", pa.struct([pa.field(each.name, shown_type(each.type)) for each in self._keys.schema]))

    def _key_column(self, keys: Iterable[tuple[Any, ...]]) -> pa.Array:
        columns = list(zip(*keys, strict=True)) or [()] * len(self._keys.schema)
        fields = list(self._key_field().type)
        return pa.StructArray.from_arrays(
            [_column(values, each.type) for values, each in zip(columns, fields, strict=True)], fields=fields
        )


class EntriesTable(KeyedTable):
    """The rows of a state: values, map entries or list elements.

    The columns are `key`, a struct of the key's columns; `namespace`, if the state has namespaces; `map_key` or
    `list_index`; `value`; `ttl_started_at`, if the state has a TTL; and `key_group`. If the table is nested, a whole
    map or list is the `value` of one row, without the times of its entries.
    """

    def __init__(self, keys: KeyedSchema, state: StateSchema, *, nested: bool = False) -> None:
        super().__init__(keys)
        self.name, self.kind = state.name, str(state.kind)
        self._indexed = state.kind.is_indexed
        self._nested = nested and state.kind in {StateKind.MAP, StateKind.LIST}
        self._namespace, self._map_key = _codec(state.namespace), _codec(state.map_key)
        self._formats = ValueFormats(state, len(state.formats) - 1)
        self._value_type = shown_type(self._formats.type)
        self._has_stamps = self._formats.written.stamps is not None and not self._nested
        self.schema = self._schema()
        self.identity = tuple(
            name for name in self.schema.names if name not in {"value", "ttl_started_at", "key_group"}
        )

    def batches(self, entries: Iterable[RawEntry]) -> Iterator[pa.RecordBatch]:
        if not self._nested:
            yield from super().batches(entries)
            return
        wholes = groupby(entries, lambda entry: self._scope_bytes(entry[0]))
        while some := [(prefix, list(parts)) for prefix, parts in islice(wholes, BATCH_ROWS_MAX // 16)]:
            yield self._nested_batch([parts for _, parts in some])

    def batch(self, entries: Sequence[RawEntry]) -> pa.RecordBatch:
        values = [raw for _, raw in entries]
        decoded = self._integer_keys([raw for raw, _ in entries]) if self.identity == ("key",) else None
        if decoded is not None:
            groups, keys_column = decoded
            columns = [keys_column, self._values(values)]
            if self._has_stamps:
                columns.append(self._stamps(values))
            return pa.RecordBatch.from_arrays([*columns, groups], schema=self.schema)
        keys = [self._parsed(raw) for raw, _ in entries]
        columns = [self._key_column(each.key for each in keys)]
        if self._namespace is not None:
            columns.append(_column([each.namespace for each in keys], shown_type(self._namespace.type)))
        if self._map_key is not None:
            columns.append(_column([each.user_key for each in keys], shown_type(self._map_key.type)))
        elif self._indexed:
            columns.append(pa.array([each.user_key for each in keys], pa.int64()))
        columns.append(self._values(values))
        if self._has_stamps:
            columns.append(self._stamps(values))
        columns.append(pa.array([each.key_group for each in keys], pa.int32()))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _integer_keys(self, raws: Sequence[bytes]) -> tuple[pa.Array, pa.Array] | None:
        """Returns key groups and keys of integers without nulls, or None."""
        types = self._keys.schema.types
        matrix = byte_matrix(raws)
        if matrix is None:
            return None
        columns = decoded_integers(matrix[:, KEY_GROUP_BYTES:], types)
        if columns is None:
            return None
        groups = matrix[:, :KEY_GROUP_BYTES].copy().view(">u2").ravel().astype(np.int32)
        return column_over(groups), pa.StructArray.from_arrays(columns, fields=list(self._key_field().type))

    def _stamps(self, values: Sequence[bytes]) -> pa.Array:
        stamps = [_shown_ms(self._formats.stamp(raw)) for raw in values]
        return pa.array(stamps, pa.timestamp("ms", "UTC"))

    def range_of(self, key_group: int, key: tuple[Any, ...]) -> tuple[bytes, bytes]:
        prefix = key_group.to_bytes(KEY_GROUP_BYTES, "big") + self._keys.encode(key)
        return prefix, prefix_end(prefix)

    def identity_of(self, raw: bytes) -> dict[str, Any]:
        parsed = self._parsed(raw)
        parts = {"namespace": parsed.namespace, "map_key": parsed.user_key, "list_index": parsed.user_key}
        return {name: parts[name] for name in self.identity if name != "key"}

    def _schema(self) -> pa.Schema:
        fields, value = [self._key_field()], self._value_type
        if self._namespace is not None:
            fields.append(pa.field("namespace", shown_type(self._namespace.type)))
        if self._map_key is not None:
            map_key = shown_type(self._map_key.type)
            if self._nested:
                value = pa.map_(map_key, value)
            else:
                fields.append(pa.field("map_key", map_key))
        elif self._indexed:
            if self._nested:
                value = pa.list_(value)
            else:
                fields.append(pa.field("list_index", pa.int64()))
        fields.append(pa.field("value", value))
        if self._has_stamps:
            fields.append(pa.field("ttl_started_at", pa.timestamp("ms", "UTC")))
        return pa.schema([*fields, pa.field("key_group", pa.int32())])

    def _parsed(self, raw: bytes) -> Any:
        return parse_stored_key(raw, self._keys, self._namespace, self._map_key, indexed=self._indexed)

    def _scope_bytes(self, raw: bytes) -> bytes:
        """Returns the stored key without its map key or list index."""
        _, at = self._keys.decode(raw, KEY_GROUP_BYTES)
        if self._namespace is not None:
            _, at = self._namespace.decode(raw, at)
        return raw[:at]

    def _nested_batch(self, wholes: Sequence[Sequence[RawEntry]]) -> pa.RecordBatch:
        firsts = [self._parsed(parts[0][0]) for parts in wholes]
        columns = [self._key_column(each.key for each in firsts)]
        if self._namespace is not None:
            columns.append(_column([each.namespace for each in firsts], shown_type(self._namespace.type)))
        offsets = [0]
        for parts in wholes:
            offsets.append(offsets[-1] + len(parts))
        values = self._values([raw for parts in wholes for _, raw in parts])
        if self._map_key is not None:
            names = [self._parsed(raw).user_key for parts in wholes for raw, _ in parts]
            columns.append(pa.MapArray.from_arrays(offsets, _column(names, shown_type(self._map_key.type)), values))
        else:
            columns.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values))
        columns.append(pa.array([each.key_group for each in firsts], pa.int32()))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _values(self, raws: Sequence[bytes]) -> pa.Array:
        if isinstance(self._formats.type, Pickled):
            return pa.array([self._formats.payload(raw) for raw in raws], pa.binary())
        column = self._formats.unpack_array(raws)
        return column if column.type == self._value_type else _column(column.to_pylist(), self._value_type)


class TimersTable(KeyedTable):
    """The rows of timers.

    The columns are `key`, `namespace` if the timers have namespaces, `time_ms` and `key_group`.
    """

    kind = TIMERS_KIND

    def __init__(self, keys: KeyedSchema, timers: TimersSchema) -> None:
        super().__init__(keys)
        self.name = timers.name
        self._namespace = _codec(timers.namespace)
        scope = [] if self._namespace is None else [pa.field("namespace", shown_type(self._namespace.type))]
        time = pa.field("time_ms", pa.int64())
        self.schema = pa.schema([self._key_field(), *scope, time, pa.field("key_group", pa.int32())])
        self.identity = tuple(self.schema.names[:-1])

    def batch(self, entries: Sequence[RawEntry]) -> pa.RecordBatch:
        timers = [parse_stored_timer(raw, self._keys, self._namespace) for raw, _ in entries]
        columns = [self._key_column(each.key for each in timers)]
        if self._namespace is not None:
            columns.append(_column([each.namespace for each in timers], shown_type(self._namespace.type)))
        columns.append(pa.array([each.timestamp_ms for each in timers], pa.int64()))
        columns.append(pa.array([each.key_group for each in timers], pa.int32()))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def range_of(self, key_group: int, key: tuple[Any, ...]) -> tuple[bytes, bytes]:
        self._keys.encode(key)
        owned = KeyGroupRange(key_group, key_group)  # the time comes before the key
        return owned.start_key, owned.end_key

    def is_of(self, raw: bytes, key: tuple[Any, ...]) -> bool:
        return parse_stored_timer(raw, self._keys, self._namespace).key == key

    def identity_of(self, raw: bytes) -> dict[str, Any]:
        timer = parse_stored_timer(raw, self._keys, self._namespace)
        parts = {"namespace": timer.namespace, "time_ms": timer.timestamp_ms}
        return {name: parts[name] for name in self.identity if name != "key"}


class OperatorTable:
    """The rows of an operator state.

    The elements of lists have the columns `subtask`, `list_index` and `value`; the entries of a broadcast map, which
    is the same in each subtask, `map_key` and `value`.
    """

    def __init__(self, name: str, state: StoredOperatorState) -> None:
        self.name, self.kind = name, str(state.distribution)
        self._value_type = type_from_json(state.value_type)
        self._map_key = _codec(state.key_type)
        if self._map_key is not None:
            identity = [pa.field("map_key", shown_type(self._map_key.type))]
        else:
            identity = [pa.field("subtask", pa.int32()), pa.field("list_index", pa.int64())]
        self.schema = pa.schema([*identity, pa.field("value", shown_type(self._value_type))])
        self.identity = tuple(each.name for each in identity)

    def batches(self, states: Sequence[StoredOperatorState | None]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the states of all subtasks, by index."""
        for subtask, state in enumerate(states):
            if state is None:
                continue
            if self._map_key is not None:
                decode = self._map_key.decode
                names = _column([decode(name, 0)[0] for name, _ in state.items], self.schema.field("map_key").type)
                yield self._with_values([names], [raw for _, raw in state.items])
                return
            places = pa.array(range(len(state.items)), pa.int64())
            subtasks = pa.array([subtask] * len(state.items), pa.int32())
            yield self._with_values([subtasks, places], state.items)

    def _with_values(self, identity: list[pa.Array], raws: Sequence[bytes | None]) -> pa.RecordBatch:
        decode = self._decoder()
        values = [None if raw is None else decode(raw) for raw in raws]
        column = _column(values, self.schema.field("value").type)
        return pa.RecordBatch.from_arrays([*identity, column], schema=self.schema)

    def _decoder(self) -> Callable[[bytes], Any]:
        if isinstance(self._value_type, Pickled):
            return bytes
        decode = serializer_for(self._value_type).decode
        return lambda raw: decode(raw, 0)


def keyed_tables(schema: KeyedSchema | None, *, nested: bool = False) -> list[KeyedTable]:
    """Returns the tables of an operator's states and timers, by name.

    Args:
        schema: The schema of the operator's state; None: the operator has none.
        nested: Whether a map or a list is one row.
    """
    if schema is None:
        return []
    tables: list[KeyedTable] = [EntriesTable(schema, state, nested=nested) for state in schema.states]
    tables += [TimersTable(schema, timers) for timers in schema.timers or ()]
    return sorted(tables, key=lambda table: table.name)


def shown_type(stored: pa.DataType) -> pa.DataType:
    """Returns the type of a column with stored values.

    Pickled objects are bytes, and UUIDs are text.
    """
    if isinstance(stored, Pickled):
        return pa.binary()
    if stored == pa.uuid():
        return pa.string()
    if pa.types.is_list(stored):
        return pa.list_(shown_type(stored.value_type))
    if pa.types.is_map(stored):
        return pa.map_(shown_type(stored.key_type), shown_type(stored.item_type))
    if pa.types.is_struct(stored):
        return pa.struct([pa.field(each.name, shown_type(each.type)) for each in stored])
    return stored


def _shown_ms(stamp_ms: int | None) -> int | None:
    """Returns a stamp that all tools can show: from the year 1.

    Before any record, event time is earlier.
    """
    return None if stamp_ms is None else max(_SHOWN_MIN_MS, stamp_ms)


def _column(values: Sequence[Any], shown: pa.DataType) -> pa.Array:
    if pa.types.is_string(shown):
        values = [str(value) if isinstance(value, uuid.UUID) else value for value in values]
    return pa.array(values, shown)


def _chunks(entries: Iterable[RawEntry]) -> Iterator[list[RawEntry]]:
    rest, chunk, size_bytes, rows = iter(entries), list[RawEntry](), 0, _ROWS_AT_ONCE
    while some := list(islice(rest, rows)):
        chunk += some
        size_bytes += sum(map(len, chain.from_iterable(some)))
        if len(chunk) >= BATCH_ROWS_MAX or size_bytes >= BATCH_BYTES_MAX:
            yield chunk
            chunk, size_bytes, rows = [], 0, _ROWS_AT_ONCE
        else:  # no more rows than probably fit
            fit = 1 + (BATCH_BYTES_MAX - size_bytes) * len(chunk) // max(1, size_bytes)
            rows = min(_ROWS_AT_ONCE, BATCH_ROWS_MAX - len(chunk), fit)
    if chunk:
        yield chunk


def _codec(of_type: TypeJson | None) -> KeyCodec | None:
    return None if of_type is None else key_codec_for(type_from_json(of_type))
