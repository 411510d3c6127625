"""ValueState: one value a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state.column_argument import column_of
from state.entries import ABSENT
from state.handle import KeyColumns, KeyedState, KeyGroups

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


class ValueState(KeyedState):
    """One value a key, as in Flink: null is no value, so that updating with None clears.

    The `_many` forms take, for each row of a batch, its key group and its key columns; of several rows with one key the order
    of rows counts. They do not look at the current key.
    """

    __slots__ = ()

    one_entry = True

    def value(self) -> Any:
        """The current key's value; None if there is none."""
        value = self._entries.get(self._prefix())
        return None if value is ABSENT else value

    def update(self, value: Any) -> None:
        """Set the current key's value.

        Raises:
            SerializationError: It is not of the declared type.
        """
        if value is None:
            self._entries.remove(self._prefix())
        else:
            self._entries.put(self._prefix(), value)

    def clear(self) -> None:
        """Remove the current key's value."""
        self._entries.remove(self._prefix())

    def get_many(self, key_groups: KeyGroups, keys: KeyColumns) -> pa.Array:
        """Each row's value, null where there is none."""
        return self._entries.get_rows(self._batch(key_groups, keys))

    def contains_many(self, key_groups: KeyGroups, keys: KeyColumns) -> npt.NDArray[np.bool_]:
        """Whether each row's key has a value."""
        return self._entries.contains_rows(self._batch(key_groups, keys))

    def put_many(self, key_groups: KeyGroups, keys: KeyColumns, values: pa.Array) -> None:
        """Set each row's value; null removes it, and of several rows for one key the last one counts."""
        self._entries.put_rows(
            self._batch(key_groups, keys), column_of(values, self._entries.formats.type), null_removes=True
        )

    def clear_many(self, key_groups: KeyGroups, keys: KeyColumns) -> None:
        """Remove each row's value."""
        batch = self._batch(key_groups, keys)
        self._entries.put_distinct(batch, [None] * len(batch.distinct))

    def insert_if_absent_many(
        self,
        key_groups: KeyGroups,
        keys: KeyColumns,
        value: Any,
    ) -> npt.NDArray[np.bool_]:
        """Set `value` for the keys that have none.

        Returns:
            Per row, whether it was its key's first time; of several rows with a new key only the first one is.
        """
        return self._entries.insert_rows(self._batch(key_groups, keys), value)

    def update_many(
        self,
        key_groups: KeyGroups,
        keys: KeyColumns,
        update: Callable[[pa.Array, npt.NDArray[np.intp]], pa.Array],
    ) -> pa.Array:
        """Read, compute and write the values of a batch's distinct keys, all at once.

        Args:
            key_groups: Each row's key group.
            keys: Each row's key.
            update: From the current values of the distinct keys, null where there is none, and for each row the position of
                its key among them, to the new values of the distinct keys; null removes.

        Returns:
            The new values of the distinct keys.
        """
        return self._entries.update_rows(self._batch(key_groups, keys), update)
