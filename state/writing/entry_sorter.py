"""Sorts the entries of one state by stored key, in bounded memory."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..engine.engine import SortedRun
from ..keys.stored_key import stored_order
from ..local.subtask_directory import local_failures
from ..serializers.key_columns import EncodedColumn
from .row_encoder import RowsInvalidError, StoredEntries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEMORY_BYTES = 256 << 20
_RUN_ENTRIES = 65_536
_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])


class EntrySorter:
    """Collects entries of a state, and returns them as ascending runs.

    Entries beyond the memory are spilled to files by key group. Then the entries of one key group are in memory at a
    time.
    """

    def __init__(self, family: str, scratch: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        """Creates a sorter.

        Args:
            family: The state or the timers.
            scratch: An existing directory for spilled entries.
            memory_bytes: The bytes of entries that stay in memory.
        """
        self._family = family
        self._scratch = scratch
        self._memory_bytes = memory_bytes
        self._parts: list[StoredEntries] = []
        self._size_bytes = 0
        self._spills: list[_Spill] = []

    def add(self, entries: StoredEntries) -> None:
        """Adds entries, in any order.

        Raises:
            DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
        """
        if not len(entries):
            return
        self._parts.append(entries)
        self._size_bytes += entries.size_bytes
        if self._size_bytes > self._memory_bytes:
            self._spill()

    def runs(self) -> Iterator[SortedRun]:
        """Yields all entries as ascending runs of a bounded number of entries.

        Raises:
            RowsInvalidError: Two rows are of the same key, map entry, list element or timer.
            DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
        """
        if self._spills and self._parts:
            self._spill()
        for entries in self._by_key_group() if self._spills else [_joined(self._parts)]:
            order, first = stored_order(entries.keys)
            if not first.all():
                raise RowsInvalidError(
                    f"{self._family!r}: {int((~first).sum())} rows have the key of another row, also in its namespace"
                )
            for start in range(0, len(order), _RUN_ENTRIES):
                part = entries.take(order[start : start + _RUN_ENTRIES])
                yield SortedRun(self._family, part.keys.to_list(), list(part.values.to_list()))

    def _spill(self) -> None:
        self._spills.append(_Spill(self._scratch / f"{uuid.uuid4().hex}.spill", _joined(self._parts)))
        self._parts, self._size_bytes = [], 0

    def _by_key_group(self) -> Iterator[StoredEntries]:
        for key_group in sorted({group for spill in self._spills for group in spill.places}):
            yield _joined([spill.read(key_group) for spill in self._spills if key_group in spill.places])


class _Spill:
    """A file of entries, with a record batch per key group."""

    def __init__(self, path: Path, entries: StoredEntries) -> None:
        groups = entries.key_groups
        order = np.argsort(groups, kind="stable")
        present, starts = np.unique(groups[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        self.places = {group: place for place, group in enumerate(present.tolist())}
        with local_failures(path), pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
            for start, end in zip(starts.tolist(), ends, strict=True):
                part = entries.take(order[start:end])
                writer.write(pa.RecordBatch.from_arrays([part.keys.arrow(), part.values.arrow()], schema=_SCHEMA))
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))

    def read(self, key_group: int) -> StoredEntries:
        """Returns the entries of a key group."""
        return StoredEntries.of_columns(*self._reader.get_batch(self.places[key_group]).columns)


def _joined(parts: list[StoredEntries]) -> StoredEntries:
    return StoredEntries(
        EncodedColumn.concatenated([each.keys for each in parts]),
        EncodedColumn.concatenated([each.values for each in parts]),
    )
