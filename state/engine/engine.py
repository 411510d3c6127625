"""The contract of an engine: an ordered store of bytes.

A keyed state backend uses one column family per state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


class Mutation(NamedTuple):
    """A change of one entry; `value` None deletes it."""

    family: str
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Many mutations of one family, as columns.

    `keys` are strictly ascending; `values[i]` None deletes `keys[i]`. In this form a large batch needs no object per
    mutation, and a run has the order of a sorted file.
    """

    family: str
    keys: list[bytes]
    values: list[bytes | None]

    def __len__(self) -> int:
        return len(self.keys)

    def size_bytes(self) -> int:
        """Returns the bytes of all keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, filter(None, self.values)))

    def mutations(self) -> Iterator[Mutation]:
        """Returns the run's mutations in key order."""
        family = self.family
        for key, value in zip(self.keys, self.values, strict=True):
            yield Mutation(family, key, value)


class Engine(Protocol):
    """An ordered store of bytes with column families; not thread-safe.

    The first write creates a family; a family that was never written reads as empty. All failures are errors of
    `keyscale.state.errors`.
    """

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        """Returns the values of `keys`, in their order.

        Sorted keys are read faster.
        """
        ...

    def scan(
        self, family: str, start: bytes, end: bytes | None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Returns up to `limit` entries with start <= key < end, ascending.

        `end` None means no upper bound. Do not write to the engine while the scan runs.
        """
        ...

    def scan_keys(self, family: str, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """Returns the keys with start <= key < end, ascending, without values.

        `end` None means no upper bound. Do not write to the engine while the scan runs.
        """
        ...

    def last_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        """Returns the greatest key with start <= key < end, or None."""
        ...

    def write(self, mutations: Iterable[Mutation]) -> None:
        """Applies mutations atomically; the last mutation of a key wins."""
        ...

    def write_runs(self, runs: Sequence[SortedRun]) -> None:
        """Applies sorted runs atomically."""
        ...

    def split(self, run: SortedRun) -> list[SortedRun]:
        """Splits a non-empty run into parts for a sorted file each.

        An empty run gives an empty list.
        """
        ...

    def write_sorted_file(self, run: SortedRun, file: Path) -> None:
        """Writes a non-empty run as a file that such engines can ingest.

        The engine's entries do not change.
        """
        ...

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Adds sorted files to a family, replacing existing entries, in order.

        The files stay in place (RocksDB links them), so that the same file can be the changelog.
        """
        ...

    def delete_range(self, start: bytes, end: bytes | None, family: str | None = None) -> None:
        """Deletes a family's, or all, entries with start <= key < end.

        `end` None means no upper bound.
        """
        ...

    def families(self) -> list[str]:
        """Returns the names of all existing families, sorted."""
        ...

    def flush(self) -> None:
        """Writes everything in memory to files."""
        ...

    def begin_flush(self) -> None:
        """Starts a `flush` without waiting for it."""
        ...

    def checkpoint(self, directory: Path) -> None:
        """Creates `directory` as a consistent copy, by hard links to files.

        The directory must not exist.
        """
        ...

    def compact(self, family: str | None = None) -> None:
        """Rewrites all files, or one family's, into their smallest form.

        It may take long.
        """
        ...

    def is_busy(self) -> bool:
        """Returns whether a flush or a compaction is running."""
        ...

    @property
    def found_damage(self) -> bool:
        """Whether any operation so far found a file damaged or missing.

        It counts even if the caller ignored the error.
        """
        ...

    def size_bytes(self) -> int:
        """Returns the bytes of live data, as exactly as known."""
        ...

    def close(self) -> None:
        """Releases all resources; closing twice is harmless.

        Unflushed writes may be lost.
        """
        ...
