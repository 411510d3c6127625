"""A mapping of which each process of the world has its own, in the place of one of the product's module or class."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.world import World


class OwnMapping(MutableMapping[Any, Any]):
    """Leads to the mapping of the process that runs.

    Args:
        world: The world.
        name: The name of the mapping among the resources of a process.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    @property
    def _own(self) -> OrderedDict[Any, Any]:
        found: OrderedDict[Any, Any] = self._world.process.resources.setdefault(self._name, OrderedDict())
        return found

    def __getitem__(self, key: Any) -> Any:
        return self._own[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._own[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def move_to_end(self, key: Any) -> None:
        self._own.move_to_end(key)
