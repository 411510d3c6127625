"""The thread that fires timers without input."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .batch_loop import BatchLoop

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05  # polling takes microseconds: the driver knows when the next timer is due
_REHEARSALS = 3  # the JVM compiles code that has run a few times: the third run takes a third of the first run's time
_FIRST_POLL_SECONDS = 30.0  # a slow or unavailable source delays timers for at most this time
IDLE_SECONDS = 0.3
"""A loop that has committed no input for this long is idle. Otherwise, due timers fire with the next batch."""


class TimerLoop:
    """Runs batches of time alone for due timers, in an idle loop.

    It polls several times per second.

    Including the time of the batch, timers fire within a second of being due, unless a checkpoint delays them. Until a
    timer is due, the loop rehearses such a batch, as the first batches of a JVM are slow. Only for jobs with timers.

    Timers wait until the driver has looked for input: a program that fails on its first record is then rolled back
    without commits, and rows of timers are never emitted twice.

    Args:
        loop: The loop.
        has_looked_for_input: Whether the driver has committed input, or has found no input.
    """

    def __init__(self, loop: BatchLoop, has_looked_for_input: Callable[[], bool]) -> None:
        self._loop = loop
        self._has_looked_for_input = has_looked_for_input
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timer_loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Ends the thread.

        The loop finishes a running batch.
        """
        self._ended.set()

    def _run(self) -> None:
        rehearsals = _REHEARSALS
        began = time.monotonic()
        may_fire = False
        while not self._ended.wait(_POLL_SECONDS):
            may_fire = may_fire or self._has_looked_for_input() or time.monotonic() - began > _FIRST_POLL_SECONDS
            try:
                fired = may_fire and self._loop.fire_timers(IDLE_SECONDS)
            except Exception:
                logger.warning("a batch of timers failed", exc_info=True)
                return
            rehearsals = 0 if fired else rehearsals
            if rehearsals and self._rehearse():
                rehearsals -= 1

    def _rehearse(self) -> bool:
        try:
            return self._loop.rehearse_timers(IDLE_SECONDS)
        except Exception:
            logger.info("the first batch of timers may take a second longer than later batches", exc_info=True)
            return True
