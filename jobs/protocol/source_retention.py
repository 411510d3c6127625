"""Whether sources still have the records that a checkpoint continues with.

Decisions are made without I/O. A checkpoint's positions are the positions at the end of its last batch: a job that
starts from the checkpoint goes back to them. A job that only restarts continues from its commit log, which is further
ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pydantic import TypeAdapter, ValidationError

from .messages import REPORTED_SPLITS_MAX, SourceMetrics, SplitPosition, TopicPosition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOTHING_READ = "-"
_CHARACTERS_MAX = 4 << 20
"""Maximum length of a source's positions that are read: more than all reported splits need, with the longest names."""
_UID_SHOWN_MAX = 100
"""Maximum length of a uid in a message: a job may have a long uid, and each of its splits can have a problem."""
_POSITION: TypeAdapter[int | TopicPosition] = TypeAdapter(SplitPosition)


class _Ranges(msgspec.Struct):
    """The split ranges that a batch of a Python source reads."""

    splits: dict[str, tuple[Any, Any]]


_RANGES = msgspec.json.Decoder(_Ranges)


class SourceRetention(NamedTuple):
    """The retention of the sources of a checkpoint.

    Attributes:
        problems: The records that are gone, in words.
        unknown: The uids of the sources that do not report the remaining records of all their splits.
    """

    problems: list[str]
    unknown: list[str]


def comparable_positions(positions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the positions of a source as a driver reports them.

    Returns none if they cannot be compared, or are too many.
    """
    try:
        return SourceMetrics.model_validate({"uid": "", "earliest": positions}).model_dump()["earliest"]  # type: ignore[no-any-return]
    except ValidationError:
        return {}


def reported_sources(uids: Sequence[str], earliest: Sequence[Mapping[str, Any]]) -> list[SourceMetrics]:
    """Returns a driver's report of its sources.

    The sources in the report have at most `REPORTED_SPLITS_MAX` splits together.

    Args:
        uids: The sources, in the order of their inputs.
        earliest: The earliest position of each split, by input; empty where unknown. A source with several inputs is
            not reported, as its inputs cannot be identified.
    """
    reported: list[SourceMetrics] = []
    splits = 0
    for uid, positions in zip(uids, earliest, strict=True) if len(uids) == len(earliest) else ():
        comparable = comparable_positions(positions)
        if comparable and splits + len(comparable) <= REPORTED_SPLITS_MAX:
            splits += len(comparable)
            reported.append(SourceMetrics(uid=uid, earliest=comparable))
    return reported


def source_retention(uids: Sequence[str], ends: Sequence[str], reported: Sequence[SourceMetrics]) -> SourceRetention:
    """Compares a checkpoint's positions with the records that sources still have.

    Args:
        uids: The uids of the sources in the checkpoint, in the order of their inputs.
        ends: The position in each input, as the source gave it. A job may have written anything there.
        reported: The sources' earliest positions.
    """
    earliest = {source.uid: source.earliest for source in reported}
    problems: list[str] = []
    unknown: list[str] = []
    if len(uids) != len(ends) or len(set(uids)) != len(uids):
        return SourceRetention(problems, list(uids))
    for uid, end in zip(uids, ends, strict=True):
        if end == _NOTHING_READ:
            continue
        if not earliest.get(uid) or len(end) > _CHARACTERS_MAX:
            unknown.append(uid)
            continue
        shown = uid[:_UID_SHOWN_MAX]
        try:
            ranges = _RANGES.decode(end).splits
        except (ValueError, RecursionError):
            problems.append(f"source {shown!r}: its positions cannot be read")
            continue
        found = [
            _gone(split, ranges[split][1], first) for split, first in sorted(earliest[uid].items()) if split in ranges
        ]
        problems += [
            f"source {shown!r}: {gone}; a job starts from it only if it skips lost records" for gone in found if gone
        ]
        if None in found or len(found) < len(ranges):
            unknown.append(uid)
    return SourceRetention(problems, unknown)


def _gone(split: str, stored: Any, first: int | TopicPosition) -> str | None:
    """Returns which records of a split are gone.

    Returns an empty text if no records are gone, None if the positions cannot be compared.
    """
    try:
        position = _POSITION.validate_python(stored)
    except (ValidationError, RecursionError):
        return None
    # Up to version 0.1 a position in Kafka was only the offset.
    begins_at = first if isinstance(first, int) else first.offset
    if isinstance(position, TopicPosition):
        if isinstance(first, int):
            return None
        if position.topic_id and first.topic_id and position.topic_id != first.topic_id:
            return f"the topic of split {split} was deleted and created again, and the records before are gone"
        position = position.offset
    return (
        f"split {split} begins at {begins_at}, and the checkpoint continues at {position}"
        if position < begins_at
        else ""
    )
