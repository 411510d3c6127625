"""How far a query is behind its sources, as far as they tell. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def pending_records(progress: Any) -> int | None:
    """By how many offsets the last batch was behind what its sources had; None if none of them tells.

    Sources with numbered partitions (Kafka) tell: their offsets are numbers by topic and partition.

    Args:
        progress: Spark's report of the last trigger; None before the first.
    """
    if progress is None:
        return None
    known = [behind for source in progress["sources"] if (behind := _behind(source)) is not None]
    return sum(known) if known else None


def _behind(source: Any) -> int | None:
    end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    if end is None or latest is None:
        return None
    return sum(max(0, offset - end.get(place, offset)) for place, offset in latest.items())


def _offsets(given: Any) -> dict[tuple[str, str], int] | None:
    """Offsets by topic and partition; None if they are of another form."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            return None
    if not isinstance(given, Mapping) or not all(isinstance(parts, Mapping) for parts in given.values()):
        return None
    offsets = {(topic, part): offset for topic, parts in given.items() for part, offset in parts.items()}
    return offsets if all(isinstance(offset, int) for offset in offsets.values()) else None
