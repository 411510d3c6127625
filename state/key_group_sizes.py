"""How many entries and bytes each key group of a subtask has, told from its files alone: no entry is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state.key_groups import KEY_GROUP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state.key_groups import KeyGroupRange


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a store knows of one of its files: its first and last stored key, its entries without deletions, its bytes."""

    first: bytes
    last: bytes
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KeyGroupSizes:
    """Estimates by key group, the subtask's first one first.

    An entry that was overwritten counts until its old version is compacted away, and a file that spans several key groups
    counts evenly for each: keys are spread over them by a hash.
    """

    entries: tuple[int, ...]
    size_bytes: tuple[int, ...]


def key_group_sizes(shards: Iterable[tuple[KeyGroupRange, Iterable[FileFacts]]], owned: KeyGroupRange) -> KeyGroupSizes:
    """Spread the files of a subtask's shards over its key groups. What a shard holds beyond its own range is no longer used."""
    count = owned.end - owned.start + 1
    entries, size_bytes = [0] * count, [0] * count
    for own, files in shards:
        for file in files:
            first, last = _key_group(file.first), _key_group(file.last)
            groups = range(first, last + 1)
            for group, entries_of, bytes_of in zip(
                groups, _spread(file.entries, len(groups)), _spread(file.size_bytes, len(groups)), strict=True
            ):
                if own.start <= group <= own.end:
                    entries[group - owned.start] += entries_of
                    size_bytes[group - owned.start] += bytes_of
    return KeyGroupSizes(tuple(entries), tuple(size_bytes))


def _key_group(stored_key: bytes) -> int:
    return int.from_bytes(stored_key[:KEY_GROUP_BYTES], "big")


def _spread(total: int, parts: int) -> list[int]:
    """A whole number in so many whole parts that differ by one at most."""
    share, rest = divmod(total, parts)
    return [share + (part < rest) for part in range(parts)]
