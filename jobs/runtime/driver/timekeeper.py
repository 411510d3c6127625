"""The thread that has timers fire when there is no input."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyscale.jobs.runtime.driver.batch_loop import BatchLoop

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05  # looking takes microseconds: the driver knows when the next timer is due
_REHEARSALS = 3  # the JVM compiles code that has run a few times: the third takes a third of the first one's time
IDLE_SECONDS = 0.3
"""A loop that has committed no input for so long is idle. Otherwise, due timers fire with the next batch anyhow."""


class Timekeeper:
    """Runs a batch of time alone when timers are due while the loop is idle; looks several times per second.

    Including the time of the batch, timers fire within a second of being due, unless a checkpoint delays them. Until
    a timer is due, it has the loop rehearse such a batch, as the first ones of a JVM are slow. For jobs with timers
    only.
    """

    def __init__(self, loop: BatchLoop) -> None:
        self._loop = loop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Ends the thread. The loop ends a batch that runs."""
        self._ended.set()

    def _run(self) -> None:
        rehearsals = _REHEARSALS
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                fired = self._loop.fire_timers(IDLE_SECONDS)
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
