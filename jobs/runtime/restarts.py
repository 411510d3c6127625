"""Starting a job again in the same process: the attempt stays open, Spark stays up, and only what had failed is made anew."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from jobs.restart import FATAL_CODES, GiveUp, RestartAfter, next_restart, with_failure
from jobs.runtime.clock import now_ms
from jobs.runtime.errors import SparkLostError
from jobs.wire import DriverState

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from jobs.runtime.ending import Ending, EndingBox
    from jobs.runtime.status import DriverStatus
    from jobs.wire import FailureHistory, RestartStrategy

_log = logging.getLogger(__name__)


class Restarts:
    """What becomes of a run that has failed.

    Without a strategy nothing is decided here: the driver ends, and the control plane replaces it by its own rule.

    Args:
        strategy: The job's.
        history: Its failures so far.
        status: Is told of failures.
        draw: Draws the jitter, between -1 and 1.
        clock: Milliseconds since the epoch.
    """

    def __init__(
        self,
        strategy: RestartStrategy | None,
        history: FailureHistory,
        status: DriverStatus,
        *,
        draw: Callable[[], float] = lambda: random.uniform(-1, 1),  # noqa: S311 - it keeps jobs from starting together
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._strategy = strategy
        self._history = history
        self._status = status
        self._draw = draw
        self._clock = clock
        status.restarts(strategy, history)

    def decide(self, ending: Ending) -> RestartAfter | GiveUp | None:
        """Count a failure, and decide by the strategy; None if the ending is not this process's to mend."""
        error = ending.error
        if self._strategy is None or ending.state is not DriverState.FAILED or error is None:
            return None
        if error.code in FATAL_CODES or isinstance(error, SparkLostError):
            return None
        self._history = with_failure(self._history, self._clock())
        self._status.restarts(self._strategy, self._history, ending.failure)
        return next_restart(self._strategy, self._history, self._draw())

    def wait_to_restart(self, endings: EndingBox) -> bool:
        """Decide about the ending that was given, and let the time pass; whether the job is to be started again.

        If so the box is open again. If not, it has the final ending.
        """
        ending = endings.ending
        if ending is None:
            return False
        match self.decide(ending):
            case None:
                return False
            case GiveUp(reason):
                _log.error("the job is given up: %s", reason)
                if endings.reopen() is None:
                    endings.give(replace(ending, given_up=reason))
                return False
            case RestartAfter(delay_ms):
                _log.error("the run has failed; it starts again in %d ms", delay_ms, exc_info=ending.error)
                self._status.enter(DriverState.RESTORING)
                return endings.reopen() is None and endings.wait(delay_ms / 1000) is None


def is_session_good(spark: SparkSession) -> bool:
    """Whether Spark still runs jobs."""
    try:
        return spark.range(1).count() == 1
    except Exception:  # noqa: BLE001 - whatever it is, Spark does not run jobs
        return False
