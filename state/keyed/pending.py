"""A batch's pending changes in one family, which reads see first."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

from ..engine.engine import SortedRun
from .batch_memory import ENTRY_BYTES, LARGE_BYTES, BatchMemory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class _Absent(Enum):
    ABSENT = 0


_ABSENT: Final = _Absent.ABSENT
_NOTE_BYTES = 40  # about the memory of an item in `noted`


class _Marked(dict[bytes, bytes | None]):
    """Entries that remember their values at a mark."""

    def __init__(self, entries: dict[bytes, bytes | None]) -> None:
        super().__init__(entries)
        self.before: dict[bytes, bytes | Literal[_Absent.ABSENT] | None] = {}

    def __setitem__(self, key: bytes, value: bytes | None) -> None:
        if key not in self.before:
            self.before[key] = self.get(key, _ABSENT)
        super().__setitem__(key, value)

    def update(self, *others: Any, **names: Any) -> None:
        for key, value in dict(*others, **names).items():
            self[key] = value


class Pending:
    """One family's pending mutations.

    `entries` has them by stored key; sorted runs are not yet in `entries`. A run is kept unchanged until the family is
    read again, so that a batch of a single columnar operation needs no dict.

    For states with several entries per key, `noted` has two items per change: the key, and the stored key below it.
    They are only grouped by key when `below` is called.

    Code that adds a large entry to `entries` or `reads` also counts it in `memory`.
    """

    __slots__ = ("_touched", "entries", "family", "memory", "noted", "reads", "runs")

    def __init__(self, family: str, memory: BatchMemory | None = None) -> None:
        self.family = family
        self.memory = memory or BatchMemory()
        self.entries: dict[bytes, bytes | None] = {}
        self.reads: dict[bytes, bytes | None] = {}  # read from the engine by this batch, and unchanged
        self.noted: list[bytes] = []
        self._touched: dict[bytes, set[bytes]] = {}
        self.runs: list[SortedRun] = []

    def __len__(self) -> int:
        return len(self.entries) + sum(map(len, self.runs))

    def settle(self) -> None:
        """Moves runs into `entries`; every read begins with this."""
        if self.runs:
            for run in self.runs:
                self.entries.update(zip(run.keys, run.values, strict=True))
            self.runs.clear()

    def small_bytes(self) -> int:
        """Estimates the memory of the changes if every entry is small."""
        return ENTRY_BYTES * (len(self) + len(self.reads)) + _NOTE_BYTES * len(self.noted)

    def large_bytes(self) -> int:
        """Returns the bytes of changes beyond small entries."""
        size = sum(map(len, self.entries)) + sum(map(len, filter(None, self.entries.values())))
        for run in self.runs:
            size += run.size_bytes()
        return max(0, size - LARGE_BYTES * len(self))

    def forget_reads(self) -> None:
        """Drops read, unchanged entries; later reads read them again."""
        self.reads = {}

    def add_run(self, keys: list[bytes], values: list[bytes | None], values_bytes: int) -> None:
        """Adds changes as a run with strictly ascending `keys`.

        `values_bytes` is the size of all values.
        """
        if not keys:
            return
        self.memory.add_many(len(keys), values_bytes)
        if self.entries or self.runs:
            self.settle()
            self.entries.update(zip(keys, values, strict=True))
        else:
            self.runs.append(SortedRun(self.family, keys, values))

    def touch(self, prefix: bytes, keys: Iterable[bytes]) -> None:
        """Records that stored keys below `prefix` are pending."""
        self._touched.setdefault(prefix, set()).update(keys)

    def below(self, prefix: bytes) -> Collection[bytes]:
        """Returns the pending stored keys below `prefix`."""
        touched = self._touched
        for key, stored in zip(self.noted[::2], self.noted[1::2], strict=True):
            touched.setdefault(key, set()).add(stored)
        self.noted.clear()
        return touched.get(prefix, ())

    def mark(self) -> None:
        """Sets the mark to which `undo` returns, replacing an earlier mark."""
        self.settle()
        if isinstance(self.entries, _Marked):
            self.entries.before.clear()
        else:
            self.entries = _Marked(self.entries)

    def undo(self) -> None:
        """Drops all changes since the mark, or all without a mark."""
        entries = self.entries
        if not isinstance(entries, _Marked):
            self.discard()
            return
        self.runs.clear()
        dict.update(entries, {key: value for key, value in entries.before.items() if value is not _ABSENT})
        for key, value in entries.before.items():
            if value is _ABSENT:
                del entries[key]
        entries.before.clear()

    def drain(self) -> SortedRun | None:
        """Takes all changes as one run; None if there are none."""
        run: SortedRun | None = None
        if self.runs and not self.entries:
            run = self.runs[0]
        else:
            self.settle()
            if self.entries:
                entries = self.entries
                keys = sorted(entries)  # mostly consists of sorted runs, which Python's sort detects and merges
                run = SortedRun(self.family, keys, [entries[key] for key in keys])
        self.discard()
        return run

    def discard(self) -> None:
        """Drops all changes."""
        self.entries = {}
        self.reads = {}
        self.noted = []
        self._touched = {}
        self.runs = []
