"""The positions of a source: what a batch reads, as Spark keeps it; decisions without I/O.

Spark keeps one JSON document a batch, of where the batch ends. Ours says for each split where the batch begins, too, so that it
is complete in itself: a split's first position, which may be "now", is durable with the plan of the first batch that
reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jobs.errors import SourcePositionsError
from state.operator_state import Distribution, OperatorStateSnapshot, StoredOperatorState, redistribute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.sources.contract import Position

_VERSION = 1
_STATE = "splits"
_RANGE_TYPE = ["struct", ["split", "string"], ["start", "string"], ["end", "string"]]


class SplitRange(msgspec.Struct, frozen=True):
    """What a batch reads of a split: from `start` up to, and without, `end`."""

    split: str
    start: Any
    end: Any


class BatchPositions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a batch reads of all splits. Every known split has a range, which may be empty."""

    splits: dict[str, tuple[Any, Any]] = {}
    version: int = _VERSION

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BatchPositions:
        """Reads what `to_json` made.

        Raises:
            SourcePositionsError: It is no such document: the positions are of another kind of source.
        """
        try:
            positions = msgspec.convert(document, cls)
        except msgspec.ValidationError as error:
            message = "the recorded positions are not those of a source in Python: the job's source is another one now"
            raise SourcePositionsError(message) from error
        if positions.version != _VERSION:
            message = f"the recorded positions have version {positions.version}; this is for version {_VERSION}"
            raise SourcePositionsError(message)
        return positions

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "splits": {name: list(ends) for name, ends in self.splits.items()}}

    @property
    def reached(self) -> dict[str, Position]:
        """Where each split has been read to, once the batch is done."""
        return {name: end for name, (_, end) in self.splits.items()}

    def ranges(self) -> list[SplitRange]:
        """What there is to read, in a settled order."""
        return [SplitRange(name, start, end) for name, (start, end) in sorted(self.splits.items()) if start != end]


def with_discovered(reached: Mapping[str, Position], discovered: Mapping[str, Position]) -> dict[str, Position]:
    """The position of each known split: where it was read to, or where a new one begins."""
    return {**discovered, **reached}


def next_positions(
    before: BatchPositions, positions: Mapping[str, Position], latest: Mapping[str, Position]
) -> BatchPositions:
    """What the next batch reads; `before` itself if there is nothing new, which is how Spark knows.

    Raises:
        SourcePositionsError: The source plans to read a split that it has not named.
    """
    unknown = sorted(set(latest) - set(positions))
    if unknown:
        message = f"the source plans to read {len(unknown)} splits that it has not discovered, such as {unknown[0]!r}"
        raise SourcePositionsError(message)
    splits = {name: (start, latest.get(name, start)) for name, start in sorted(positions.items())}
    is_same = positions == before.reached and all(start == end for start, end in splits.values())
    return before if is_same else BatchPositions(splits)


def limited(positions: Mapping[str, int], ends: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Ends that are at most `limit` records away from positions that count records; every split gets its share.

    What a split leaves of an equal share goes to the others, so that none starves behind a large one.
    """
    wanted = {split: max(0, ends[split] - positions[split]) for split in ends if split in positions}
    if limit is None or sum(wanted.values()) <= limit:
        return {split: positions[split] + number for split, number in wanted.items()}
    left, taken = limit, dict.fromkeys(wanted, 0)
    for place, split in enumerate(sorted(wanted, key=lambda split: (wanted[split], split))):
        taken[split] = min(wanted[split], left // (len(wanted) - place))
        left -= taken[split]
    return {split: positions[split] + number for split, number in taken.items()}


def dealt(ranges: Sequence[SplitRange], readers: int) -> list[list[SplitRange]]:
    """The ranges of each reader, as a split list of operator state is dealt out at any parallelism; no reader is idle."""
    stored = StoredOperatorState(Distribution.SPLIT, _RANGE_TYPE, tuple(ranges))
    parts = redistribute([OperatorStateSnapshot({_STATE: stored})], readers)
    return [list(part.states[_STATE].items) for part in parts if part.states[_STATE].items]
