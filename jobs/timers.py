"""Timers as functions see them: the two times of a batch, and calls at later ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.runtime.body import NextTimers
from state.ttl import STAMP_MIN_MS, TimeDomain

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from state.keyed import KeyedStateBackend
    from state.timers import Timer, TimerQueue

NO_WATERMARK_MS = STAMP_MIN_MS
"""The watermark before any record: earlier than every event."""

EVENT_TIMERS = "_event_timers"
PROCESSING_TIMERS = "_processing_timers"


class TimerService:
    """Times, and timers of the current key; with Flink's names. All times are milliseconds since the epoch.

    A timer is kept in keyed state: it survives restarts and goes with its key when the job is rescaled. Registering the
    same time for the same key again changes nothing. Timers fire at the end of a batch; those of one key in order of time.
    """

    def __init__(self, state: KeyedStateBackend, namespace_type: pa.DataType | None = None) -> None:
        self._clock = state.clock
        self._event = state.timers(EVENT_TIMERS, namespace_type)
        self._processing = state.timers(PROCESSING_TIMERS, namespace_type)

    def current_watermark(self) -> int:
        """No earlier event is expected any more; NO_WATERMARK_MS before any record. It stands still between records of a batch."""
        return self._clock.event_time_ms

    def current_processing_time(self) -> int:
        """The batch's time, which stands still within it."""
        return self._clock.processing_time_ms

    def register_event_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called when the watermark has reached a time; at the next advance, if it has already."""
        self._event.register(timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called when a time has come."""
        self._processing.register(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Forget an event-time timer, if it is registered."""
        self._event.delete(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Forget a processing-time timer, if it is registered."""
        self._processing.delete(timestamp)

    def due(self) -> Iterator[tuple[TimeDomain, Timer]]:
        """Take all timers that are due now; called by the runtime."""
        for timer in self._event.due(self._clock.event_time_ms):
            yield TimeDomain.EVENT, timer
        for timer in self._processing.due(self._clock.processing_time_ms):
            yield TimeDomain.PROCESSING, timer

    def next_times(self) -> NextTimers:
        """When this subtask has something to do although no record comes."""
        return NextTimers(self._event.next_ms, self._processing.next_ms)

    @property
    def queues(self) -> tuple[TimerQueue, TimerQueue]:
        """Event and processing timers, for operators that have timers in namespaces."""
        return self._event, self._processing
