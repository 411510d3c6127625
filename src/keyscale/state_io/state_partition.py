"""Parts of a state's table that several processes read in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyscale.state.doors.values import KeyGroupRange

from .state_reader import KeyedStateTable, StateReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StatePartition:
    """Some rows of a state in a snapshot; picklable.

    Attributes:
        location: The location of the checkpoint or savepoint.
        operator: The operator's uid.
        state: The state's name.
        key_groups: The first and last key group of the rows; None: all rows.
        key: Only the rows of this key; None: of all keys.
        nested: Whether a map or a list is one row.
    """

    location: str
    operator: str
    state: str
    key_groups: tuple[int, int] | None = None
    key: tuple[Any, ...] | None = None
    nested: bool = False

    def batches(self, *, scratch: Path | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows in batches of a bounded size.

        Args:
            scratch: A directory with room for a shard; None: the system's directory for temporary files.

        Raises:
            KeyscaleError: The store does not answer, or a file is missing or damaged.
        """
        with StateReader.open(self.location, scratch=scratch) as state:
            table = state.table(self.operator, self.state, nested=self.nested)
            if not isinstance(table, KeyedStateTable):
                yield from table.batches()
                return
            groups = None if self.key_groups is None else KeyGroupRange(*self.key_groups)
            yield from table.batches(key=self.key, key_groups=groups)


def partitions_of(
    location: str, operator: str, state: str, *, key: tuple[Any, ...] | None = None, nested: bool = False
) -> list[StatePartition]:
    """Returns the parts of a table: one per shard.

    The rows of a single key, and operator state, are one part.

    Raises:
        UnknownStateError: The snapshot has no such operator or state.
        KeyscaleError: The store does not answer, or the manifest cannot be read.
    """
    with StateReader.open(location) as reader:
        table = reader.table(operator, state, nested=nested)
        if key is not None or not isinstance(table, KeyedStateTable):
            return [StatePartition(location, operator, state, None, key, nested)]
        return [
            StatePartition(location, operator, state, (shard.start, shard.end), None, nested) for shard in table.shards
        ]
