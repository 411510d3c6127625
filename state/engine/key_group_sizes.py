"""Counts or estimates entries and bytes by key group.

A small state is counted; a large one is estimated from its files' metadata. Estimates suffice to sum up ranges of key
groups. They do not rank single key groups: of equal key groups, those at the ends of files would come first. So the
largest key groups are only those whose sizes are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING

from ..keys.key_groups import KEY_GROUP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..keys.key_groups import KeyGroupRange


ENTRIES_COUNTED_MAX = 20_000
"""A subtask with at most so many entries is counted: its few files span all key groups, and say nothing about one."""
LARGEST_MAX = 10
STANDS_OUT = 2
"""A key group of an estimate stands out if files of its own have this many times the average of a key group."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file's first and last key, undeleted entries, and bytes."""

    first: bytes
    last: bytes
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LargeKeyGroup:
    """One of the largest key groups of a subtask.

    Attributes:
        key_group: Its number.
        size_bytes: Its size, or without `entries` the size of the files that hold nothing else: it has at least this.
        entries: Its entries, if they are counted.
    """

    key_group: int
    size_bytes: int
    entries: int | None


@dataclass(frozen=True, slots=True)
class KeyGroupSizes:
    """Entries and bytes of each key group that a subtask owns.

    In an estimate an overwritten entry counts until its old version is compacted away, and a file that spans several
    key groups is split evenly between them, because a hash spreads keys over key groups.

    Attributes:
        entries: By key group, in order.
        size_bytes: Likewise.
        largest: The largest key groups, the largest first; none if the files do not tell.
    """

    entries: tuple[int, ...]
    size_bytes: tuple[int, ...]
    largest: tuple[LargeKeyGroup, ...] = ()


def counted_sizes(entries: Iterable[tuple[bytes, bytes]], owned: KeyGroupRange) -> KeyGroupSizes:
    """Counts the entries and bytes of stored keys and values."""
    count = owned.end - owned.start + 1
    counts, size_bytes = [0] * count, [0] * count
    for key, value in entries:
        group = _key_group(key) - owned.start
        counts[group] += 1
        size_bytes[group] += len(key) + len(value)
    known = (LargeKeyGroup(owned.start + group, size, counts[group]) for group, size in enumerate(size_bytes) if size)
    return KeyGroupSizes(tuple(counts), tuple(size_bytes), _largest(known))


def estimated_sizes(shards: Iterable[tuple[KeyGroupRange, Iterable[FileFacts]]], owned: KeyGroupRange) -> KeyGroupSizes:
    """Estimates key group sizes from the files of a subtask's shards.

    Key groups of a shard outside its own range are ignored.
    """
    count = owned.end - owned.start + 1
    entries, size_bytes, of_one = [0] * count, [0] * count, [0] * count
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
                    of_one[group - owned.start] += bytes_of if first == last else 0
    least = STANDS_OUT * sum(size_bytes) / count
    known = (LargeKeyGroup(owned.start + group, size, None) for group, size in enumerate(of_one) if size > least)
    return KeyGroupSizes(tuple(entries), tuple(size_bytes), _largest(known))


def _largest(known: Iterable[LargeKeyGroup]) -> tuple[LargeKeyGroup, ...]:
    return tuple(nlargest(LARGEST_MAX, known, key=attrgetter("size_bytes")))


def _key_group(stored_key: bytes) -> int:
    return int.from_bytes(stored_key[:KEY_GROUP_BYTES], "big")


def _spread(total: int, parts: int) -> list[int]:
    """Splits an integer into integers that differ by at most one."""
    share, rest = divmod(total, parts)
    return [share + (part < rest) for part in range(parts)]
