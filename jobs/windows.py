"""Windows: finite scopes of a key's records, by time. Assigning a record to windows is pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from jobs.errors import InvalidTopologyError
from state.ttl import TimeDomain

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW_TYPE = pa.struct([("start", pa.int64()), ("end", pa.int64())])
"""How a window is stored: as a namespace under its key."""


class Window(NamedTuple):
    """The times from `start` up to and without `end`, in milliseconds since the epoch."""

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last time in it; the window is complete when the watermark has reached it."""
        return self.end - 1

    def stored(self) -> dict[str, int]:
        """As a value of WINDOW_TYPE."""
        return {"start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """Windows of one size, each beginning where the one before it ends, aligned to the epoch.

    Attributes:
        size_ms: Their size.
        offset_ms: By how much they are shifted.
        time_domain: Whether records go by their event time or by the clock.
    """

    size_ms: int
    offset_ms: int = 0
    time_domain: TimeDomain = TimeDomain.EVENT

    def __post_init__(self) -> None:
        _check_positive(self.size_ms)

    def assign(self, timestamp_ms: int) -> tuple[Window, ...]:
        start = _start_of(timestamp_ms, self.size_ms, self.offset_ms)
        return (Window(start, start + self.size_ms),)


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of one size, of which one begins at every slide; a record is in several of them.

    Attributes:
        size_ms: Their size.
        slide_ms: From one's beginning to the next one's.
        offset_ms: By how much they are shifted.
        time_domain: Whether records go by their event time or by the clock.
    """

    size_ms: int
    slide_ms: int
    offset_ms: int = 0
    time_domain: TimeDomain = TimeDomain.EVENT

    def __post_init__(self) -> None:
        _check_positive(self.size_ms, self.slide_ms)

    def assign(self, timestamp_ms: int) -> tuple[Window, ...]:
        last = _start_of(timestamp_ms, self.slide_ms, self.offset_ms)
        starts = range(last, timestamp_ms - self.size_ms, -self.slide_ms)
        return tuple(Window(start, start + self.size_ms) for start in starts)


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows that last as long as records follow each other within a gap.

    Attributes:
        gap_ms: A session is over when no record has come for so long.
        time_domain: Whether records go by their event time or by the clock.
    """

    gap_ms: int
    time_domain: TimeDomain = TimeDomain.EVENT

    def __post_init__(self) -> None:
        _check_positive(self.gap_ms)

    def assign(self, timestamp_ms: int) -> tuple[Window, ...]:
        """The session of a record on its own; `merged` joins it with those it touches."""
        return (Window(timestamp_ms, timestamp_ms + self.gap_ms),)


WindowAssigner: TypeAlias = TumblingWindows | SlidingWindows | SessionWindows


def merged(window: Window, others: Iterable[Window]) -> tuple[Window, list[Window]]:
    """The session that a new one and those it touches become, and which those are.

    The others do not touch each other, so one pass finds all.
    """
    touched = [other for other in others if window.start <= other.end and other.start <= window.end]
    whole = [window, *touched]
    return Window(min(each.start for each in whole), max(each.end for each in whole)), touched


def _start_of(timestamp_ms: int, size_ms: int, offset_ms: int) -> int:
    return timestamp_ms - (timestamp_ms - offset_ms) % size_ms


def _check_positive(*sizes_ms: int) -> None:
    if min(sizes_ms) <= 0:
        message = f"windows need sizes above zero, not {', '.join(map(str, sizes_ms))} ms"
        raise InvalidTopologyError(message)
