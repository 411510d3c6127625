"""ListState: one list per key, with one stored entry per element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..errors import SerializationError
from ..keys.stored_key import check_key_size, decode_index, encode_index
from ..serializers.conversions import column_of
from .keyed_state import KeyColumns, KeyedState, KeyGroups

if TYPE_CHECKING:
    from collections.abc import Iterable


class ListState(KeyedState):
    """One list per key, as in Flink.

    Appending neither reads nor rewrites existing elements, which cannot be null. An empty list is the same as no list.
    Elements expire one by one.
    """

    __slots__ = ()

    def get(self) -> list[Any]:
        """Returns the current key's elements, in the order of their addition."""
        return [value for _, value in self._entries.scan(self._prefix())]

    def add(self, value: Any) -> None:
        """Appends an element.

        Raises:
            SerializationError: The element is null or has another type than declared.
        """
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Appends elements, or none if one is invalid."""
        self._append(self._prefix(), _checked(values))

    def update(self, values: Iterable[Any]) -> None:
        """Replaces the list; without values, removes it."""
        prefix, checked = self._prefix(), _checked(values)
        for value in checked:
            self._entries.formats.pack(value, 0)  # raises before the list is cleared if a value is invalid
        self._clear(prefix)
        self._append(prefix, checked)

    def clear(self) -> None:
        """Removes the current key's list."""
        self._clear(self._prefix())

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Appends source namespaces' lists to the target's, and clears the sources.

        As in Flink, elements keep their time of expiry.
        """
        goal = self._prefix_in(target)
        for source in sources:
            prefix = self._prefix_in(source)
            if prefix != goal:
                raws = self._entries.raws_below(prefix)
                first = self._next_index(goal) if raws else 0
                keys = (goal + encode_index(first + place) for place in range(len(raws)))
                self._entries.put_raw_below(goal, dict(zip(keys, raws, strict=True)))
                self._clear(prefix)

    def add_many(self, key_groups: KeyGroups, keys: KeyColumns, values: pa.Array) -> None:
        """Appends each row's value to its key's list, in row order.

        Raises:
            SerializationError: A value is null or has another type than declared.
            KeyTooLargeError, ValueTooLargeError: An element, or its stored key, is too large.
        """
        column = column_of(values, self._entries.formats.type)
        if column.null_count:
            raise SerializationError(f"an element of list state {self._entries.family!r} cannot be null")
        batch = self._batch(key_groups, keys)
        raws = self._entries.formats.pack_array(column, self._entries.now_ms)
        order = np.argsort(batch.groups, kind="stable")
        groups = batch.groups[order]
        prefixes, pending = batch.distinct, self._entries.pending
        pending.settle()
        upcoming = {group: self._next_index(prefixes[group]) for group in np.unique(groups).tolist()}
        added = []
        for row, group in zip(order.tolist(), groups.tolist(), strict=True):
            prefix = prefixes[group]
            key = prefix + encode_index(upcoming[group])
            check_key_size(key)
            upcoming[group] += 1
            added.append((prefix, key, raws[row]))
        for prefix, key, raw in added:
            pending.entries[key] = raw
            pending.touch(prefix, (key,))
        pending.memory.add_many(len(raws), sum(map(len, raws)))

    def get_many(self, key_groups: KeyGroups, keys: KeyColumns) -> pa.Array:
        """Returns each row's list as a list column; missing lists are empty."""
        batch = self._batch(key_groups, keys)
        lists = [[value for _, value in self._entries.scan(prefix)] for prefix in batch.distinct]
        found = self._entries.formats.list_array(lists)
        self._entries.pending.memory.column_bytes += found.nbytes
        return found.take(pa.array(batch.groups))

    def _append(self, prefix: bytes, values: list[Any]) -> None:
        first = self._next_index(prefix) if values else 0
        self._entries.put_all_below(
            prefix, [(prefix + encode_index(first + place), value) for place, value in enumerate(values)]
        )

    def _next_index(self, prefix: bytes) -> int:
        last = self._entries.last_key_below(prefix)
        return 0 if last is None else decode_index(last[len(prefix) :]) + 1

    def _clear(self, prefix: bytes) -> None:
        for key in self._entries.keys_below(prefix):
            self._entries.remove(key, prefix)


def _checked(values: Iterable[Any]) -> list[Any]:
    try:
        elements = list(values)
    except TypeError as error:
        raise SerializationError(f"a {type(values).__name__} is not a list of elements") from error
    if any(value is None for value in elements):
        raise SerializationError("an element of a list state cannot be null")
    return elements
