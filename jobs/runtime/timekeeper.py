"""The thread that has timers fire when no input comes."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.runtime.query import BatchLoop

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05  # a look costs microseconds: the driver knows when the next timer is due
_REHEARSALS = 3  # the JVM compiles what it has run a few times: the third one takes a third of the first one's time
IDLE_SECONDS = 0.3
"""For how long no input was committed before it counts as idle: timers that are due fire with the next batch anyhow."""


class Timekeeper:
    """Looks several times a second whether timers are due while the loop has nothing to do, and runs a batch for them.

    With the time that a batch takes, timers thus fire within a second of being due, but for those that a checkpoint holds up. As long
    as nothing is due it has the loop rehearse such a batch, of which the first ones of a JVM are slow. For jobs with timers only.
    """

    def __init__(self, loop: BatchLoop) -> None:
        self._loop = loop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Look no more. A batch that runs is the loop's to end."""
        self._ended.set()

    def _run(self) -> None:
        rehearsals = _REHEARSALS
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                fired = self._loop.fire_timers(IDLE_SECONDS)
            except Exception:  # noqa: BLE001 - the loop has told whoever ends the run
                _log.warning("a batch of timers failed", exc_info=True)
                return
            rehearsals = 0 if fired else rehearsals
            if rehearsals and self._rehearse():
                rehearsals -= 1

    def _rehearse(self) -> bool:
        try:
            return self._loop.rehearse_timers(IDLE_SECONDS)
        except Exception:  # noqa: BLE001 - the run may be ending; otherwise the first batch of timers tells what is wrong
            _log.info("the first batch of timers may take a second longer than those after it", exc_info=True)
            return True
