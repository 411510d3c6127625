"""The thread that has timers fire when there is no input."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .batch_loop import BatchLoop

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05  # looking takes microseconds: the driver knows when the next timer is due
_REHEARSALS = 3  # the JVM compiles code that has run a few times: the third takes a third of the first one's time
_FIRST_LOOK_SECONDS = 30.0  # a source that is slow to list, or away, does not keep timers for longer
IDLE_SECONDS = 0.3
"""A loop that has committed no input for so long is idle. Otherwise, due timers fire with the next batch anyhow."""


class Timekeeper:
    """Runs a batch of time alone when timers are due while the loop is idle; looks several times per second.

    Including the time of the batch, timers fire within a second of being due, unless a checkpoint delays them. Until
    a timer is due, it has the loop rehearse such a batch, as the first ones of a JVM are slow. For jobs with timers
    only.

    Timers wait until the driver has looked for input: a program that fails on its first record is then taken back with
    nothing committed, and no row of a timer is emitted twice.

    Args:
        loop: The loop.
        has_looked_for_input: Whether the driver has committed input, or has found none.
    """

    def __init__(self, loop: BatchLoop, has_looked_for_input: Callable[[], bool]) -> None:
        self._loop = loop
        self._has_looked_for_input = has_looked_for_input
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Ends the thread. The loop ends a batch that runs."""
        self._ended.set()

    def _run(self) -> None:
        rehearsals = _REHEARSALS
        began = time.monotonic()
        may_fire = False
        while not self._ended.wait(_LOOK_SECONDS):
            may_fire = may_fire or self._has_looked_for_input() or time.monotonic() - began > _FIRST_LOOK_SECONDS
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
            logger.info("the first batch of timers may take a second longer than those after it", exc_info=True)
            return True
