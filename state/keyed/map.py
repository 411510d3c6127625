"""MapState: one map per key, with one stored entry per map entry."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, Any

from pyarrow import types

from ..serializers.conversions import column_of
from ..serializers.key_columns import encode_column
from .batch_memory import LARGE_BYTES
from .entries import ABSENT, Entries
from .keyed_state import CurrentKey, KeyColumns, KeyedState, KeyGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from ..keys.stored_key import KeyBatch
    from ..serializers.key_codecs import KeyCodec

_ENCODED_MAX = 16_384

_UNCHANGING = frozenset({str, bytes, int, float, bool, Decimal, dt.datetime, dt.date, dt.time, dt.timedelta, NoneType})


class MapState(KeyedState):
    """One map per key, as in Flink.

    Map keys and values may be null; an entry with a null value is not a missing entry. Entries expire separately.
    Iteration has the order of stored map keys and covers the map at the moment when it began: later changes, of any
    key, do not appear.

    The `_many` methods take the key group, the key columns and the map key of each row of a batch.
    """

    __slots__ = ("_encoded", "_encoded_type", "_last", "_map_keys")

    def __init__(self, entries: Entries, context: CurrentKey, namespace: KeyCodec | None, map_keys: KeyCodec) -> None:
        super().__init__(entries, context, namespace)
        self._map_keys = map_keys
        # The key that `get` read last, since `put` mostly follows with the same object. Objects are compared by
        # identity, so mutable keys are not kept.
        self._last: tuple[bytes, Any, bytes] = (b"", None, b"")
        # The maps of different keys mostly have the same map keys, so their stored form is kept, for types with equal
        # stored forms of equal values.
        self._encoded: dict[Any, bytes] = {}
        self._encoded_type: type | None = None
        if types.is_string(map_keys.type) or types.is_large_string(map_keys.type):
            self._encoded_type = str
        elif types.is_integer(map_keys.type):
            self._encoded_type = int

    def fields_read_by(self, fields: Sequence[pa.Array]) -> Iterator[pa.Array | None]:
        if self._namespace_codec is None:
            yield from (field for field in fields if field.type == self._map_keys.type)

    def get(self, key: Any) -> Any:
        """Returns the value of a map key; None if missing or null."""
        prefix = self._prefix()
        encoded = self._encoded.get(key) if type(key) is self._encoded_type else None
        stored = prefix + (encoded or self._encode(key))
        if type(key) in _UNCHANGING:
            self._last = (prefix, key, stored)
        value = self._entries.get(stored, prefix)
        return None if value is ABSENT else value

    def put(self, key: Any, value: Any) -> None:
        prefix = self._prefix()
        last_prefix, last_key, stored = self._last
        if last_key is not key or last_prefix is not prefix:
            encoded = self._encoded.get(key) if type(key) is self._encoded_type else None
            stored = prefix + (encoded or self._encode(key))
        self._entries.put(stored, value, prefix)

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Puts many entries, or none if one has a wrong type."""
        prefix, encode = self._prefix(), self._encode
        pairs = entries.items() if hasattr(entries, "items") else entries
        self._entries.put_all_below(prefix, [(prefix + encode(key), value) for key, value in pairs])

    def remove(self, key: Any) -> None:
        prefix = self._prefix()
        self._entries.remove(prefix + self._encode(key), prefix)

    def contains(self, key: Any) -> bool:
        prefix = self._prefix()
        return self._entries.get(prefix + self._encode(key), prefix) is not ABSENT

    def items(self) -> Iterator[tuple[Any, Any]]:
        prefix = self._prefix()
        return self._decoded(self._entries.scan(prefix), len(prefix))

    def keys(self) -> Iterator[Any]:
        prefix, decode = self._prefix(), self._map_keys.decode
        return (decode(key, len(prefix))[0] for key in self._entries.scan_keys(prefix))

    def values(self) -> Iterator[Any]:
        return (value for _, value in self._entries.scan(self._prefix()))

    def is_empty(self) -> bool:
        return next(self._entries.scan(self._prefix()), None) is None

    def clear(self) -> None:
        """Removes all entries of the current key."""
        prefix = self._prefix()
        for key in self._entries.keys_below(prefix):
            self._entries.remove(key, prefix)

    def get_many(self, key_groups: KeyGroups, keys: KeyColumns, map_keys: pa.Array) -> pa.Array:
        """Returns each row's value, null for missing entries."""
        return self._entries.get_rows(self._rows(key_groups, keys, map_keys)[1])

    def contains_many(self, key_groups: KeyGroups, keys: KeyColumns, map_keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Returns whether each row has an entry."""
        return self._entries.contains_rows(self._rows(key_groups, keys, map_keys)[1])

    def put_many(self, key_groups: KeyGroups, keys: KeyColumns, map_keys: pa.Array, values: pa.Array) -> None:
        """Puts each row's entry; an entry's last row counts."""
        batch, entries = self._rows(key_groups, keys, map_keys)
        self._entries.put_rows(entries, column_of(values, self._entries.formats.type), null_removes=False)
        self._touch(batch, entries)

    def update_many(
        self,
        key_groups: KeyGroups,
        keys: KeyColumns,
        map_keys: pa.Array,
        update: Callable[[pa.Array, npt.NDArray[np.intp]], pa.Array],
    ) -> pa.Array:
        """Reads, computes and writes a batch's distinct entries at once.

        Args:
            key_groups: Each row's key group.
            keys: Each row's key.
            map_keys: Each row's map key.
            update: Takes the current values of the distinct entries, with null for missing ones, and the position of
                each row's entry among them. Returns the new values of the distinct entries; null removes.

        Returns:
            The new values of the distinct entries.
        """
        batch, entries = self._rows(key_groups, keys, map_keys)
        updated = self._entries.update_rows(entries, update)
        self._touch(batch, entries)
        return updated

    def insert_if_absent_many(
        self,
        key_groups: KeyGroups,
        keys: KeyColumns,
        map_keys: pa.Array,
        value: Any,
    ) -> npt.NDArray[np.bool_]:
        """Puts `value` in place of missing entries.

        Returns:
            Whether each row put its entry; of several rows with a new entry only the first does.
        """
        batch, entries = self._rows(key_groups, keys, map_keys)
        inserted = self._entries.insert_rows(entries, value)
        self._touch(batch, entries)
        return inserted

    def _rows(self, key_groups: KeyGroups, keys: KeyColumns, map_keys: pa.Array) -> tuple[KeyBatch, KeyBatch]:
        batch = self._batch(key_groups, keys)
        return batch, batch.extended(encode_column(column_of(map_keys, self._map_keys.type)))

    def _touch(self, batch: KeyBatch, entries: KeyBatch) -> None:
        """Records which keys have pending entries, for iterations."""
        prefixes = batch.distinct
        owners = [prefixes[group] for group in batch.groups[entries.first_rows].tolist()]
        self._entries.pending.noted.extend(chain.from_iterable(zip(owners, entries.distinct, strict=True)))

    def _encode(self, key: Any) -> bytes:
        """Returns the stored form of a map key."""
        if type(key) is not self._encoded_type:
            return self._map_keys.encode(key)
        encoded = self._encoded.get(key)
        if encoded is None:
            if len(self._encoded) >= _ENCODED_MAX:
                self._encoded.clear()
            encoded = self._map_keys.encode(key)
            if len(encoded) <= LARGE_BYTES:
                self._encoded[key] = encoded
        return encoded

    def _decoded(self, entries: Iterator[tuple[bytes, Any]], at: int) -> Iterator[tuple[Any, Any]]:
        decode = self._map_keys.decode
        return ((decode(key, at)[0], value) for key, value in entries)
