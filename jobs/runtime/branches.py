"""A stream within a batch: a frame for each source or operator that its records come from.

They stay apart up to the next operator, as each of them has a watermark of its own.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from jobs.runtime.body import ORIGIN_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame

    from jobs.nodes import Arrival, NodeId

Branches: TypeAlias = "dict[NodeId, DataFrame]"
"""Frames of one schema by the node that their records come from."""


def joined(streams: Iterable[Branches]) -> Branches:
    """Several streams as one."""
    branches: Branches = {}
    for stream in streams:
        for origin, frame in stream.items():
            branches[origin] = branches[origin].union(frame) if origin in branches else frame
    return branches


def whole(branches: Branches) -> DataFrame:
    """All records in one frame."""
    return reduce(lambda left, right: left.union(right), branches.values())


def tagged(branches: Branches, arrivals: Sequence[Arrival], port: int) -> DataFrame:
    """All records of one input in one frame, each with the place of its origin among the operator's arrivals."""
    places = {each.origin.node.id: place for place, each in enumerate(arrivals) if each.port == port}
    return whole({origin: frame.withColumn(ORIGIN_COLUMN, F.lit(places[origin])) for origin, frame in branches.items()})


def tags_of(arrivals: Sequence[Arrival]) -> tuple[str, ...]:
    """Names of the arrivals that an operator's records have to be told apart by; none where it does not matter."""
    is_timed = any(each.timestamp_column is not None for each in arrivals)
    return tuple(each.name for each in arrivals) if is_timed and len(arrivals) > 1 else ()
