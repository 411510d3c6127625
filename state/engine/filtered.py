"""A RocksDB engine with key filters for families with large lookups."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .key_filter import FamilyFilter, KeyFilter
from .key_filter_file import keep_filters, take_filters
from .rocksdb import RocksDbEngine
from .rocksdb_options import release_filter_memory, reserve_filter_memory
from .rocksdb_settings import RocksDbSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from .engine import Mutation, SortedRun

_LOOKUPS_MIN = 1024  # with fewer keys a lookup is as fast without a filter
_KEYS_MIN = 1 << 20  # smallest capacity of a filter, which takes 1.5 MiB
_COVERED_PER_LOOKUP = 0.5  # keys added to an incomplete filter per looked-up key
_ROOM = 1.25  # capacity of a new filter per estimated key of the family
_STALE = 2  # a full filter with this capacity per estimated key has mostly removed keys
_WATCHED_LOOKUPS = 1 << 14
_ABSENT_MIN = 0.5  # share of lookups; above the share that keeps a filter, so that filters do not come and go


class FilteredEngine(RocksDbEngine):
    """A `RocksDbEngine` with key filters, which spare lookups of absent keys.

    A family gets a filter at its first large lookup if it is still empty, otherwise as soon as most looked-up keys are
    absent. In the second case each lookup adds some more of the family's keys to the filter, in their order, and the
    filter answers for keys below the last added key. The filter is dropped, and may start again, when most of its keys
    have been removed from the family, and when most looked-up keys are present.

    While the store is closed, a file in its directory has its filters. Only the engine may write to the store while it
    is open.
    """

    def __init__(self, directory: Path, settings: RocksDbSettings | None = None, *, compacts: bool = True) -> None:
        """Opens the store as `RocksDbEngine` does."""
        super().__init__(directory, settings, compacts=compacts)
        self._settings = settings or RocksDbSettings()
        self._filters: dict[str, FamilyFilter] = {}
        self._unfiltered: defaultdict[str, UnfilteredLookups] = defaultdict(UnfilteredLookups)
        # For each sorted file that is not yet ingested: the filter that got its keys, and the filter's reach at that
        # time.
        self._noted: dict[Path, tuple[FamilyFilter, bytes | None]] = {}
        for family, kept in take_filters(directory, self._database.latest_sequence_number()).items():
            if reserve_filter_memory(self._settings, kept.keys.size_bytes):
                self._filters[family] = kept

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        if len(keys) < _LOOKUPS_MIN:
            return super().get_many(family, keys)
        filtered = self._filter_for(family)
        if filtered is None:
            values = super().get_many(family, keys)
            self._unfiltered[family].note(values)
            return values
        places = np.flatnonzero(filtered.possible(keys)).tolist()
        values = [None] * len(keys)
        for place, value in zip(places, super().get_many(family, [keys[place] for place in places]), strict=True):
            values[place] = value
        if not filtered.is_useful():
            self._release(family)
        elif filtered.keys.is_full:
            self._make_room(family, filtered)
        elif filtered.covered is not None:
            count = max(1, int(len(keys) * _COVERED_PER_LOOKUP))
            more, is_end = self._chunk(family, filtered.covered, None, count, keys_only=True)
            filtered.cover([key for key, _ in more], to_the_end=is_end)
        return values

    def write(self, mutations: Iterable[Mutation]) -> None:
        listed = list(mutations)
        for family in self._filters:
            self._add(family, [key for name, key, value in listed if name == family and value is not None])
        super().write(listed)

    def write_runs(self, runs: Sequence[SortedRun]) -> None:
        for run in runs:
            self._add(run.family, run.keys)
        super().write_runs(runs)

    def write_sorted_file(self, run: SortedRun, file: Path) -> None:
        self._add(run.family, run.keys)
        filtered = self._filters.get(run.family)
        if filtered is not None:
            self._noted[file] = filtered, filtered.covered
        super().write_sorted_file(run, file)

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        noted = [self._noted.pop(file, None) for file in files]
        filtered = self._filters.get(family)
        if filtered is not None and any(each != (filtered, filtered.covered) for each in noted):
            self._release(family)  # the filter lacks keys of the files
        super().ingest(family, files)

    def close(self) -> None:
        if not self._closed:
            keep_filters(self.directory, self._filters, self._database.latest_sequence_number())
            for family in list(self._filters):
                self._release(family)
        super().close()

    def _filter_for(self, family: str) -> FamilyFilter | None:
        """Returns a family's filter, or None; creates a useful filter."""
        self._check_open()
        is_new = family not in self._tables
        if family not in self._filters and (is_new or self._unfiltered[family].want_filter()):
            there = self._estimated_entries(family)
            for room in (max(_KEYS_MIN, int(there * _ROOM)), _KEYS_MIN):
                keys = KeyFilter.sized(room)
                if reserve_filter_memory(self._settings, keys.size_bytes):
                    self._filters[family] = FamilyFilter(keys, None if is_new else b"")
                    break
        return self._filters.get(family)

    def _add(self, family: str, keys: Sequence[bytes]) -> None:
        """Adds keys that are about to be written to the family's filter."""
        filtered = self._filters.get(family)
        if filtered is not None:
            hashes = filtered.hashes_of(keys)
            for first in range(0, len(hashes), _KEYS_MIN):
                if first and filtered.keys.is_full:
                    self._grow(filtered)
                filtered.keys.add(hashes[first : first + _KEYS_MIN])

    def _make_room(self, family: str, filtered: FamilyFilter) -> None:
        """Drops a full filter with mostly removed keys, or else enlarges it."""
        if self._estimated_entries(family) * _STALE < filtered.keys.capacity:
            self._release(family)
        else:
            self._grow(filtered)

    def _grow(self, filtered: FamilyFilter) -> None:
        if reserve_filter_memory(self._settings, filtered.keys.next_part_bytes):
            filtered.keys.grow()

    def _release(self, family: str) -> None:
        filtered = self._filters.pop(family, None)
        if filtered is not None:
            release_filter_memory(filtered.keys.size_bytes)

    def _estimated_entries(self, family: str) -> int:
        table = self._tables.get(family)
        return 0 if table is None else table.property_int_value("rocksdb.estimate-num-keys") or 0


@dataclass(slots=True)
class UnfilteredLookups:
    """Counts lookups in a family without a filter, to decide on one.

    Attributes:
        asked: Looked-up keys.
        absent: How many of them were absent.
    """

    asked: int = 0
    absent: int = 0

    def note(self, values: Sequence[bytes | None]) -> None:
        """Counts a lookup's keys, from zero again after each decision."""
        if self.asked >= _WATCHED_LOOKUPS:
            self.asked = self.absent = 0
        self.asked += len(values)
        self.absent += values.count(None)

    def want_filter(self) -> bool:
        """Returns whether most of enough looked-up keys were absent."""
        return self.asked >= _WATCHED_LOOKUPS and self.absent >= _ABSENT_MIN * self.asked
