"""The contract of an engine: an ordered store of bytes for a keyed state backend, with one column family per state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


class Mutation(NamedTuple):
    """One change of one entry; `value` None deletes it."""

    family: str
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Many mutations of one family, as columns: `keys` strictly ascending; `values[i]` None deletes `keys[i]`.

    In this form a large batch needs no object per mutation, and a run has the order in which a sorted file must be
    written.
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
    """An ordered store of bytes with column families, which are created at first write. Not thread-safe.

    A family that was never written reads as empty. All failures are errors of `keyscale.state.errors`.
    """

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        """Returns the values of `keys`, in their order. Sorted keys are read faster."""
        ...

    def scan(
        self, family: str, start: bytes, end: bytes | None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Returns the first `limit` entries with start <= key < end (None: no upper bound), ascending.

        Do not write to the engine while the scan runs.
        """
        ...

    def last_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        """Returns the greatest key with start <= key < end; None if there is none."""
        ...

    def write(self, mutations: Iterable[Mutation]) -> None:
        """Applies mutations of any families atomically; of two for one key the later one wins."""
        ...

    def write_runs(self, runs: Sequence[SortedRun]) -> None:
        """Applies sorted runs atomically."""
        ...

    def split(self, run: SortedRun) -> list[SortedRun]:
        """Returns the parts of a run that belong in a sorted file each; none if it is empty."""
        ...

    def write_sorted_file(self, run: SortedRun, file: Path) -> None:
        """Writes a run, which must not be empty, as a file that engines of this kind can ingest. Changes no entry."""
        ...

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Adds sorted files to a family, in order: their entries replace existing ones.

        The files stay in place (RocksDB links them), so that the same file can be the changelog.
        """
        ...

    def delete_range(self, start: bytes, end: bytes | None, family: str | None = None) -> None:
        """Deletes the entries with start <= key < end (None: no upper bound) of one family, or of all."""
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
        """Creates `directory`, which must not exist, as a consistent copy of the store, by hard links to its files."""
        ...

    def compact(self, family: str | None = None) -> None:
        """Rewrites all files, or those of one family, into their smallest form. May take long."""
        ...

    def is_busy(self) -> bool:
        """Returns whether a flush or a compaction is running."""
        ...

    @property
    def found_damage(self) -> bool:
        """Whether any operation so far has found a file damaged or missing, even if its caller ignored that."""
        ...

    def size_bytes(self) -> int:
        """Returns the bytes of the store's live data, as exactly as the engine knows them."""
        ...

    def close(self) -> None:
        """Releases all resources. Unflushed writes may be lost; closing twice is harmless."""
        ...
