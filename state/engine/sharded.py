"""Several stores with disjoint key group ranges as one engine.

It routes by the key group at a key's beginning.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING
from uuid import uuid4

from ..errors import KeyGroupError
from .engine import Mutation, SortedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from ..keys.key_groups import KeyGroupRange
    from .engine import Engine


class ShardedEngine:
    """An `Engine` over shards.

    Keys of key groups without a shard cannot be written, and read as absent.
    """

    def __init__(self, shards: Sequence[tuple[KeyGroupRange, Engine]]) -> None:
        """Joins stores, given with the key groups of each.

        Raises:
            KeyGroupError: The list is empty, or two stores share a key group.
        """
        self._shards = sorted(shards, key=itemgetter(0))
        for (left, _), (right, _) in pairwise(self._shards):
            if left.end >= right.start:
                raise KeyGroupError(f"two shards share key group {right.start}")
        if not self._shards:
            raise KeyGroupError("a subtask's state has at least one shard")
        self._starts = [owned.start_key for owned, _ in self._shards]
        self._only = self._shards[0][1] if len(self._shards) == 1 else None
        self._written: dict[Path, int] = {}  # the only shard with keys of a sorted file that is not yet ingested

    def get(self, family: str, key: bytes) -> bytes | None:
        if self._only is not None:
            return self._only.get(family, key)
        place = self._place(key)
        return None if place is None else self._shards[place][1].get(family, key)

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        if self._only is not None:
            return self._only.get_many(family, keys)
        ordered = sorted(keys)
        if ordered != keys:
            found = dict(zip(ordered, self.get_many(family, ordered), strict=True))
            return [found[key] for key in keys]
        values: list[bytes | None] = []
        for place, first, last in self._runs_by_shard(keys):
            part = keys[first:last]
            values += [None] * len(part) if place is None else self._shards[place][1].get_many(family, part)
        return values

    def scan(
        self, family: str, start: bytes, end: bytes | None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        if self._only is not None:
            return self._only.scan(family, start, end, limit)
        return self._scan_shards(family, start, end, limit)

    def _scan_shards(
        self, family: str, start: bytes, end: bytes | None, limit: int | None
    ) -> Iterator[tuple[bytes, bytes]]:
        left = limit
        for owned, engine in self._shards:
            if start < owned.end_key and (end is None or owned.start_key < end):
                upper = owned.end_key if end is None else min(end, owned.end_key)
                for entry in engine.scan(family, max(start, owned.start_key), upper, left):
                    yield entry
                    if left is not None:
                        left -= 1
                if left == 0:
                    return

    def scan_keys(self, family: str, start: bytes, end: bytes | None) -> Iterator[bytes]:
        for owned, engine in self._shards:
            if start < owned.end_key and (end is None or owned.start_key < end):
                upper = owned.end_key if end is None else min(end, owned.end_key)
                yield from engine.scan_keys(family, max(start, owned.start_key), upper)

    def last_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        for owned, engine in reversed(self._shards):
            if start < owned.end_key and owned.start_key < end:
                found = engine.last_key(family, max(start, owned.start_key), min(end, owned.end_key))
                if found is not None:
                    return found
        return None

    def write(self, mutations: Iterable[Mutation]) -> None:
        """Applies mutations atomically per shard.

        A subtask with a process that dies in between is rebuilt from its last version.
        """
        if self._only is not None:
            self._only.write(mutations)
            return
        parts: dict[int, list[Mutation]] = {}
        for mutation in mutations:
            parts.setdefault(self._required_place(mutation.key), []).append(mutation)
        for place, part in parts.items():
            self._shards[place][1].write(part)

    def write_runs(self, runs: Sequence[SortedRun]) -> None:
        """Applies runs atomically per shard, like `write`."""
        if self._only is not None:
            self._only.write_runs(runs)
            return
        parts: dict[int, list[SortedRun]] = {}
        for run in runs:
            for place, first, last in self._runs_by_shard(run.keys):
                part = SortedRun(run.family, run.keys[first:last], run.values[first:last])
                own = self._required_place(run.keys[first]) if place is None else place
                parts.setdefault(own, []).append(part)
        for place, part_runs in parts.items():
            self._shards[place][1].write_runs(part_runs)

    def split(self, run: SortedRun) -> list[SortedRun]:
        """Returns one part per shard, so that shards ingest only their own."""
        if self._only is not None:
            return self._only.split(run)
        parts = []
        for place, first, last in self._runs_by_shard(run.keys):
            if place is None:
                self._required_place(run.keys[first])
            parts.append(SortedRun(run.family, run.keys[first:last], run.values[first:last]))
        return parts

    def write_sorted_file(self, run: SortedRun, file: Path) -> None:
        place = self._required_place(run.keys[0])
        self._shards[place][1].write_sorted_file(run, file)
        if run.keys[-1] < self._shards[place][0].end_key:
            self._written[file] = place

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Adds sorted files to a family.

        A shard's own files go to that shard. Other files go completely to every shard, where keys of other shards are
        deleted.
        """
        places = {self._written.pop(file, None) for file in files}
        if len(places) == 1 and (place := places.pop()) is not None:
            self._shards[place][1].ingest(family, files)
            return
        for owned, engine in self._shards:
            engine.ingest(family, files)
            if self._only is None:
                engine.delete_range(b"", owned.start_key, family)
                engine.delete_range(owned.end_key, None, family)

    def delete_range(self, start: bytes, end: bytes | None, family: str | None = None) -> None:
        for _, engine in self._shards:
            engine.delete_range(start, end, family)

    def families(self) -> list[str]:
        return sorted({family for _, engine in self._shards for family in engine.families()})

    def flush(self) -> None:
        for _, engine in self._shards:
            engine.flush()

    def begin_flush(self) -> None:
        for _, engine in self._shards:
            engine.begin_flush()

    def checkpoint(self, directory: Path) -> None:
        """Creates `directory`, at once, with one subdirectory per shard.

        The subdirectories are named by key groups.
        """
        partial = directory.with_name(f"{directory.name}.{uuid4().hex}")
        partial.mkdir(parents=True)
        for owned, engine in self._shards:
            engine.checkpoint(partial / f"{owned.start}-{owned.end}")
        partial.rename(directory)

    def compact(self, family: str | None = None) -> None:
        for _, engine in self._shards:
            engine.compact(family)

    def is_busy(self) -> bool:
        return any(engine.is_busy() for _, engine in self._shards)

    @property
    def found_damage(self) -> bool:
        return any(engine.found_damage for _, engine in self._shards)

    def size_bytes(self) -> int:
        return sum(engine.size_bytes() for _, engine in self._shards)

    def close(self) -> None:
        failure: Exception | None = None
        for _, engine in self._shards:  # all must be closed, or their directories stay locked
            try:
                engine.close()
            except Exception as error:  # noqa: BLE001 (raised below)
                failure = failure or error
        if failure is not None:
            raise failure

    def _place(self, key: bytes) -> int | None:
        """Returns the position of a key's shard, or None."""
        place = bisect_right(self._starts, key) - 1
        return place if place >= 0 and key < self._shards[place][0].end_key else None

    def _required_place(self, key: bytes) -> int:
        place = self._place(key)
        if place is None:
            raise KeyGroupError(f"key group {int.from_bytes(key[:2], 'big')} has no shard")
        return place

    def _runs_by_shard(self, keys: list[bytes]) -> Iterator[tuple[int | None, int, int]]:
        """Yields runs of ascending `keys` in the same shard.

        Each is the shard's position (None: no shard), the first key's index, and the end.
        """
        at = 0
        while at < len(keys):
            place = self._place(keys[at])
            following = bisect_right(self._starts, keys[at])
            if place is not None:
                bound: bytes | None = self._shards[place][0].end_key
            else:
                bound = self._starts[following] if following < len(self._starts) else None
            end = len(keys) if bound is None else bisect_left(keys, bound, at)
            yield place, at, end
            at = end
