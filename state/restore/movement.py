"""The files that a rescale moves, and how even the result is.

The functions are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plan import assign_shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..documents.manifest import SnapshotHandle
    from ..keys.key_group_ranges import KeyGroupRanges
    from ..keys.key_groups import KeyGroupRange


@dataclass(frozen=True, slots=True)
class SubtaskMovement:
    """The files that one new subtask opens.

    Attributes:
        index: The subtask.
        key_groups: Its key group range.
        state_bytes: Size of the files that it opens.
        files: Their number.
        from_subtasks: The subtasks that wrote them.
        other_bytes: Size of the files that another subtask wrote: linked on the same host, else downloaded.
        clipped_shards: The number of shards that it opens in part.
    """

    index: int
    key_groups: KeyGroupRange
    state_bytes: int
    files: int
    from_subtasks: tuple[int, ...]
    other_bytes: int
    clipped_shards: int


def movements(snapshots: Sequence[SnapshotHandle], ranges: KeyGroupRanges) -> list[SubtaskMovement]:
    """Returns what each new subtask opens of an operator's snapshots.

    Raises:
        CoverError: The snapshots miss or double a key group.
    """
    writers = {id(shard): snapshot.subtask for snapshot in snapshots for shard in snapshot.shards}
    return [
        SubtaskMovement(
            index=index,
            key_groups=ranges.range_of(index),
            state_bytes=sum(file.size_bytes for each in taken for file in each.shard.files),
            files=sum(len(each.shard.files) for each in taken),
            from_subtasks=tuple(sorted({writers[id(each.shard)] for each in taken})),
            other_bytes=sum(
                file.size_bytes for each in taken if writers[id(each.shard)] != index for file in each.shard.files
            ),
            clipped_shards=sum(each.clipped for each in taken),
        )
        for index, taken in enumerate(assign_shards(snapshots, ranges))
    ]


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly an operator's state is distributed over its subtasks.

    Attributes:
        bytes_max: Estimated size of the largest subtask's state.
        ratio: `bytes_max` divided by the mean of all subtasks; 1 is even.
        largest_key_group: The key group with the most bytes.
        largest_key_group_bytes: Its estimated size, which bounds the balance: a key group is indivisible.
    """

    bytes_max: int
    ratio: float
    largest_key_group: int
    largest_key_group_bytes: int


def skew(key_group_bytes: Sequence[int], ranges: KeyGroupRanges) -> Skew | None:
    """Returns the skew of a state over ranges; None without state.

    `key_group_bytes` is the size of every key group.
    """
    total = sum(key_group_bytes)
    if not total:
        return None
    largest = ranges.largest(key_group_bytes)
    heaviest = max(range(len(key_group_bytes)), key=key_group_bytes.__getitem__)
    return Skew(largest, largest * len(ranges) / total, heaviest, key_group_bytes[heaviest])
