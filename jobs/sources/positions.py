"""The positions of a source: the ranges that a batch reads.

The form is the document that Spark stores. Decisions are made without I/O.

Spark stores one JSON document per batch with the end of the batch. This document also holds the start of the batch in
each split: the first position of a split, which may be "now", is durable with the plan of the first batch that reads
the split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from keyscale.units import counted

from ..errors import SourcePositionsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .source import Loss, Position

    RecordsBetween: TypeAlias = Callable[[Position, Position], int | None]

_VERSION = 1


class SplitRange(msgspec.Struct, frozen=True):
    """The range of a split that a batch reads.

    `start` is inclusive, `end` is exclusive.
    """

    split: str
    start: Any
    end: Any


class BatchPositions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ranges of all splits that a batch reads.

    Every known split has a range, which may be empty.
    """

    splits: dict[str, tuple[Any, Any]] = {}
    version: int = _VERSION

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BatchPositions:
        """Reads a document that `to_json` wrote.

        Raises:
            SourcePositionsError: The document belongs to another kind of source.
        """
        try:
            positions = msgspec.convert(document, cls)
        except msgspec.ValidationError as error:
            raise SourcePositionsError(
                "the recorded positions do not come from a Python source: the job now has another source"
            ) from error
        if positions.version != _VERSION:
            raise SourcePositionsError(
                f"the recorded positions have version {positions.version}; this Keyscale reads version {_VERSION}"
            )
        return positions

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "splits": {name: list(ends) for name, ends in self.splits.items()}}

    @property
    def reached(self) -> dict[str, Position]:
        """The position up to which each split is read after the batch."""
        return {name: end for name, (_, end) in self.splits.items()}

    def ranges(self) -> list[SplitRange]:
        """Returns the ranges that are not empty, by split name."""
        return [SplitRange(name, start, end) for name, (start, end) in sorted(self.splits.items()) if start != end]


def with_discovered(reached: Mapping[str, Position], discovered: Mapping[str, Position]) -> dict[str, Position]:
    """Returns the position of each known split.

    A split that was read continues at its last end; a new split begins at its discovered position.
    """
    return {**discovered, **reached}


def next_positions(
    before: BatchPositions, positions: Mapping[str, Position], latest: Mapping[str, Position]
) -> BatchPositions:
    """Returns the ranges of the next batch.

    Returns `before` itself if there is nothing new, which tells Spark so.

    Raises:
        SourcePositionsError: The source plans to read a split that it has not discovered.
    """
    unknown = sorted(set(latest) - set(positions))
    if unknown:
        raise SourcePositionsError(
            f"the source plans to read {counted(len(unknown), 'split')} that it has not discovered, such as"
            f" {unknown[0]!r}"
        )
    splits = {name: (start, latest.get(name, start)) for name, start in sorted(positions.items())}
    is_same = positions == before.reached and all(start == end for start, end in splits.values())
    return before if is_same else BatchPositions(splits)


def limited(positions: Mapping[str, int], ends: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Returns end positions at most `limit` records after the positions.

    Positions count records.

    Each split gets a share in proportion to its waiting records: splits that cover the same time at different rates
    then advance together in event time. The remainder of rounding goes first to splits without a share, so that a small
    split does not starve beside a large split.
    """
    waiting = {split: max(0, ends[split] - positions[split]) for split in ends if split in positions}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return {split: positions[split] + number for split, number in waiting.items()}
    taken = {split: number * limit // total for split, number in waiting.items()}
    remainders = {split: number * limit % total for split, number in waiting.items() if number * limit % total}
    by_need = sorted(remainders, key=lambda split: (taken[split] > 0, -remainders[split], split))
    for split in by_need[: limit - sum(taken.values())]:
        taken[split] += 1
    return {split: positions[split] + number for split, number in taken.items()}


def within(
    latest: Mapping[str, Position],
    ends: Mapping[str, Position],
    records_between: RecordsBetween,
) -> dict[str, Position]:
    """Returns how far to read each split, at most to `ends`.

    A split is read to its end at once if the source cannot compare positions.
    """
    bounded: dict[str, Position] = {}
    for split, end in ends.items():
        if split in latest:
            left = records_between(latest[split], end)
            bounded[split] = end if left is None or left < 0 else latest[split]
    return bounded


def records_behind(
    planned: Mapping[str, Position], ends: Mapping[str, Position], records_between: RecordsBetween
) -> int | None:
    """Returns how many records are left after a batch.

    They lie between the batch's end and the ends of the splits. Returns None if the number is unknown.
    """
    left = behind_by_split(planned, ends, records_between)
    return None if left is None else sum(left.values())


def behind_by_split(
    planned: Mapping[str, Position], ends: Mapping[str, Position], records_between: RecordsBetween
) -> dict[str, int] | None:
    """Returns how many records of each split are left after a batch.

    Returns None if a number is unknown.
    """
    left = {split: records_between(planned[split], end) for split, end in ends.items() if split in planned}
    known = {split: max(0, count) for split, count in left.items() if count is not None}
    return known if len(known) == len(left) else None


def without(ranges: Sequence[SplitRange], losses: Mapping[str, Loss]) -> list[SplitRange]:
    """Returns ranges without their lost records."""
    left = [
        SplitRange(each.split, losses[each.split].left if each.split in losses else each.start, each.end)
        for each in ranges
    ]
    return [each for each in left if each.start != each.end]


def dealt(ranges: Sequence[SplitRange], readers: int) -> list[list[SplitRange]]:
    """Deals the ranges to readers, round robin.

    Every reader gets at least one range.
    """
    return [list(ranges[reader::readers]) for reader in range(min(readers, len(ranges)))]
