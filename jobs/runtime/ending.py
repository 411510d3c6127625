"""How a run ends: the first reason that is given counts, whoever gives it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs.runtime.failures import origin_of, typed_failure
from jobs.wire import DriverState, Failure
from state.log import FencedError

if TYPE_CHECKING:
    from state.errors import KeyscaleError


@dataclass(frozen=True, slots=True)
class Ending:
    """The terminal state of a run, and why."""

    state: DriverState
    error: KeyscaleError | None = None

    @classmethod
    def by(cls, failure: BaseException) -> Ending:
        """The ending that an exception leads to."""
        error = typed_failure(failure)
        return cls(DriverState.FENCED if isinstance(error, FencedError) else DriverState.FAILED, error)

    @property
    def failure(self) -> Failure | None:
        """What is told to the control plane; None unless the run has failed."""
        if self.error is None or self.state is not DriverState.FAILED:
            return None
        origin = origin_of(self.error)
        return Failure(
            code=self.error.code,
            message=str(self.error),
            traceback=origin.user_traceback,
            operator_uid=origin.operator_uid,
            subtask=origin.subtask,
            advice=self.error.advice,
        )


class EndingBox:
    """Where any thread puts the run's ending, and the main thread waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given = threading.Event()
        self._ending: Ending | None = None

    @property
    def ending(self) -> Ending | None:
        return self._ending

    def give(self, ending: Ending) -> None:
        """End the run in this way, unless it ends already."""
        with self._lock:
            if self._ending is None:
                self._ending = ending
                self._given.set()

    def wait(self, timeout_seconds: float) -> Ending | None:
        self._given.wait(timeout_seconds)
        return self._ending
