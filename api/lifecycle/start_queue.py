"""Gives the drivers of this host their turns to start."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyscale.db.repositories import attempts
from keyscale.vocabulary import AttemptStage, DriverState

from ..launching.processes import ProcessState
from .facts import Turn
from .start_line import StartKey, WantedStart, places_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from keyscale.db.models import Attempt

    from ..launching.launcher import Launcher
    from .facts import Timeouts
    from .stopwatch import Stopwatch

READ_EVERY_S = 0.2
PATIENCE_S = 5.0
"""A start loses its place if the job's steps have not asked for it for this long, as they fail or are quarantined."""
BEFORE_RUNNING = (DriverState.STANDBY, DriverState.RESTORING)
"""What a driver reports before it runs the job; a driver whose Spark is not up yet reports nothing."""


class StartQueue:
    """Gives the drivers of this host their turns to start.

    A driver has its turn from its launch until it runs the job or is warm, until it ends, or until `turn_ms` after it
    has asked for work: a long restore mostly waits for the store.

    The queue reads the database and the processes, so a new leader goes on with it. Beside them it knows which launches
    are under way in this process. Several threads use it.

    Args:
        launcher: Inspects the processes of attempts.
        at_once: How many drivers start at once.
        stopwatch: Measures the time since drivers asked for work.
        timeouts: The limits that apply.
        monotonic: A clock in seconds.
    """

    def __init__(
        self,
        launcher: Launcher,
        at_once: int,
        stopwatch: Stopwatch,
        timeouts: Timeouts,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher = launcher
        self._at_once = at_once
        self._stopwatch = stopwatch
        self._timeouts = timeouts
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._read_at_s = float("-inf")
        self._waiting: dict[StartKey, WantedStart] = {}
        self._begun: set[StartKey] = set()
        self._asked_at_s: dict[StartKey, float] = {}
        self._announced: set[StartKey] = set()
        self._launching: set[StartKey] = set()
        self._launched_since_read: set[StartKey] = set()

    def ask(self, session: Session, attempt: Attempt) -> Turn:
        """Returns the place of an attempt that is not launched."""
        key = attempt.job_id, attempt.number
        with self._lock:
            now_s = self._asked_at_s[key] = self._monotonic()
            if key not in self._waiting or now_s - self._read_at_s >= READ_EVERY_S:
                self._read(session, now_s)
            return Turn(self._places().get(key, 0), key in self._announced)

    def note_announced(self, job_id: str, attempt: int) -> None:
        """Notes that an event tells that an attempt waits."""
        with self._lock:
            self._announced.add((job_id, attempt))

    @contextmanager
    def turn(self, job_id: str, attempt: int) -> Iterator[bool]:
        """Takes an attempt's turn, during its launch.

        Yields:
            Whether it is the attempt's turn: another thread may just have taken the last one.
        """
        key = job_id, attempt
        with self._lock:
            has_turn = key not in self._launching and self._places().get(key, 0) == 0
            if has_turn:
                self._launching.add(key)
        try:
            yield has_turn
        finally:
            if has_turn:
                with self._lock:
                    self._launching.discard(key)
                    self._launched_since_read.add(key)
                    self._read_at_s = float("-inf")

    def _places(self) -> dict[StartKey, int]:
        begun = self._begun | self._launching | self._launched_since_read
        waiting = [start for key, start in self._waiting.items() if key not in begun]
        return places_of(waiting, begun=len(begun), at_once=self._at_once)

    def _read(self, session: Session, now_s: float) -> None:
        waiting, begun = {}, set()
        for attempt, job_created_at_ms in attempts.list_unstarted(session, BEFORE_RUNNING):
            key = attempt.job_id, attempt.number
            state = self._launcher.inspect(attempt).state
            if state is ProcessState.UNLAUNCHED:
                self._asked_at_s.setdefault(key, now_s)
                is_down = attempt.stage is AttemptStage.ACTIVE
                waiting[key] = WantedStart(*key, attempt.created_at_ms, job_created_at_ms, is_down=is_down)
            elif self._is_starting(attempt, state):
                begun.add(key)
        self._asked_at_s = {key: at_s for key, at_s in self._asked_at_s.items() if key in waiting}
        self._announced &= waiting.keys()
        self._waiting = {key: start for key, start in waiting.items() if now_s - self._asked_at_s[key] < PATIENCE_S}
        self._begun, self._launched_since_read, self._read_at_s = begun, set(), now_s

    def _is_starting(self, attempt: Attempt, state: ProcessState) -> bool:
        if state is ProcessState.DEAD:
            return False
        if state is ProcessState.UNKNOWN and not self._launcher.is_of_this_host(attempt):
            return False
        if attempt.stage is AttemptStage.STANDBY and attempt.driver_state == DriverState.STANDBY:
            return False
        if attempt.attached_at_ms is None:
            return True  # the reconciler ends a driver that does not attach in time
        attached_ms = self._stopwatch.elapsed_ms((attempt.job_id, attempt.number, "turn"), attempt.attached_at_ms)
        return attached_ms <= self._timeouts.turn_ms
