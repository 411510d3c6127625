"""Time modes: which of the two times a processor's timers go by, with Spark's names and counting.

Spark's watermark is the latest event time less the bound; an event at or before it is late, a timer at or before it is due. Ours is
one millisecond less, and the last time that is over. So a processor is shown ours plus one, and its timers are kept one earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from jobs.errors import InvalidTopologyError
from jobs.timers import EVENT_TIMERS, NO_WATERMARK_MS, PROCESSING_TIMERS

if TYPE_CHECKING:
    from state.ttl import Clock

_NO_TIME_MS: Final = -1
_BEFORE_ANY_WATERMARK_MS: Final = 0


class TimeMode(StrEnum):
    """As Spark names them; case does not matter."""

    NONE = "none"
    PROCESSING_TIME = "processingtime"
    EVENT_TIME = "eventtime"

    @classmethod
    def of(cls, name: str) -> Self:
        """The mode of a name.

        Raises:
            InvalidTopologyError: There is none.
        """
        try:
            return cls(name.lower())
        except ValueError:
            message = f"the time mode {name!r} is none of None, ProcessingTime and EventTime"
            raise InvalidTopologyError(message) from None

    @property
    def timers(self) -> str:
        """The name of the timers that are used."""
        return EVENT_TIMERS if self is TimeMode.EVENT_TIME else PROCESSING_TIMERS


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """The times of a batch as a processor is shown them."""

    mode: TimeMode
    clock: Clock

    @property
    def processing_ms(self) -> int:
        return _NO_TIME_MS if self.mode is TimeMode.NONE else self.clock.processing_time_ms

    @property
    def watermark_ms(self) -> int:
        if self.mode is not TimeMode.EVENT_TIME:
            return _NO_TIME_MS
        return self.clock.event_time_ms + 1 if self.has_watermark else _BEFORE_ANY_WATERMARK_MS

    @property
    def has_watermark(self) -> bool:
        return self.clock.event_time_ms != NO_WATERMARK_MS

    @property
    def due_ms(self) -> int:
        """Up to when stored timers are due."""
        return self.clock.event_time_ms if self.mode is TimeMode.EVENT_TIME else self.clock.processing_time_ms

    def stored_ms(self, timer_ms: int) -> int:
        """The time that a timer is stored with."""
        return timer_ms - 1 if self.mode is TimeMode.EVENT_TIME else timer_ms

    def shown_ms(self, stored_ms: int) -> int:
        """The time that the timer was registered for."""
        return stored_ms + 1 if self.mode is TimeMode.EVENT_TIME else stored_ms
