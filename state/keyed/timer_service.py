"""Timers as functions see them.

The service gives the two times of a batch and calls back at later times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from .batch_clock import TimeDomain
from .stamp import STAMP_MIN_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from .backend import KeyedStateBackend
    from .timer_queue import Timer, TimerQueue

NO_WATERMARK_MS = STAMP_MIN_MS
"""The watermark before any record: earlier than any event."""

EVENT_TIMERS = "_event_timers"
PROCESSING_TIMERS = "_processing_timers"


class NextTimers(msgspec.Struct, frozen=True):
    """A subtask's earliest timers in milliseconds, or None.

    The subtask must run at these times even without records.
    """

    event_ms: int | None = None
    processing_ms: int | None = None


class TimerService:
    """The batch's times and the timers of the current key.

    Names are as in Flink. Times are milliseconds since the epoch. Timers are kept in keyed state: they survive restarts
    and move with their key when the job is rescaled. Registering the same time for the same key twice has no effect.
    Timers fire at the end of a batch; the timers of a key fire in order of time.
    """

    def __init__(self, state: KeyedStateBackend, namespace_type: pa.DataType | None = None) -> None:
        self._clock = state.clock
        self._event = state.timers(EVENT_TIMERS, namespace_type)
        self._processing = state.timers(PROCESSING_TIMERS, namespace_type)

    def current_watermark(self) -> int:
        """Returns the watermark: no earlier event is expected.

        The watermark is constant within a batch. Before any record it is NO_WATERMARK_MS.
        """
        return self._clock.event_time_ms

    def current_processing_time(self) -> int:
        """Returns the processing time of the batch.

        It is constant within a batch.
        """
        return self._clock.processing_time_ms

    def register_event_time_timer(self, timestamp: int) -> None:
        """Registers a call of `on_timer` for when the watermark reaches a time.

        If the watermark has reached the time already, the timer fires at the next advance of the watermark.
        """
        self._event.register(timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Registers a call of `on_timer` at a processing time."""
        self._processing.register(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes an event-time timer, if it is registered."""
        self._event.delete(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes a processing-time timer, if it is registered."""
        self._processing.delete(timestamp)

    def due(self) -> Iterator[tuple[TimeDomain, Timer]]:
        """Removes and yields all timers that are due now.

        The runtime calls this.
        """
        for timer in self._event.due(self._clock.timers_ms, registered_meanwhile=not self._clock.is_at_end):
            yield TimeDomain.EVENT, timer
        for timer in self._processing.due(self._clock.processing_time_ms):
            yield TimeDomain.PROCESSING, timer

    def next_times(self) -> NextTimers:
        """Returns the earliest timers."""
        return NextTimers(self._event.next_ms, self._processing.next_ms)

    @property
    def queues(self) -> tuple[TimerQueue, TimerQueue]:
        """The event-time and the processing-time timers, for operators with timers in namespaces."""
        return self._event, self._processing
