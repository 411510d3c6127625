"""How a run ends: the first outcome that any thread gives counts."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.state.doors.commits import FencedError
from keyscale.vocabulary import DriverState

from ...operators.failures import described, origin_of, shown_message, shown_traceback, typed_failure
from ...protocol.messages import Failure

if TYPE_CHECKING:
    from keyscale.errors import KeyscaleError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The terminal state of a run and its error.

    `given_up` names the rule by which its strategy ends restarts.
    """

    state: DriverState
    error: KeyscaleError | None = None
    given_up: str | None = None

    @classmethod
    def by(cls, failure: BaseException) -> RunOutcome:
        """Returns the outcome that an exception leads to."""
        error = typed_failure(failure)
        return cls(DriverState.FENCED if isinstance(error, FencedError) else DriverState.FAILED, error)

    @property
    def failure(self) -> Failure | None:
        """The failure that is reported to the control plane.

        None unless the run has failed.
        """
        if self.error is None or self.state is not DriverState.FAILED:
            return None
        return failure_of(self.error, self.given_up)


def failure_of(error: KeyscaleError, given_up: str | None = None) -> Failure:
    """Returns an error as the control plane shows it.

    `given_up` is as for RunOutcome.
    """
    origin = origin_of(error)
    return Failure(
        code=error.code,
        message=shown_message(str(error) if given_up is None else f"{error} ({given_up})"),
        traceback=shown_traceback(origin.user_traceback) if origin.user_traceback else None,
        operator_uid=origin.operator_uid,
        subtask=origin.subtask,
        advice=error.advice,
        final=given_up is not None,
    )


def log_failure(happened: str, error: KeyscaleError) -> None:
    """Logs an error.

    An error of user code has the user's traceback, which says more than Keyscale's traceback.
    """
    logger.error("%s: %s", happened, described(error), exc_info=None if origin_of(error).user_traceback else error)


HANDED_OVER = RunOutcome(DriverState.RUNNING)
"""The run of an attempt ends, and the same driver runs the next attempt."""

ASLEEP = RunOutcome(DriverState.SLEEPING)
"""The run ends after a checkpoint, and the driver watches its sources without Spark."""

WOKEN = RunOutcome(DriverState.WOKEN)
"""The driver has slept; the next attempt continues."""


class RunOutcomeBox:
    """Takes the run's outcome from any thread.

    The main thread waits for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given = threading.Event()
        self._outcome: RunOutcome | None = None
        self._later: RunOutcome | None = None

    @property
    def outcome(self) -> RunOutcome | None:
        return self._outcome

    def give(self, outcome: RunOutcome) -> None:
        """Ends the run with this outcome, unless it has an outcome already."""
        with self._lock:
            if self._outcome is None:
                self._outcome = outcome
                self._given.set()
            elif outcome.state is not DriverState.FAILED:
                self._later = self._later or outcome

    def reopen(self) -> RunOutcome | None:
        """Takes a failure back, so that the job can start again.

        Returns:
            A stop or a fence that came after the failure, if any: it stays, and the job must not start again.
        """
        with self._lock:
            self._outcome, self._later = self._later, None
            if self._outcome is None:
                self._given.clear()
            return self._outcome

    def wait(self, timeout_seconds: float) -> RunOutcome | None:
        self._given.wait(timeout_seconds)
        return self._outcome
