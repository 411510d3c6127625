"""The two times of keyed state: the clock's and the watermark's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from .stamp import STAMP_MIN_MS

END_OF_TIME_MS = (1 << 63) - 1
"""The watermark after the very last record, which makes all event-time timers due."""


class TimeDomain(StrEnum):
    """The time that counts: the clock's or the watermark's."""

    PROCESSING = "processing"
    EVENT = "event"


class Clock(Protocol):
    """The times of a backend, in ms since the epoch.

    Only `event_stamp_ms` may go back, and only once.
    """

    @property
    def processing_time_ms(self) -> int: ...

    @property
    def event_time_ms(self) -> int: ...

    @property
    def timers_ms(self) -> int:
        """The event time up to which timers fire."""
        ...

    @property
    def is_at_end(self) -> bool:
        """Whether the input has ended, so that all event-time timers fire."""
        ...

    @property
    def event_stamp_ms(self) -> int:
        """The event time for TTLs.

        It goes back once, when the first watermark replaces the time of the first events.
        """
        ...


@dataclass(slots=True)
class BatchClock:
    """A clock that stands still within a batch.

    A repeated batch thus expires the same entries. `advance` sets the times of the next batch. It never moves time
    back, even if a host's clock is set back or the driver moves to another host. `become` may, to repeat a batch at its
    own times.

    Attributes:
        processing_time_ms: The batch's processing time.
        event_time_ms: The watermark.
        latest_event_ms: The latest time of an event.
        is_at_end: Whether all event-time timers fire, because the input has ended. TTLs still follow the watermark.
    """

    processing_time_ms: int = 0
    event_time_ms: int = STAMP_MIN_MS
    latest_event_ms: int = STAMP_MIN_MS
    is_at_end: bool = False

    @property
    def timers_ms(self) -> int:
        """The event time up to which timers fire.

        It is the watermark, or the end of time when a job is drained.
        """
        return END_OF_TIME_MS if self.is_at_end else self.event_time_ms

    @property
    def event_stamp_ms(self) -> int:
        """The watermark, or the latest event's time before the first watermark.

        Otherwise all entries of the first batch would be expired in the second.
        """
        return self.event_time_ms if self.event_time_ms > STAMP_MIN_MS else self.latest_event_ms

    def saw(self, event_ms: int) -> None:
        """Records an event's time."""
        self.latest_event_ms = max(self.latest_event_ms, event_ms)

    def advance(self, *, processing_time_ms: int | None = None, event_time_ms: int | None = None) -> None:
        if processing_time_ms is not None:
            self.processing_time_ms = max(self.processing_time_ms, processing_time_ms)
        if event_time_ms is not None:
            self.event_time_ms = max(self.event_time_ms, event_time_ms)

    def become(self, other: Clock) -> None:
        """Takes over another clock's times, even earlier ones.

        A repeated batch then expires the same entries.
        """
        self.processing_time_ms, self.event_time_ms = other.processing_time_ms, other.event_time_ms
        self.latest_event_ms = STAMP_MIN_MS
