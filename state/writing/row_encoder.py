"""Converts the rows of tables to stored entries.

It is the reverse of `keyscale.state.inspection.state_table`, and takes the same columns.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from ..errors import SerializationError, StateError
from ..keyed.batch_clock import TimeDomain
from ..keyed.formats import ValueFormats
from ..keyed.schema import StateKind
from ..keyed.stamp import STAMP_MAX_MS, STAMP_MIN_MS
from ..keyed.timer_queue import key_position, stored_timers
from ..keys.hashing import HashId, hash_codes
from ..keys.key_groups import KEY_GROUP_BYTES, assign_to_key_groups
from ..keys.stored_key import KeyBatch, encode_index
from ..serializers.arrow_columns import fixed_values
from ..serializers.conversions import column_of, exact_array
from ..serializers.key_columns import EncodedColumn, encode_column
from ..serializers.key_serializer import KeySerializer
from ..serializers.pickled import Pickled
from ..serializers.type_names import type_from_json

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from ..keyed.schema import KeyedSchema, StateSchema, TimersSchema

_COMPUTED = ("key_group", "subtask")
"""Columns of a table that follow from the key."""


class RowsInvalidError(StateError):
    """Rows do not fit the state that they are written to."""

    code = "STATE_ROWS_INVALID"
    domain = "user"
    advice = (
        "Give the columns that the message names, with a row per key, map entry, list element or timer; "
        "docs/guide/state-as-data.md lists the columns."
    )


@dataclass(frozen=True, slots=True)
class KeyHashing:
    """How keys are assigned to key groups."""

    max_parallelism: int
    hash_id: HashId = HashId.SPARK

    def key_groups(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int32]:
        """Returns the key group of each row's key.

        Raises:
            UnsupportedTypeError: A column's type has no hash.
        """
        return assign_to_key_groups(hash_codes(columns, self.hash_id), self.max_parallelism)


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """Stored entries in any order, each a stored key and value."""

    keys: EncodedColumn
    values: EncodedColumn

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, entries: Sequence[tuple[bytes, bytes]]) -> Self:
        """Returns the entries of pairs of stored key and value."""
        keys, values = ([entry[place] for entry in entries] for place in (0, 1))
        return cls(EncodedColumn.of(keys).with_width(), EncodedColumn.of(values).with_width())

    @classmethod
    def of_columns(cls, keys: pa.Array, values: pa.Array) -> Self:
        """Returns the entries in two Arrow columns of bytes."""
        columns = (EncodedColumn.over(each) for each in (keys, values))
        return cls(*[each if each.width else each.with_width() for each in columns])

    @property
    def size_bytes(self) -> int:
        return len(self.keys.data) + len(self.values.data)

    @property
    def key_groups(self) -> npt.NDArray[np.int64]:
        """The key group of each entry."""
        data = self.keys.data
        if self.keys.width:
            high, low = (data[place :: self.keys.width] for place in (0, 1))
        else:
            starts = self.keys.offsets[:-1]
            high, low = data[starts], data[starts + 1]
        return high.astype(np.int64) << 8 | low

    def subtasks(self, max_parallelism: int, parallelism: int) -> npt.NDArray[np.int64]:
        """Returns the subtask that owns each entry."""
        return self.key_groups * parallelism // max_parallelism

    def take(self, rows: npt.NDArray[np.intp]) -> StoredEntries:
        """Returns some rows, in the given order."""
        return StoredEntries(self.keys.take(rows), self.values.take(rows))

    def part(self, first: int, end: int) -> StoredEntries:
        """Returns the rows from `first` to before `end`, over the same memory."""
        return StoredEntries(self.keys.part(first, end), self.values.part(first, end))


class RowEncoder(ABC):
    """Converts rows of a state, or of timers, to stored entries.

    The columns of the key are a struct `key`, or columns of their own.

    Attributes:
        family: The state or the timers.
    """

    family: str

    def __init__(self, keys: KeyedSchema, hashing: KeyHashing) -> None:
        self._keys = KeySerializer(keys.key_schema())
        self._hashing = hashing

    @abstractmethod
    def encode(self, rows: pa.RecordBatch) -> StoredEntries:
        """Returns the entries of some rows.

        Raises:
            RowsInvalidError: A column is missing or unknown, or a value is missing.
            SerializationError, UnsupportedTypeError: A value does not have the declared type.
            KeyTooLargeError, ValueTooLargeError: A key or a value is too large.
        """

    def _key_columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        names = self._keys.schema.names
        held = rows.column("key") if "key" in rows.schema.names else None
        if held is not None and pa.types.is_struct(held.type) and {each.name for each in held.type} == set(names):
            if held.null_count:
                raise RowsInvalidError(f"{self.family!r}: a row has no key")
            columns = [held.field(name) for name in names]
        else:
            columns = [self._column(rows, name) for name in names]
        return [
            self._typed(column, field.name, field.type)
            for column, field in zip(columns, self._keys.schema, strict=True)
        ]

    def _keys_of(self, rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int32], EncodedColumn]:
        """Returns the key group and the encoded key of each row."""
        columns = self._key_columns(rows)
        return self._hashing.key_groups(columns), self._keys.encode_columns(columns)

    def _column(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        return named_column(rows, name, self.family)

    def _check_columns(self, rows: pa.RecordBatch, known: Collection[str]) -> None:
        unknown = sorted({*rows.schema.names} - {*known, *_COMPUTED, "key", *self._keys.schema.names})
        if unknown:
            raise RowsInvalidError(f"{self.family!r}: the rows have the unknown columns {', '.join(unknown)}")

    def _typed(self, column: pa.Array, name: str, of_type: pa.DataType) -> pa.Array:
        return typed_column(column, of_type, name, self.family)


def named_column(rows: pa.RecordBatch, name: str, state: str) -> pa.Array:
    """Returns a column of the rows of a state.

    Raises:
        RowsInvalidError: The rows lack the column, or have it twice.
    """
    found = rows.schema.get_all_field_indices(name)
    if not found:
        raise RowsInvalidError(f"{state!r}: the rows lack the column {name!r}")
    if len(found) > 1:
        raise RowsInvalidError(f"{state!r}: the rows have the column {name!r} twice")
    return rows.column(name)


def typed_column(column: pa.Array, of_type: pa.DataType, name: str, state: str) -> pa.Array:
    """Returns a column of rows as its stored type.

    UUIDs may be text.

    Raises:
        RowsInvalidError: A value does not fit.
    """
    try:
        if of_type == pa.uuid() and column.type != of_type:
            return _uuids(column)
        return column_of(column, of_type)
    except (SerializationError, ValueError, OverflowError) as error:
        raise RowsInvalidError(f"{state!r}: the column {name!r} does not fit: {error}") from error


class EntriesEncoder(RowEncoder):
    """Converts rows of a keyed state.

    The columns are those of the state's table. A map without `map_key` and a list without `list_index` have a row per
    key, with the whole map or list as its `value`.
    """

    def __init__(
        self, keys: KeyedSchema, state: StateSchema, hashing: KeyHashing, *, ttl_started_at_ms: int | None = None
    ) -> None:
        """Creates the encoder.

        Args:
            keys: The schema with the key's columns.
            state: The state; its values are written in its last format.
            hashing: How keys are assigned to key groups.
            ttl_started_at_ms: When the time to live began, for rows that do not say so; None: each row says so.
        """
        super().__init__(keys, hashing)
        self.family = state.name
        self._kind = state.kind
        self._formats = ValueFormats(state, len(state.formats) - 1)
        self._namespace = None if state.namespace is None else type_from_json(state.namespace)
        self._map_key = None if state.map_key is None else type_from_json(state.map_key)
        self._part = {StateKind.MAP: "map_key", StateKind.LIST: "list_index"}.get(state.kind)
        self._has_stamps = self._formats.written.stamps is not None
        self._started_at_ms = ttl_started_at_ms
        optional = {"namespace": self._namespace is not None, "ttl_started_at": self._has_stamps}
        self._known = {"value", *([self._part] if self._part else ()), *(name for name, has in optional.items() if has)}

    def encode(self, rows: pa.RecordBatch) -> StoredEntries:
        self._check_columns(rows, self._known)
        if self._part is not None and self._part not in rows.schema.names:
            rows = self._flattened(rows)
        stored = KeyBatch.encode(*self._keys_of(rows))
        if self._namespace is not None:
            column = self._typed(self._column(rows, "namespace"), "namespace", self._namespace)
            stored = stored.extended(encode_column(column))
        if self._map_key is not None:
            stored = stored.extended(encode_column(self._typed(rows.column("map_key"), "map_key", self._map_key)))
        elif self._part is not None:
            stored = stored.extended(self._indexes(rows.column("list_index")))
        values = self._formats.pack_column(self._values(rows), self._stamps_ms(rows))
        return StoredEntries(stored.column, values)

    def _values(self, rows: pa.RecordBatch) -> pa.Array:
        of_type = self._formats.type
        column = self._typed(
            self._column(rows, "value"), "value", pa.binary() if isinstance(of_type, Pickled) else of_type
        )
        if column.null_count and self._kind in {StateKind.VALUE, StateKind.LIST}:
            raise RowsInvalidError(f"{self.family!r}: a row has no value; leave such rows out")
        return column

    def _indexes(self, column: pa.Array) -> EncodedColumn:
        indexes = self._typed(column, "list_index", pa.int64()).to_pylist()
        if any(index is None or index < 0 for index in indexes):
            raise RowsInvalidError(f"{self.family!r}: list_index is the place of the element, from 0")
        return EncodedColumn.of([encode_index(index) for index in indexes])

    def _stamps_ms(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        if not self._has_stamps:
            return np.empty(0, np.int64)
        if "ttl_started_at" not in rows.schema.names:
            started = pa.nulls(len(rows), pa.timestamp("ms", "UTC"))
        else:
            started = rows.column("ttl_started_at")
            # As it is read: microseconds would overflow for late times.
            if started.type != pa.timestamp("ms", "UTC"):
                started = self._typed(started, "ttl_started_at", pa.timestamp("us", "UTC"))
                started = started.cast(pa.timestamp("ms", "UTC"), safe=False)
            self._check_times(started)
        if started.null_count:
            if self._started_at_ms is None:
                raise RowsInvalidError(
                    f"{self.family!r}: the column 'ttl_started_at' is required, since the TTL is in event time"
                )
            started = started.view(pa.int64()).fill_null(self._started_at_ms).view(started.type)
        return fixed_values(started.view(pa.int64()))

    def _check_times(self, started: pa.Array) -> None:
        """Checks that stamps can hold the times of rows.

        `encode_stamps` would replace other times by the nearest possible ones.
        """
        times_ms = fixed_values(started.view(pa.int64()).drop_null())
        outside = times_ms[(times_ms < STAMP_MIN_MS) | (times_ms > STAMP_MAX_MS)]
        if len(outside):
            raise RowsInvalidError(
                f"{self.family!r}: ttl_started_at is {outside[0]:,} ms since the epoch, and must be between"
                f" {STAMP_MIN_MS:,} and {STAMP_MAX_MS:,} ms"
            )

    def _flattened(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a row per entry of whole maps or lists."""
        whole = self._column(rows, "value")
        is_map = pa.types.is_map(whole.type)
        if not (
            is_map
            if self._kind is StateKind.MAP
            else pa.types.is_list(whole.type) or pa.types.is_large_list(whole.type)
        ):
            raise RowsInvalidError(
                f"{self.family!r}: the rows lack the column {self._part!r}, or a `value` that is a whole {self._kind}"
            )
        offsets = fixed_values(whole.offsets).astype(np.int64)
        lengths = np.diff(offsets)
        if whole.null_count:
            lengths = np.where(fixed_values(whole.is_valid()), lengths, 0)
        parents = np.repeat(np.arange(len(whole)), lengths)
        within = np.arange(len(parents)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = pa.array(offsets[:-1][parents] + within)
        part = whole.keys.take(places) if is_map else pa.array(within)
        values = (whole.items if is_map else whole.values).take(places)
        flat = rows.drop_columns(["value"]).take(pa.array(parents))
        return flat.append_column(self._part, part).append_column("value", values)


class TimersEncoder(RowEncoder):
    """Converts rows of timers, with `key`, `time_ms` and `namespace`."""

    def __init__(self, keys: KeyedSchema, timers: TimersSchema, hashing: KeyHashing) -> None:
        super().__init__(keys, hashing)
        self.family = timers.name
        self._namespace = None if timers.namespace is None else type_from_json(timers.namespace)

    def encode(self, rows: pa.RecordBatch) -> StoredEntries:
        self._check_columns(rows, ["time_ms", *([] if self._namespace is None else ["namespace"])])
        groups, keys = self._keys_of(rows)
        scope = None
        if self._namespace is not None:
            scope = encode_column(self._typed(self._column(rows, "namespace"), "namespace", self._namespace))
        times = self._typed(self._column(rows, "time_ms"), "time_ms", pa.int64())
        if times.null_count:
            raise RowsInvalidError(f"{self.family!r}: a timer has no time_ms")
        stored, values = stored_timers(groups, fixed_values(times), keys, scope)
        return StoredEntries(KeyBatch(stored).column, values)


def encoder_of(
    keys: KeyedSchema, name: str, hashing: KeyHashing, now_ms: int, *, event_time_ms: int | None = None
) -> RowEncoder:
    """Returns the encoder of a state or of timers in a schema.

    Args:
        keys: The operator's schema.
        name: The state or the timers.
        hashing: How keys are assigned to key groups.
        now_ms: When a TTL in processing time begins, for rows that do not say so.
        event_time_ms: When a TTL in event time begins, for rows that do not say so; None: each row says so.
    """
    timers = keys.timers_of(name)
    if timers is not None:
        return TimersEncoder(keys, timers, hashing)
    state = keys.state(name)
    assert state is not None  # noqa: S101 - the caller has added it
    is_event_time = state.formats[-1].stamps == TimeDomain.EVENT
    return EntriesEncoder(keys, state, hashing, ttl_started_at_ms=event_time_ms if is_event_time else now_ms)


def rehashed(entries: StoredEntries, keys: KeyedSchema, name: str, hashing: KeyHashing) -> StoredEntries:
    """Returns stored entries in the key groups of another hashing.

    Only keys are decoded, values stay as they are.

    Raises:
        CorruptValueError: A stored key is damaged.
        UnsupportedTypeError: A key column's type has no hash.
    """
    serializer = KeySerializer(keys.key_schema())
    at = key_position(is_timer=keys.state(name) is None)  # earlier versions did not list timers
    decoded = [serializer.decode(raw, at)[0] for raw in entries.keys.to_list()]
    columns = [
        exact_array(list(values), field.type)
        for values, field in zip(zip(*decoded, strict=True), serializer.schema, strict=True)
    ]
    groups = np.ascontiguousarray(hashing.key_groups(columns), ">u2").view(np.uint8).reshape(-1, KEY_GROUP_BYTES)
    data, starts = entries.keys.data.copy(), entries.keys.offsets[:-1]
    data[starts], data[starts + 1] = groups[:, 0], groups[:, 1]
    return StoredEntries(EncodedColumn(data, entries.keys.bounds, entries.keys.width), entries.values)


def _uuids(column: pa.Array) -> pa.Array:
    return pa.array([None if each is None else uuid.UUID(str(each)) for each in column.to_pylist()], pa.uuid())
