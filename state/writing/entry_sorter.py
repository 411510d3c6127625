"""Sorts the entries of one state by stored key, in bounded memory.

Entries are divided by key group while they are in the processor's caches. Then each portion of key groups is sorted on
its own, which is several times as fast as sorting all entries.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..engine.engine import SortedRun
from ..keys.stored_key import stored_order
from ..local.subtask_directory import local_failures
from ..serializers.key_columns import EncodedColumn
from .row_encoder import RowsInvalidError, StoredEntries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from ..keys.key_groups import KeyGroupRange

MEMORY_BYTES = 256 << 20
_RUN_ENTRIES = 65_536
_PART_ENTRIES = 65_536
_PORTIONS_MAX = 256
_PORTION_ENTRIES_MIN = 8_192


class EntrySorter:
    """Collects entries of a state, and returns them as ascending runs.

    Entries beyond the memory are spilled to files by portion. Then the entries of one portion are in memory at a time.
    """

    def __init__(self, family: str, scratch: Path, key_groups: KeyGroupRange, memory_bytes: int = MEMORY_BYTES) -> None:
        """Creates a sorter.

        Args:
            family: The state or the timers.
            scratch: An existing directory for spilled entries.
            key_groups: The key groups of the entries.
            memory_bytes: The bytes of entries that stay in memory.
        """
        self._family = family
        self._scratch = scratch
        self._portions = _Portions(key_groups.start, -(-len(key_groups) // _PORTIONS_MAX), len(key_groups))
        self._memory_bytes = memory_bytes
        self._undivided: list[StoredEntries] = []
        self._undivided_entries = 0
        self._parts: list[_Part] = []
        self._size_bytes = 0
        self._spills: list[_Spill] = []

    def add(self, entries: StoredEntries) -> None:
        """Adds entries, in any order.

        Raises:
            DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
        """
        if not len(entries):
            return
        self._undivided.append(entries)
        self._undivided_entries += len(entries)
        self._size_bytes += entries.size_bytes
        if self._undivided_entries >= _PART_ENTRIES:
            self._divide()
        if self._size_bytes > self._memory_bytes:
            self._spill()

    def runs(self) -> Iterator[SortedRun]:
        """Yields all entries as ascending runs of a bounded number of entries.

        Raises:
            RowsInvalidError: Two rows are of the same key, map entry, list element or timer.
            DiskFullError, DiskReadOnlyError: The scratch directory cannot be written.
        """
        self._divide()
        if self._spills and self._parts:
            self._spill()
        for entries in self._spilled() if self._spills else self._held(_PORTION_ENTRIES_MIN):
            order, first = stored_order(entries.keys)
            if not first.all():
                raise RowsInvalidError(
                    f"{self._family!r}: {int((~first).sum())} rows have the key of another row, also in its namespace"
                )
            for start in range(0, len(order), _RUN_ENTRIES):
                part = entries.take(order[start : start + _RUN_ENTRIES])
                yield SortedRun(self._family, part.keys.to_list(), list(part.values.to_list()))

    def _divide(self) -> None:
        if self._undivided:
            self._parts.append(self._portions.divided(_joined(self._undivided)))
            self._undivided, self._undivided_entries = [], 0

    def _spill(self) -> None:
        self._divide()
        self._spills.append(_Spill(self._scratch / f"{uuid.uuid4().hex}.spill", self._parts, self._held()))
        self._parts, self._size_bytes = [], 0

    def _held(self, entries_min: int = 0) -> Iterator[StoredEntries]:
        """Yields the entries in memory, by portion.

        Args:
            entries_min: Smaller portions are joined with the next ones; 0: every portion is yielded, also empty ones.
        """
        if not self._parts:
            return
        starts = np.sum([part.starts for part in self._parts], axis=0)
        first = 0
        for end in range(1, len(starts)):
            if starts[end] - starts[first] >= entries_min or end == len(starts) - 1:
                yield _joined([part.between(first, end) for part in self._parts])
                first = end

    def _spilled(self) -> Iterator[StoredEntries]:
        for portion in range(self._portions.count):
            yield _joined([spill.read(portion) for spill in self._spills])


@dataclass(frozen=True, slots=True)
class _Portions:
    """The division of key groups into portions of equal size.

    Attributes:
        first: The first key group.
        width: The key groups of a portion.
        key_groups: The number of key groups.
    """

    first: int
    width: int
    key_groups: int

    @property
    def count(self) -> int:
        return -(-self.key_groups // self.width)

    def divided(self, entries: StoredEntries) -> _Part:
        """Returns entries in the order of their portions."""
        # Of 16-bit numbers, NumPy's stable sort is a radix sort.
        portions = ((entries.key_groups - self.first) // self.width).astype(np.uint16)
        order = np.argsort(portions, kind="stable")
        starts = np.searchsorted(portions[order], np.arange(self.count))
        return _Part(entries.take(order), np.append(starts, len(order)))


@dataclass(frozen=True, slots=True)
class _Part:
    """Entries in the order of their portions, and where each portion starts."""

    entries: StoredEntries
    starts: npt.NDArray[np.intp]

    def between(self, first: int, end: int) -> StoredEntries:
        """Returns the entries of the portions from `first` to before `end`."""
        return self.entries.part(int(self.starts[first]), int(self.starts[end]))


class _Spill:
    """A file of entries, with a record batch per portion."""

    def __init__(self, path: Path, parts: Sequence[_Part], portions: Iterable[StoredEntries]) -> None:
        widths = (_width(part.entries.keys for part in parts), _width(part.entries.values for part in parts))
        types = [pa.binary(width) if width else pa.large_binary() for width in widths]
        schema = pa.schema(list(zip(("key", "value"), types, strict=True)))
        with local_failures(path), pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for each in portions:
                columns = [
                    column.fixed_arrow(width) if width else column.arrow()
                    for column, width in zip((each.keys, each.values), widths, strict=True)
                ]
                writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))

    def read(self, portion: int) -> StoredEntries:
        """Returns the entries of a portion."""
        return StoredEntries.of_columns(*self._reader.get_batch(portion).columns)


def _width(columns: Iterable[EncodedColumn]) -> int | None:
    """Returns the common length of all rows, or None."""
    widths = {each.width for each in columns}
    return widths.pop() if len(widths) == 1 else None


def _joined(parts: list[StoredEntries]) -> StoredEntries:
    parts = [each for each in parts if len(each)]
    if len(parts) == 1:
        return parts[0]
    return StoredEntries(
        EncodedColumn.concatenated([each.keys for each in parts]),
        EncodedColumn.concatenated([each.values for each in parts]),
    )
