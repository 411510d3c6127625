"""What a keyed state backend needs of a store of bytes: an ordered map for each column family (one family a state)."""

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
    """Many mutations of one family, as columns: `keys` strictly ascending, `values[i]` None deletes `keys[i]`.

    The columnar form of a list of mutations: large batches never make an object a mutation, and a run is in the order in
    which a sorted file must be written.
    """

    family: str
    keys: list[bytes]
    values: list[bytes | None]

    def __len__(self) -> int:
        return len(self.keys)

    def mutations(self) -> Iterator[Mutation]:
        """The run's mutations in key order."""
        family = self.family
        for key, value in zip(self.keys, self.values, strict=True):
            yield Mutation(family, key, value)


class Engine(Protocol):
    """An ordered store of bytes with column families, made on first write. Not safe for use by several threads.

    A family that was never written to reads as empty. Every failure is one of `state.errors`.
    """

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order. Sorted keys are read faster."""
        ...

    def scan(
        self, family: str, start: bytes, end: bytes | None, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < end (None: to the end), ascending; the first `limit` of them.

        The engine must not be written to between the first and the last step of a scan.
        """
        ...

    def last_key(self, family: str, start: bytes, end: bytes) -> bytes | None:
        """The greatest key with start <= key < end; None if there is none."""
        ...

    def write(self, mutations: Iterable[Mutation]) -> None:
        """Apply mutations of any families atomically; of two for one key the later one wins."""
        ...

    def write_runs(self, runs: Sequence[SortedRun]) -> None:
        """Apply sorted runs atomically."""
        ...

    def write_sorted_file(self, run: SortedRun, file: Path) -> None:
        """Write a run, which must not be empty, as a file that engines of this kind can ingest. Changes no entry."""
        ...

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Take sorted files into a family, in order: what they hold wins over what was there.

        The files stay where they are (RocksDB links them), so that the same file can be the changelog.
        """
        ...

    def delete_range(self, start: bytes, end: bytes | None, family: str | None = None) -> None:
        """Delete start <= key < end of one family, or of all."""
        ...

    def families(self) -> list[str]:
        """Names of the families that exist, sorted."""
        ...

    def flush(self) -> None:
        """Bring all that was written into files."""
        ...

    def begin_flush(self) -> None:
        """Begin what `flush` does, without waiting for its end."""
        ...

    def checkpoint(self, directory: Path) -> None:
        """Make `directory` (which must not exist) a consistent copy of the store, by hard links where there are files."""
        ...

    def compact(self, family: str | None = None) -> None:
        """Rewrite all files, or those of one family, into their smallest form. May take long."""
        ...

    def is_busy(self) -> bool:
        """Whether a flush or a compaction is under way."""
        ...

    def size_bytes(self) -> int:
        """Bytes of the store's live data, as near as the engine knows it."""
        ...

    def close(self) -> None:
        """Release everything. Unflushed writes may be lost; closing twice is harmless."""
        ...
