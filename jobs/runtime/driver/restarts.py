"""Restarts of a job in the same process.

The attempt stays open and Spark stays up.
"""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.vocabulary import DriverState

from ...protocol.restart import FATAL_CODES, GiveUp, RestartAfter, next_restart, with_failure
from ..errors import SparkLostError
from .run_outcome import log_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from ...protocol.messages import FailureHistory
    from ...protocol.specification import RestartStrategy
    from ..control.driver_status import DriverStatus
    from .run_outcome import RunOutcome, RunOutcomeBox

logger = logging.getLogger(__name__)


class Restarts:
    """Decides whether a failed run starts again.

    Without a strategy it does not decide: the driver ends, and the control plane replaces the driver by its own rule.

    Args:
        strategy: Returns the job's restart strategy, which may change.
        history: The job's failures so far.
        status: Takes failures.
        draw: Draws the jitter, between -1 and 1.
        clock: Returns milliseconds since the epoch.
    """

    def __init__(
        self,
        strategy: Callable[[], RestartStrategy | None],
        history: FailureHistory,
        status: DriverStatus,
        *,
        draw: Callable[[], float] = lambda: random.uniform(-1, 1),  # noqa: S311 - not a secret
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._strategy = strategy
        self._history = history
        self._status = status
        self._draw = draw
        self._clock = clock
        self.show()

    def show(self) -> None:
        """Shows the strategy and the failures so far in the driver's status."""
        self._status.restarts(self._strategy(), self._history)

    def decide(self, outcome: RunOutcome) -> RestartAfter | GiveUp | None:
        """Counts a failure and decides by the strategy.

        Returns None if this process cannot restart the run.
        """
        error, strategy = outcome.error, self._strategy()
        if strategy is None or outcome.state is not DriverState.FAILED or error is None:
            return None
        if error.code in FATAL_CODES or isinstance(error, SparkLostError):
            return None
        self._history = with_failure(self._history, self._clock())
        self._status.restarts(strategy, self._history, outcome.failure)
        return next_restart(strategy, self._history, self._draw())

    def wait_to_restart(self, outcome_box: RunOutcomeBox) -> bool:
        """Decides about the run's outcome, and waits for the restart.

        Returns:
            Whether the job shall start again. If so, the box is open again; otherwise it has the final outcome.
        """
        outcome = outcome_box.outcome
        if outcome is None:
            return False
        match self.decide(outcome):
            case None:
                return False
            case GiveUp(reason):
                logger.error("the job does not restart: %s", reason)
                if outcome_box.reopen() is None:
                    outcome_box.give(replace(outcome, given_up=reason))
                return False
            case RestartAfter(delay_ms):
                if outcome.error is not None:
                    log_failure(f"the run has failed; it restarts in {delay_ms} ms", outcome.error)
                self._status.enter(DriverState.RESTORING)
                return outcome_box.reopen() is None and outcome_box.wait(delay_ms / 1000) is None


def is_session_good(spark: SparkSession) -> bool:
    """Returns whether Spark still runs jobs."""
    try:
        return spark.range(1).count() == 1
    except Exception:  # noqa: BLE001 - any exception means that it does not
        return False
