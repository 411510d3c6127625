"""Whether and when a failed job is started again: Flink's restart strategies, as decisions without effects.

Shared by the driver, which starts a job again in its own process where Spark is still good, and by the control plane, which
replaces drivers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from jobs.wire import (
    FAILURE_TIMES_MAX,
    ExponentialDelayRestart,
    FailureHistory,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.wire import RestartStrategy

FATAL_CODES = frozenset(
    {
        "DRIVER_ENVIRONMENT_INVALID",
        "JOB_ARTIFACT_UNSUPPORTED",
        "JOB_COLUMN_UNKNOWN",
        "JOB_INPUT_NOT_STREAMING",
        "JOB_KEY_TYPE_UNSUPPORTED",
        "JOB_NOT_DECLARED",
        "JOB_NO_ENVIRONMENT",
        "JOB_NO_SINK",
        "JOB_RESTORE_REFUSED",
        "JOB_SCHEMA_INVALID",
        "JOB_SCRIPT_FAILED",
        "JOB_SPARK_STATE_UNSUPPORTED",
        "JOB_TOPOLOGY_INVALID",
        "JOB_UID_DUPLICATE",
        "JOB_UID_INVALID",
        "JOB_UID_MISSING",
        "SINK_TARGET_OCCUPIED",
    }
)
"""What fails the same way every time: the script, its graph, its settings, its state's form. No strategy tries it again."""


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Start the job again after this time."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job has failed for good; `reason` says by which rule, to be shown."""

    reason: str


def with_failure(history: FailureHistory, at_ms: int) -> FailureHistory:
    """The history after one more failure. A clock that was set back does not make it older than the one before."""
    at_ms = max([at_ms, *history.times_ms[-1:]])
    return FailureHistory(count=history.count + 1, times_ms=[*history.times_ms, at_ms][-FAILURE_TIMES_MAX:])


def next_restart(strategy: RestartStrategy, history: FailureHistory, jitter: float) -> RestartAfter | GiveUp:
    """What follows from the last failure of a history.

    Args:
        strategy: The job's.
        history: All failures since its user started the job, the one at hand the last.
        jitter: Between -1 and 1, drawn by the caller: which way, and how far, an exponential delay strays.
    """
    match strategy:
        case NoRestart():
            return GiveUp("the job's restart strategy is none")
        case FixedDelayRestart():
            if history.count > strategy.attempts:
                return GiveUp(f"failure {history.count}; {strategy.attempts} restarts are allowed")
            return RestartAfter(strategy.delay_ms)
        case FailureRateRestart():
            return _by_failure_rate(strategy, history.times_ms)
        case ExponentialDelayRestart():
            return _by_exponential_delay(strategy, history.times_ms, jitter)
    assert_never(strategy)


def delay_ms_max(strategy: RestartStrategy) -> int:
    """The longest time that the strategy ever lets pass before a restart."""
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
        if at_ms - before_ms >= backoff_ms + strategy.reset_backoff_threshold_ms:  # it ran for so long in between
            backoff_ms, failures = float(strategy.initial_backoff_ms), 1
        else:
            backoff_ms = min(backoff_ms * strategy.backoff_multiplier, strategy.max_backoff_ms)
            failures += 1
    allowed = strategy.attempts_before_reset_backoff
    if allowed is not None and failures > allowed:
        return GiveUp(f"failure {failures} since the job last ran well; {allowed} restarts are allowed")
    strayed_ms = round(backoff_ms * (1 + strategy.jitter_factor * jitter))
    return RestartAfter(min(max(0, strayed_ms), strategy.max_backoff_ms))
