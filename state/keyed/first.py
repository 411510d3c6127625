"""FirstState: the first value of each key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .descriptors import StateDescriptor, check_name, check_type
from .entries import ABSENT
from .keyed_state import KeyColumns, KeyedState, KeyGroups
from .schema import StateKind
from .ttl import Ttl, check_ttl

if TYPE_CHECKING:
    import pyarrow as pa

    from ..serializers.key_codecs import KeyCodec
    from .entries import Entries
    from .keyed_state import KeyContext


class FirstState(KeyedState):
    """One value per key, which stays until it is cleared or expires."""

    __slots__ = ()

    one_entry = True

    def get(self) -> Any:
        """Returns the current key's value, or None."""
        value = self._entries.get(self._prefix())
        return None if value is ABSENT else value

    def offer(self, value: Any) -> bool:
        """Sets the current key's value if the key has none.

        Offering None does nothing.

        Returns:
            Whether the value was set.

        Raises:
            SerializationError: The value does not have the declared type.
        """
        is_first = value is not None and self._entries.get(self._prefix()) is ABSENT
        if is_first:
            self._entries.put(self._prefix(), value)
        return is_first

    def clear(self) -> None:
        """Removes the current key's value."""
        self._entries.remove(self._prefix())

    def get_many(self, key_groups: KeyGroups, keys: KeyColumns) -> pa.Array:
        """Returns each row's value, null for a missing value."""
        return self._entries.get_rows(self._batch(key_groups, keys))


@dataclass(frozen=True, slots=True)
class FirstStateDescriptor(StateDescriptor[FirstState]):
    """One value per key, which stays."""

    kind: ClassVar[StateKind] = StateKind.FIRST
    name: str
    type: pa.DataType
    ttl: Ttl | None = None
    namespace_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_type(self.type, f"the type of state {self.name!r}")
        check_ttl(self.ttl)

    @property
    def entry_type(self) -> pa.DataType:
        return self.type

    def create(self, entries: Entries, context: KeyContext, namespace: KeyCodec | None) -> FirstState:
        return FirstState(entries, context, namespace)
