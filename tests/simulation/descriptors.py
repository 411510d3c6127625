"""The descriptors of the world's processes: each is closed when its process dies, as the system does it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from keyscale.state.consolidation import consolidation_directory
from keyscale.state.local import hand_over_signal, subtask_directory
from keyscale.state.subtask import open_store_cache

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

HOLDERS = (consolidation_directory, hand_over_signal, subtask_directory, open_store_cache)
"""The modules that keep descriptors open from one task to the next."""


class Descriptors:
    """In the place of the module `os`.

    The code of a dead process may still be unwound. It closes nothing then, as its descriptors were closed at its death
    and their numbers may be in use again.

    Args:
        world: The world.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._holders: dict[int, Process] = {}
        self._processes: set[Process] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, *given: Any, **named: Any) -> int:
        return self._hold(os.open(*given, **named))

    def eventfd(self, *given: Any) -> int:
        return self._hold(os.eventfd(*given))

    def eventfd_write(self, descriptor: int, value: int) -> None:
        if self._is_held(descriptor):
            os.eventfd_write(descriptor, value)

    def close(self, descriptor: int) -> None:
        if self._is_held(descriptor):
            del self._holders[descriptor]
            os.close(descriptor)

    def fsync(self, _descriptor: int) -> None:
        return

    def close_all(self) -> None:
        """Closes what the processes of the world have open, at its end."""
        for process in self._processes:
            self._close_of(process)

    def _hold(self, descriptor: int) -> int:
        process = self._world.process
        if process not in self._processes:
            self._processes.add(process)
            process.at_death.append(lambda: self._close_of(process))
        self._holders[descriptor] = process
        return descriptor

    def _is_held(self, descriptor: int) -> bool:
        """Whether the running process has the descriptor; the world's own code acts for every process."""
        holder = self._holders.get(descriptor)
        return holder is not None and (holder is self._world.process or self._world.current is None)

    def _close_of(self, process: Process) -> None:
        for descriptor in [each for each, holder in self._holders.items() if holder is process]:
            del self._holders[descriptor]
            os.close(descriptor)
