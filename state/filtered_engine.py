"""A RocksDB store with a filter over all keys of each family that is asked for many at once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from state.family_filter import FamilyFilter, UnfilteredLookups
from state.kept_filters import keep_filters, take_filters
from state.key_filter import KeyFilter
from state.rocksdb import RocksDbEngine
from state.rocksdb_options import release_filter_memory, reserve_filter_memory
from state.settings import RocksDbSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from state.engine import Mutation, SortedRun

_LOOKUPS_MIN = 1024  # fewer at once are as fast without a filter
_KEYS_MIN = 1 << 20  # that a filter has room for at first, in 1.5 MiB
_COVERED_A_LOOKUP = 0.5  # keys taken into an unfinished filter for each one that is looked up
_ROOM = 1.25  # a new filter has room for so many times as many keys as there seem to be
_STALE = 2  # a full one with room for so many times as many keys as there seem to be has mostly keys that are gone


class FilteredEngine(RocksDbEngine):
    """A `RocksDbEngine` that, asked for many keys, looks up only those which it may have.

    A new family's filter begins when many of its keys are first asked for. If the family has keys by then, it begins once most that are
    asked for are not there; each lookup takes some more of the family's keys into it, in their order, and it answers for keys below the
    one that was reached. It begins anew when most of its keys are gone from the family, and is given up when most keys that are looked
    up are there.

    While the store is closed its filters are in a file beside it. Nothing else may write to it while it is open.
    """

    def __init__(self, directory: Path, settings: RocksDbSettings | None = None) -> None:
        """As `RocksDbEngine`."""
        super().__init__(directory, settings)
        self._settings = settings or RocksDbSettings()
        self._filters: dict[str, FamilyFilter] = {}
        self._unfiltered: defaultdict[str, UnfilteredLookups] = defaultdict(UnfilteredLookups)
        # Of each sorted file that is not yet taken in: the filter that its keys were added to, as far as that went then.
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
        if not filtered.is_of_use():
            self._release(family)
        elif filtered.keys.is_full:
            self._make_room(family, filtered)
        elif filtered.covered is not None:
            count = max(1, int(len(keys) * _COVERED_A_LOOKUP))
            more = [key for key, _ in self._chunk(family, filtered.covered, None, count)]
            filtered.cover(more, to_the_end=len(more) < count)
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
            self._release(family)  # it does not know what is in the files
        super().ingest(family, files)

    def close(self) -> None:
        if not self._closed:
            keep_filters(self.directory, self._filters, self._database.latest_sequence_number())
            for family in list(self._filters):
                self._release(family)
        super().close()

    def _filter_for(self, family: str) -> FamilyFilter | None:
        """A family's filter, which is begun if it may be of use; None if there is none."""
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
        """Note keys that are about to be written."""
        filtered = self._filters.get(family)
        if filtered is not None:
            hashes = filtered.hashes_of(keys)
            for first in range(0, len(hashes), _KEYS_MIN):
                if first and filtered.keys.is_full:
                    self._grow(filtered)
                filtered.keys.add(hashes[first : first + _KEYS_MIN])

    def _make_room(self, family: str, filtered: FamilyFilter) -> None:
        """Have a filter that is full begin anew if most of its keys are gone, else grow."""
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
