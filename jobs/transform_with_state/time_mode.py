"""The time that a processor's timers use.

Modes have Spark's names and Spark's watermark.

Spark's watermark is the latest event time minus the bound; an event at or before it is late, and a timer at or before
it is due. Keyscale's watermark is one millisecond less: the last time that has passed. So a processor sees Keyscale's
watermark plus one, and its timers are stored one millisecond earlier. Before any record, Spark's watermark is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from keyscale.state.doors.keyed import EVENT_TIMERS, NO_WATERMARK_MS, PROCESSING_TIMERS

from ..errors import InvalidTopologyError

if TYPE_CHECKING:
    from keyscale.state.doors.keyed import Clock

_NO_TIME_MS: Final = -1
_BEFORE_ANY_WATERMARK_MS: Final = 0


class TimeMode(StrEnum):
    """The time modes by Spark's names, in any case."""

    NONE = "none"
    PROCESSING_TIME = "processingtime"
    EVENT_TIME = "eventtime"

    @classmethod
    def of(cls, name: str) -> Self:
        """Returns the mode with a name.

        Raises:
            InvalidTopologyError: The mode is unknown.
        """
        try:
            return cls(name.lower())
        except ValueError:
            raise InvalidTopologyError(
                f"the time mode is {name!r}; it must be None, ProcessingTime or EventTime"
            ) from None

    @property
    def timers(self) -> str:
        """The name of the timer queue that the mode uses."""
        return EVENT_TIMERS if self is TimeMode.EVENT_TIME else PROCESSING_TIMERS


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """The times of a batch as a processor sees them."""

    mode: TimeMode
    clock: Clock

    @property
    def processing_ms(self) -> int:
        return _NO_TIME_MS if self.mode is TimeMode.NONE else self.clock.processing_time_ms

    @property
    def watermark_ms(self) -> int:
        """The watermark.

        Spark shows it to processors in the mode ProcessingTime, too.
        """
        if self.mode is TimeMode.NONE:
            return _NO_TIME_MS
        return self.clock.event_time_ms + 1 if self.has_watermark else _BEFORE_ANY_WATERMARK_MS

    @property
    def has_watermark(self) -> bool:
        return self.clock.event_time_ms != NO_WATERMARK_MS

    @property
    def due_ms(self) -> int:
        """The time up to which stored timers are due."""
        if self.mode is not TimeMode.EVENT_TIME:
            return self.clock.processing_time_ms
        is_before_any = self.clock.timers_ms == NO_WATERMARK_MS
        return self.stored_ms(_BEFORE_ANY_WATERMARK_MS) if is_before_any else self.clock.timers_ms

    def stored_ms(self, timer_ms: int) -> int:
        """Returns the time that a timer is stored with."""
        return timer_ms - 1 if self.mode is TimeMode.EVENT_TIME else timer_ms

    def shown_ms(self, stored_ms: int) -> int:
        """Returns the time that a stored timer was registered for."""
        return stored_ms + 1 if self.mode is TimeMode.EVENT_TIME else stored_ms
