"""What a batch has changed in one family and has not yet handed over: reads see it before they see the engine."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

from state.engine import SortedRun

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class _Absent(Enum):
    ABSENT = 0


ABSENT: Final = _Absent.ABSENT


class _Marked(dict[bytes, bytes | None]):
    """Entries that know what they were at a mark."""

    def __init__(self, entries: dict[bytes, bytes | None]) -> None:
        super().__init__(entries)
        self.before: dict[bytes, bytes | Literal[_Absent.ABSENT] | None] = {}

    def __setitem__(self, key: bytes, value: bytes | None) -> None:
        if key not in self.before:
            self.before[key] = self.get(key, ABSENT)
        super().__setitem__(key, value)

    def update(self, *others: Any, **names: Any) -> None:
        for key, value in dict(*others, **names).items():
            self[key] = value


class Pending:
    """One family's pending mutations: `entries` by stored key, and sorted runs that are not yet among them.

    A run is left as it is until the family is read again, so that a batch that is one columnar operation never pays for a
    dict. `noted` has, for states whose keys have entries of their own, each change's key and stored key below it, in turn;
    they are only sorted out when `below` is asked.
    """

    __slots__ = ("_touched", "entries", "family", "noted", "reads", "runs")

    def __init__(self, family: str) -> None:
        self.family = family
        self.entries: dict[bytes, bytes | None] = {}
        self.reads: dict[bytes, bytes | None] = {}  # what this batch has read from the engine and not changed
        self.noted: list[bytes] = []
        self._touched: dict[bytes, set[bytes]] = {}
        self.runs: list[SortedRun] = []

    def __len__(self) -> int:
        return len(self.entries) + sum(map(len, self.runs))

    def settle(self) -> None:
        """Take runs into `entries`; every read does it first."""
        if self.runs:
            for run in self.runs:
                self.entries.update(zip(run.keys, run.values, strict=True))
            self.runs.clear()

    def add_run(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Add changes as a run; `keys` strictly ascending."""
        if not keys:
            return
        if self.entries or self.runs:
            self.settle()
            self.entries.update(zip(keys, values, strict=True))
        else:
            self.runs.append(SortedRun(self.family, keys, values))

    def touch(self, prefix: bytes, keys: Iterable[bytes]) -> None:
        """Note that stored keys below `prefix` are pending."""
        self._touched.setdefault(prefix, set()).update(keys)

    def below(self, prefix: bytes) -> Collection[bytes]:
        """The stored keys below `prefix` that were noted as pending."""
        touched = self._touched
        for key, stored in zip(self.noted[::2], self.noted[1::2], strict=True):
            touched.setdefault(key, set()).add(stored)
        self.noted.clear()
        return touched.get(prefix, ())

    def mark(self) -> None:
        """Begin what `undo` can undo; the mark before is forgotten."""
        self.settle()
        if isinstance(self.entries, _Marked):
            self.entries.before.clear()
        else:
            self.entries = _Marked(self.entries)

    def undo(self) -> None:
        """Forget all changes since the mark; all that there are, if there was no mark since the batch began."""
        entries = self.entries
        if not isinstance(entries, _Marked):
            self.discard()
            return
        self.runs.clear()
        dict.update(entries, {key: value for key, value in entries.before.items() if value is not ABSENT})
        for key, value in entries.before.items():
            if value is ABSENT:
                del entries[key]
        entries.before.clear()

    def drain(self) -> SortedRun | None:
        """All that is pending as one run, which is then no longer; None if there is nothing."""
        run: SortedRun | None = None
        if self.runs and not self.entries:
            run = self.runs[0]
        else:
            self.settle()
            if self.entries:
                entries = self.entries
                keys = sorted(entries)  # entries come mostly in sorted runs, which this sort finds and merges
                run = SortedRun(self.family, keys, [entries[key] for key in keys])
        self.discard()
        return run

    def discard(self) -> None:
        """Forget all that is pending."""
        self.entries = {}
        self.reads = {}
        self.noted = []
        self._touched = {}
        self.runs = []
