"""The division of all key groups among an operator's subtasks; pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ..errors import KeyGroupError
from .key_groups import KeyGroupRange, check_max_parallelism, check_parallelism, key_group_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class KeyGroupRanges:
    """The key group ranges of all subtasks.

    Ranges are contiguous, and each key group is in exactly one range.

    Attributes:
        max_parallelism: Number of key groups.
        starts: The first key group of each subtask, ascending from 0.
    """

    max_parallelism: int
    starts: tuple[int, ...]

    def __post_init__(self) -> None:
        check_max_parallelism(self.max_parallelism)
        limits = (*self.starts, self.max_parallelism)
        if not self.starts or limits[0] != 0 or any(start >= end for start, end in pairwise(limits)):
            raise KeyGroupError(f"{self.starts} do not divide {self.max_parallelism} key groups")

    @classmethod
    def of_count(cls, max_parallelism: int, parallelism: int) -> KeyGroupRanges:
        """Divides key groups evenly by number, as in Flink.

        Raises:
            KeyGroupError: Not 1 <= parallelism <= max_parallelism <= 32768.
        """
        check_parallelism(max_parallelism, parallelism)
        starts = (key_group_range(max_parallelism, parallelism, index).start for index in range(parallelism))
        return cls(max_parallelism, tuple(starts))

    @classmethod
    def balanced(cls, weights: Sequence[int], parallelism: int) -> KeyGroupRanges:
        """Divides key groups so that the largest weight is minimal.

        Args:
            weights: The weight of every key group; none is negative.
            parallelism: The number of ranges.

        Raises:
            KeyGroupError: Not 1 <= parallelism <= the number of weights <= 32768.
        """
        check_parallelism(len(weights), parallelism)
        return cls(len(weights), _starts(weights, parallelism))

    @classmethod
    def joined(cls, ranges: Iterable[KeyGroupRange]) -> KeyGroupRanges:
        """Joins the ranges of all subtasks, by index.

        Raises:
            KeyGroupError: The ranges miss or double a key group.
        """
        parts = tuple(ranges)
        if any(left.end + 1 != right.start for left, right in pairwise(parts)):
            raise KeyGroupError(f"{parts} miss or double a key group")
        return cls(parts[-1].end + 1 if parts else 0, tuple(part.start for part in parts))

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[KeyGroupRange]:
        for start, end in pairwise((*self.starts, self.max_parallelism)):
            yield KeyGroupRange(start, end - 1)

    @property
    def is_by_count(self) -> bool:
        """Whether each range has an even number of key groups."""
        return self == KeyGroupRanges.of_count(self.max_parallelism, len(self))

    def range_of(self, subtask: int) -> KeyGroupRange:
        """Returns the key groups of a subtask.

        Raises:
            KeyGroupError: The subtask does not exist.
        """
        if not 0 <= subtask < len(self):
            raise KeyGroupError(f"subtask {subtask} does not exist at parallelism {len(self)}")
        end = self.starts[subtask + 1] if subtask + 1 < len(self) else self.max_parallelism
        return KeyGroupRange(self.starts[subtask], end - 1)

    def subtask_of(self, key_group: int) -> int:
        """Returns the subtask that owns a key group.

        Raises:
            KeyGroupError: The key group does not exist.
        """
        if not 0 <= key_group < self.max_parallelism:
            raise KeyGroupError(f"key group {key_group} does not exist at max parallelism {self.max_parallelism}")
        return bisect_right(self.starts, key_group) - 1

    def largest(self, weights: Sequence[int]) -> int:
        """Returns the weight of the range with most weight."""
        return max(sum(weights[each.start : each.end + 1]) for each in self)


def _starts(weights: Sequence[int], parallelism: int) -> tuple[int, ...]:
    until = [0, *accumulate(weights)]
    # The smallest capacity is an integer between the heaviest key group and the total.
    least, most = max(weights), until[-1]
    while least < most:
        middle = (least + most) // 2
        if _needed(until, middle)[0] <= parallelism:
            most = middle
        else:
            least = middle + 1
    needed = _needed(until, most)
    starts = [0]
    for left in range(parallelism - 1, 0, -1):  # ranges after this one
        start = starts[-1]
        # Many limits respect the capacity. The end closest to an even share of the rest keeps the other ranges even.
        fair = until[start] + (until[-1] - until[start]) / (left + 1)
        allowed = range(start + 1, min(bisect_right(until, until[start] + most) - 1, len(weights) - left) + 1)
        starts.append(min((end for end in allowed if needed[end] <= left), key=lambda end: abs(until[end] - fair)))
    return tuple(starts)


def _needed(until: Sequence[int], capacity: int) -> list[int]:
    """Counts the ranges that the key groups from each start on need.

    A range has at most the weight `capacity`.
    """
    count = len(until) - 1
    needed = [0] * (count + 1)
    end = count
    for start in range(count - 1, -1, -1):
        while until[end] - until[start] > capacity:
            end -= 1
        needed[start] = 1 + needed[end]
    return needed
