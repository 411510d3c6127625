"""Flink's restart strategies, as decisions without effects.

A strategy decides whether and when a failed job is restarted. The driver, which restarts a job in its own process if
Spark still works, and the control plane, which replaces drivers, share them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from keyscale.units import counted

from .messages import FailureHistory
from .specification import FAILURE_TIMES_MAX, ExponentialDelayRestart, FailureRateRestart, FixedDelayRestart, NoRestart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .specification import RestartStrategy

FATAL_CODES = frozenset(
    {
        "DRIVER_ENVIRONMENT_INVALID",
        "JOB_ARTIFACT_UNSUPPORTED",
        "JOB_COLUMN_UNKNOWN",
        "JOB_INPUT_NOT_STREAMING",
        "JOB_KEY_TYPE_UNSUPPORTED",
        "JOB_NOT_DECLARED",
        "JOB_NOT_PICKLABLE",
        "JOB_NO_ENVIRONMENT",
        "JOB_NO_SINK",
        "JOB_OPERATOR_STATE_UNAVAILABLE",
        "JOB_OUTPUT_MISMATCH",
        "JOB_OUTPUT_UNKNOWN",
        "JOB_RESTORE_REFUSED",
        "JOB_SCHEMA_INVALID",
        "JOB_SCRIPT_FAILED",
        "JOB_SECRET_NOT_NAMED",
        "JOB_SPARK_STATE_UNSUPPORTED",
        "JOB_TOPOLOGY_INVALID",
        "JOB_UID_DUPLICATE",
        "JOB_UID_INVALID",
        "JOB_UID_MISSING",
        "SINK_FORBIDDEN",
        "SINK_TARGET_OCCUPIED",
        "STATE_CLAIM_REFUSED",
        "STATE_DESCRIPTOR_INVALID",
        "STATE_DISK_FORBIDDEN",
        "STATE_FORMAT_TOO_NEW",
        "STATE_LOCATION_INVALID",
        "STATE_SCHEMA_MISMATCH",
        "STATE_STORE_FORBIDDEN",
        "STATE_TYPE_UNSUPPORTED",
    }
)
"""Codes of errors that a restart cannot fix: in the script, its graph, its declarations, its settings, the columns of
its results, the format of its state or the rights of its user."""

CODE_FAULTS = frozenset(
    {
        "JOB_FUNCTION_FAILED",
        "JOB_PROCESSOR_CALL_REFUSED",
    }
)
"""Codes of errors of a user's functions at run time: a restart helps only if their environment has changed."""

PASSING_FAULTS = frozenset(
    {
        "JOB_ARTIFACT_CORRUPT",
        "JOB_LIBRARIES_MISSING",
        "JOB_REPORTS_INCOMPLETE",
        "JOB_SPARK_FAILED",
        "JOB_TASK_FAILED",
    }
)
"""Codes of errors of Spark and its host, such as a Python worker that failed to connect back: another try may pass."""


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Restart the job after a delay."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not restart the job.

    `reason` names the rule, for users.
    """

    reason: str


def with_failure(history: FailureHistory, at_ms: int) -> FailureHistory:
    """Returns the history with one more failure.

    The failure is never earlier than the last failure, even if the clock was set back.
    """
    at_ms = max([at_ms, *history.times_ms[-1:]])
    return FailureHistory(count=history.count + 1, times_ms=[*history.times_ms, at_ms][-FAILURE_TIMES_MAX:])


def next_restart(strategy: RestartStrategy, history: FailureHistory, jitter: float) -> RestartAfter | GiveUp:
    """Decides about a restart after the last failure of a history.

    Args:
        strategy: The job's strategy.
        history: All failures since the job's user started it, up to the present one.
        jitter: A random number between -1 and 1, for the jitter of an exponential delay.
    """
    match strategy:
        case NoRestart():
            return GiveUp("the job's restart strategy is none")
        case FixedDelayRestart():
            if history.count > strategy.attempts:
                return GiveUp(f"failure {history.count}; the limit is {counted(strategy.attempts, 'restart')}")
            return RestartAfter(strategy.delay_ms)
        case FailureRateRestart():
            return _by_failure_rate(strategy, history.times_ms)
        case ExponentialDelayRestart():
            return _by_exponential_delay(strategy, history.times_ms, jitter)
    assert_never(strategy)


def delay_ms_max(strategy: RestartStrategy) -> int:
    """Returns the longest delay of a strategy."""
    match strategy:
        case NoRestart():
            return 0
        case FixedDelayRestart() | FailureRateRestart():
            return strategy.delay_ms
        case ExponentialDelayRestart():
            return strategy.max_backoff_ms
    assert_never(strategy)


def _by_failure_rate(strategy: FailureRateRestart, times_ms: Sequence[int]) -> RestartAfter | GiveUp:
    since_ms = times_ms[-1] - strategy.failure_rate_interval_ms
    recent = sum(at_ms >= since_ms for at_ms in times_ms)
    if recent > strategy.max_failures_per_interval:
        return GiveUp(
            f"{recent} failures within {strategy.failure_rate_interval_ms} ms; "
            f"{strategy.max_failures_per_interval} are allowed"
        )
    return RestartAfter(strategy.delay_ms)


def _by_exponential_delay(
    strategy: ExponentialDelayRestart, times_ms: Sequence[int], jitter: float
) -> RestartAfter | GiveUp:
    backoff_ms, failures = float(strategy.initial_backoff_ms), 1
    for before_ms, at_ms in itertools.pairwise(times_ms):
        if at_ms - before_ms >= backoff_ms + strategy.reset_backoff_threshold_ms:  # the job ran well in between
            backoff_ms, failures = float(strategy.initial_backoff_ms), 1
        else:
            backoff_ms = min(backoff_ms * strategy.backoff_multiplier, strategy.max_backoff_ms)
            failures += 1
    allowed = strategy.attempts_before_reset_backoff
    if allowed is not None and failures > allowed:
        return GiveUp(f"failure {failures} since the job last ran well; the limit is {counted(allowed, 'restart')}")
    delay_ms = round(backoff_ms * (1 + strategy.jitter_factor * jitter))
    return RestartAfter(min(max(0, delay_ms), strategy.max_backoff_ms))
