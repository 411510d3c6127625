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
    """The terminal state of a run, and why; `given_up` says by which rule a restart strategy tries no more."""

    state: DriverState
    error: KeyscaleError | None = None
    given_up: str | None = None

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
            message=str(self.error) if self.given_up is None else f"{self.error} ({self.given_up})",
            traceback=origin.user_traceback,
            operator_uid=origin.operator_uid,
            subtask=origin.subtask,
            advice=self.error.advice,
            final=self.given_up is not None,
        )


class EndingBox:
    """Where any thread puts the run's ending, and the main thread waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given = threading.Event()
        self._ending: Ending | None = None
        self._later: Ending | None = None

    @property
    def ending(self) -> Ending | None:
        return self._ending

    def give(self, ending: Ending) -> None:
        """End the run in this way, unless it ends already."""
        with self._lock:
            if self._ending is None:
                self._ending = ending
                self._given.set()
            elif ending.state is not DriverState.FAILED:
                self._later = self._later or ending

    def reopen(self) -> Ending | None:
        """Take a failure back, so that the job can start again.

        Returns:
            An order to end, or a fence, that came after the failure: it stays, and the job must not start again.
        """
        with self._lock:
            self._ending, self._later = self._later, None
            if self._ending is None:
                self._given.clear()
            return self._ending

    def wait(self, timeout_seconds: float) -> Ending | None:
        self._given.wait(timeout_seconds)
        return self._ending
