"""Access to the state of the current key, for functions."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import DescriptorError
from .descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from .aggregating import AggregatingState, ReducingState
    from .backend import KeyedStateBackend
    from .list import ListState
    from .map import MapState
    from .value import ValueState


class KeyedStateAccess:
    """Gives functions the states that they declare.

    A state always refers to the current key.
    """

    def __init__(self, state: KeyedStateBackend) -> None:
        self._state = state

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Returns the state of one value per key.

        The state always refers to the current key.
        """
        check_descriptor(descriptor, ValueStateDescriptor)
        if pa.types.is_map(descriptor.type):
            warnings.warn(
                f"value state {descriptor.name!r} holds a map, which is read and written as a whole at every access; "
                "MapState stores each entry separately",
                stacklevel=2,
            )
        return self._state.state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Returns the state of one map per key.

        Each entry is stored separately.
        """
        check_descriptor(descriptor, MapStateDescriptor)
        return self._state.state(descriptor)

    def get_migrating_map_state(self, old: ValueStateDescriptor, new: MapStateDescriptor) -> MapState:
        """Returns a map state that replaces a value state of whole maps.

        A key's map moves when the key is next used.

        Args:
            old: The value state that earlier versions of the function kept.
            new: The map state that replaces it.

        Raises:
            StateSchemaMismatchError: The types, TTLs or namespaces of the two differ.
        """
        return self._state.migrating_map_state(old, new)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Returns the state of one list per key.

        Each element is stored separately.
        """
        check_descriptor(descriptor, ListStateDescriptor)
        return self._state.state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """Returns the state of one value per key, reduced from added values."""
        check_descriptor(descriptor, ReducingStateDescriptor)
        return self._state.state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Returns the state of one accumulator per key for added values."""
        check_descriptor(descriptor, AggregatingStateDescriptor)
        return self._state.state(descriptor)


_GETTERS: dict[type, str] = {
    ValueStateDescriptor: "get_state",
    MapStateDescriptor: "get_map_state",
    ListStateDescriptor: "get_list_state",
    ReducingStateDescriptor: "get_reducing_state",
    AggregatingStateDescriptor: "get_aggregating_state",
}


def check_descriptor(given: object, wanted: type) -> None:
    """Checks the kind of a descriptor.

    Raises:
        DescriptorError: It is another kind.
    """
    if isinstance(given, wanted):
        return
    getter = _GETTERS.get(type(given))
    hint = f"; {getter} takes it" if getter else ""
    raise DescriptorError(f"a {type(given).__name__} is given in the place of a {wanted.__name__}{hint}")
