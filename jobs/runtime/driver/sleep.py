"""The sleep of a driver: it watches its sources without Spark."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.clock import now_ms

from .run_outcome import WOKEN, RunOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyscale.state.doors.keyed import NextTimers

    from .run_outcome import RunOutcomeBox
    from .source_watch import SourceWatch

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
TIMER_AHEAD_MS = 10_000
"""A driver wakes this long before a timer is due, as a start takes some seconds."""


@dataclass(slots=True)
class Sleep:
    """A driver's sleep: whether it is wanted, and what ends it.

    Attributes:
        leave_spark: Ends Spark and its JVM, but not this process; None: impossible here.
        is_wanted: Whether the control plane wants the driver to sleep.
        watch: Watches the sources.
        are_timers_known: Whether the driver knows the timers of all subtasks.
        timers_due_at_ms: When the next processing-time timer is due.
        end_watch: Ends the threads of the watch.
    """

    leave_spark: Callable[[], None] | None = None
    is_wanted: bool = False
    watch: SourceWatch | None = None
    are_timers_known: bool = True
    timers_due_at_ms: int | None = None
    end_watch: Callable[[], None] = lambda: None

    def want(self, is_wanted: bool) -> None:
        self.is_wanted = is_wanted

    def note_timers(self, timers: Sequence[NextTimers | None]) -> None:
        """Notes when the next processing-time timer of all subtasks is due."""
        due = [each.processing_ms for each in timers if each is not None and each.processing_ms is not None]
        self.are_timers_known, self.timers_due_at_ms = None not in timers, min(due, default=None)

    def reason_to_wake(self, at_ms: int) -> str | None:
        """Returns why the driver must not sleep, or not any longer."""
        if not self.is_wanted:
            return "the control plane has work"
        if not self.are_timers_known:
            return "the driver does not know its timers"
        if self.timers_due_at_ms is not None and at_ms >= self.timers_due_at_ms - TIMER_AHEAD_MS:
            return "a timer is due"
        return None if self.watch is None else self.watch.news()

    def sleep(self, outcome_box: RunOutcomeBox, on_asleep: Callable[[], None]) -> RunOutcome:
        """Sleeps until there is work; returns how the run ends.

        A cancellation or a newer attempt ends the sleep, too.
        """
        if (outcome := outcome_box.reopen()) is not None:
            return outcome
        if self.leave_spark is not None:
            self.leave_spark()
        logger.info("the driver sleeps")
        on_asleep()
        while (outcome := outcome_box.wait(POLL_SECONDS)) is None:
            if (why := self.reason_to_wake(now_ms())) is not None:
                logger.info("the driver wakes: %s", why)
                outcome_box.give(WOKEN)
        self.end_watch()
        return outcome
