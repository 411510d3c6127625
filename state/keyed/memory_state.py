"""Keyed state in memory, without files or an object store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engine.engine import Mutation
from ..engine.heap import HeapEngine
from ..keys.key_groups import KEY_GROUP_BYTES
from .backend import KeyedStateBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from ..keys.key_groups import KeyGroupRange
    from .batch_clock import BatchClock
    from .schema import KeyedSchema


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Holds the entries of an operator's keyed state.

    Attributes:
        families: Keys and values by column family.
        schema: Their schema; None without entries.
    """

    families: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    schema: KeyedSchema | None = None


class MemoryState:
    """The keyed state of one subtask.

    Attributes:
        backend: Reads and changes it.
    """

    def __init__(
        self,
        key_schema: pa.Schema,
        clock: BatchClock,
        snapshot: MemorySnapshot | None = None,
        key_groups: KeyGroupRange | None = None,
    ) -> None:
        """Creates the state.

        Args:
            key_schema: The key's columns.
            clock: The times of the state.
            snapshot: Its first content, of which it takes its own key groups; None: it starts empty.
            key_groups: The key groups that it owns; None: all.
        """
        taken = snapshot or MemorySnapshot()
        self._engine = HeapEngine()
        for family, entries in taken.families.items():
            self._engine.write(
                Mutation(family, key, value)
                for key, value in entries
                if key_groups is None
                or key_groups.start <= int.from_bytes(key[:KEY_GROUP_BYTES], "big") <= key_groups.end
            )
        self.backend = KeyedStateBackend(
            self._engine, key_schema, clock, schema=taken.schema, key_group_range=key_groups
        )

    def commit(self) -> None:
        """Makes the pending changes part of the state."""
        self._engine.write_runs(self.backend.drain())

    def entries(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """Returns the committed entries by column family."""
        return {family: list(self._engine.scan(family, b"", None)) for family in self._engine.families()}


def memory_snapshot(states: Sequence[MemoryState]) -> MemorySnapshot:
    """Returns the committed entries of an operator's subtasks."""
    families: dict[str, list[tuple[bytes, bytes]]] = {}
    for state in states:
        for family, entries in state.entries().items():
            families.setdefault(family, []).extend(entries)
    return MemorySnapshot(families, states[0].backend.schema)
