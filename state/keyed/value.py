"""ValueState: one value per key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..serializers.conversions import column_of
from .entries import ABSENT
from .keyed_state import KeyColumns, KeyedState, KeyGroups

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from .entries import BatchUpdate


class ValueState(KeyedState):
    """One value per key, as in Flink.

    Null means no value, so an update with None clears. The `_many` methods take the key group and the key columns of
    each row of a batch, and ignore the current key. Several rows with the same key apply in row order.
    """

    __slots__ = ()

    one_entry = True

    def value(self) -> Any:
        """Returns the current key's value, or None."""
        value = self._entries.get(self._prefix())
        return None if value is ABSENT else value

    def update(self, value: Any) -> None:
        """Sets the current key's value.

        Raises:
            SerializationError: The value does not have the declared type.
        """
        if value is None:
            self._entries.remove(self._prefix())
        else:
            self._entries.put(self._prefix(), value)

    def clear(self) -> None:
        """Removes the current key's value."""
        self._entries.remove(self._prefix())

    def get_many(self, key_groups: KeyGroups, keys: KeyColumns) -> pa.Array:
        """Returns each row's value, null for a missing value."""
        return self._entries.get_rows(self._batch(key_groups, keys))

    def contains_many(self, key_groups: KeyGroups, keys: KeyColumns) -> npt.NDArray[np.bool_]:
        """Returns whether each row's key has a value."""
        return self._entries.contains_rows(self._batch(key_groups, keys))

    def put_many(self, key_groups: KeyGroups, keys: KeyColumns, values: pa.Array) -> None:
        """Sets each row's value; null removes, a key's last row counts."""
        self._entries.put_rows(
            self._batch(key_groups, keys), column_of(values, self._entries.formats.type), null_removes=True
        )

    def insert_if_absent_many(
        self,
        key_groups: KeyGroups,
        keys: KeyColumns,
        value: Any,
    ) -> npt.NDArray[np.bool_]:
        """Sets `value` for keys without a value.

        Returns:
            Whether each row set its key's value; of several rows with a new key only the first does.
        """
        return self._entries.insert_rows(self._batch(key_groups, keys), value)

    def update_many(
        self,
        key_groups: KeyGroups,
        keys: KeyColumns,
        update: BatchUpdate,
    ) -> pa.Array:
        """Reads, computes and writes the values of a batch's distinct keys.

        Args:
            key_groups: Each row's key group.
            keys: Each row's key.
            update: Takes the current values of the distinct keys, with null for missing ones, and the position of each
                row's key among them. Returns the new values of the distinct keys; null removes. A tuple also says of
                each distinct key whether its value is written: others stay as they are, with their time to live.

        Returns:
            The new values of the distinct keys.
        """
        return self._entries.update_rows(self._batch(key_groups, keys), update)
