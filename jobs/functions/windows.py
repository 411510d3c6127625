"""Windows of time over the records of a key.

This module assigns records to windows and defines functions over a window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from keyscale.state.doors.keyed import TimeDomain

from ..errors import InvalidTopologyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from .process_function import Row

WINDOW_TYPE = pa.struct([("start", pa.int64()), ("end", pa.int64())])
"""The stored type of a window, which is a namespace under a key."""

TIME_MS_MAX = 2**63 - 1
"""The latest time that a timer can be set for."""


class Window(NamedTuple):
    """The time from `start` (inclusive) to `end` (exclusive).

    Both are milliseconds since the epoch.
    """

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last time in the window.

        The window is complete when the watermark reaches it.
        """
        return self.end - 1

    def stored(self) -> dict[str, int]:
        """Returns the window as a value of WINDOW_TYPE."""
        return {"start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """Consecutive windows of a fixed size, aligned to the epoch.

    Attributes:
        size_ms: The size of a window.
        offset_ms: The shift from the epoch.
        time_domain: Whether records are assigned by event time or by processing time.
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
    """Overlapping windows of a fixed size.

    A window begins at every slide; a record belongs to several windows.

    Attributes:
        size_ms: The size of a window.
        slide_ms: The time between the starts of two windows.
        offset_ms: The shift from the epoch.
        time_domain: Whether records are assigned by event time or by processing time.
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
    """Windows of records that follow each other within a gap.

    Attributes:
        gap_ms: A session ends after this time without a record.
        time_domain: Whether records are assigned by event time or by processing time.
    """

    gap_ms: int
    time_domain: TimeDomain = TimeDomain.EVENT

    def __post_init__(self) -> None:
        _check_positive(self.gap_ms)

    def assign(self, timestamp_ms: int) -> tuple[Window, ...]:
        """Returns the session of a single record.

        `merged` joins it with the sessions that it touches.
        """
        return (Window(timestamp_ms, timestamp_ms + self.gap_ms),)


WindowAssigner: TypeAlias = TumblingWindows | SlidingWindows | SessionWindows


class ProcessWindowFunction(ABC):
    """A function over all records of a key in a window."""

    @abstractmethod
    def process(self, key: Any, window: Window, elements: Sequence[Row]) -> Iterable[Any] | None:
        """Processes a window's records, in order of arrival, whenever it fires.

        Returns:
            The output records, each a dict of the declared columns or a tuple in their order. The columns of the key
            and of the window are added automatically.
        """


def merged(window: Window, others: Iterable[Window]) -> tuple[Window, list[Window]]:
    """Merges a new session with the sessions that it touches.

    The existing sessions do not touch each other, so one pass finds all sessions to merge.

    Returns:
        The merged session, and the sessions that it replaces.
    """
    touched = [other for other in others if window.start <= other.end and other.start <= window.end]
    whole = [window, *touched]
    return Window(min(each.start for each in whole), max(each.end for each in whole)), touched


def _start_of(timestamp_ms: int, size_ms: int, offset_ms: int) -> int:
    return timestamp_ms - (timestamp_ms - offset_ms) % size_ms


def _check_positive(*sizes_ms: int) -> None:
    if others := [type(size_ms).__name__ for size_ms in sizes_ms if type(size_ms) is not int]:
        raise InvalidTopologyError(f"the sizes of windows are whole numbers of milliseconds, not a {others[0]}")
    if min(sizes_ms) <= 0:
        raise InvalidTopologyError(f"the sizes of windows must be above zero, not {', '.join(map(str, sizes_ms))} ms")
