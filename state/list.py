"""ListState: a list a key, one stored entry an element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from state.column_argument import column_of
from state.errors import SerializationError
from state.handle import KeyColumns, KeyedState, KeyGroups
from state.stored_key import decode_index, encode_index

if TYPE_CHECKING:
    from collections.abc import Iterable


class ListState(KeyedState):
    """A list a key, as in Flink: appending neither reads nor rewrites what is there, and null is no element.

    An empty list is no list. Elements expire one by one.
    """

    __slots__ = ()

    def get(self) -> list[Any]:
        """The current key's elements, in the order they were added."""
        return [value for _, value in self._entries.scan(self._prefix())]

    def add(self, value: Any) -> None:
        """Append an element.

        Raises:
            SerializationError: It is null or not of the declared type.
        """
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements; none of them if one does not fit."""
        self._append(self._prefix(), _checked(values))

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; by none, if there are no values."""
        prefix, checked = self._prefix(), _checked(values)
        for value in checked:
            self._entries.formats.pack(value, 0)  # so that one that does not fit leaves the list as it was
        self._clear(prefix)
        self._append(prefix, checked)

    def clear(self) -> None:
        """Remove the current key's list."""
        self._clear(self._prefix())

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Append the lists of source namespaces, in their order, to the target's, and clear them."""
        goal = self._prefix_in(target)
        for source in sources:
            prefix = self._prefix_in(source)
            if prefix != goal:
                self._append(goal, [value for _, value in self._entries.scan(prefix)])
                self._clear(prefix)

    def add_many(self, key_groups: KeyGroups, keys: KeyColumns, values: pa.Array) -> None:
        """Append each row's value to the list of its key, in the order of rows.

        Raises:
            SerializationError: A value is null or not of the declared type.
        """
        column = column_of(values, self._entries.formats.type)
        if column.null_count:
            message = f"list state {self._entries.family!r} takes no null elements"
            raise SerializationError(message)
        batch = self._batch(key_groups, keys)
        raws = self._entries.formats.pack_array(column, self._entries.now_ms)
        order = np.argsort(batch.groups, kind="stable")
        groups = batch.groups[order]
        prefixes, pending = batch.distinct, self._entries.pending
        pending.settle()
        upcoming = {group: self._next_index(prefixes[group]) for group in np.unique(groups).tolist()}
        for row, group in zip(order.tolist(), groups.tolist(), strict=True):
            prefix = prefixes[group]
            key = prefix + encode_index(upcoming[group])
            upcoming[group] += 1
            pending.entries[key] = raws[row]
            pending.touch(prefix, (key,))

    def get_many(self, key_groups: KeyGroups, keys: KeyColumns) -> pa.Array:
        """Each row's list, as a list column; empty where there is none."""
        batch = self._batch(key_groups, keys)
        lists = [[value for _, value in self._entries.scan(prefix)] for prefix in batch.distinct]
        return self._entries.formats.list_array(lists).take(pa.array(batch.groups))

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
        message = f"a {type(values).__name__} is no list of elements"
        raise SerializationError(message) from error
    if any(value is None for value in elements):
        message = "a list state takes no null elements"
        raise SerializationError(message)
    return elements
