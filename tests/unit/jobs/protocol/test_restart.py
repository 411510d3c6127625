"""A failure is counted in order, and each strategy decides by its own limits."""

from __future__ import annotations

import pytest

from keyscale.jobs.protocol.messages import FailureHistory
from keyscale.jobs.protocol.restart import GiveUp, RestartAfter, delay_ms_max, next_restart, with_failure
from keyscale.jobs.protocol.specification import (
    FAILURE_TIMES_MAX,
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)

GROWING = ExponentialDelayRestart(
    initial_backoff_ms=100,
    max_backoff_ms=300,
    backoff_multiplier=2,
    reset_backoff_threshold_ms=1000,
    jitter_factor=0.1,
    attempts_before_reset_backoff=3,
)
RARE = FailureRateRestart(max_failures_per_interval=2, failure_rate_interval_ms=100, delay_ms=8)


def test_a_failure_is_never_earlier_than_the_last_one_and_only_the_latest_times_are_kept() -> None:
    history = FailureHistory()
    for at_ms in (10, 90, 50, 95):
        history = with_failure(history, at_ms)
    assert history == FailureHistory(count=4, times_ms=[10, 90, 90, 95])
    for at_ms in range(FAILURE_TIMES_MAX):
        history = with_failure(history, 1000 + at_ms)
    assert history.count == FAILURE_TIMES_MAX + 4
    assert history.times_ms == [1000 + at_ms for at_ms in range(FAILURE_TIMES_MAX)]


@pytest.mark.parametrize(
    ("strategy", "times_ms", "expected"),
    [
        (NoRestart(), [1], "the job's restart strategy is none"),
        (FixedDelayRestart(attempts=2, delay_ms=7), [1, 2], 7),
        (FixedDelayRestart(attempts=2, delay_ms=7), [1, 2, 3], "failure 3; the limit is 2 restarts"),
        (RARE, [99, 150, 200], 8),
        (RARE, [0, 99, 200], 8),
        (RARE, [100, 150, 200], "3 failures within 100 ms; 2 are allowed"),
        (GROWING, [0], 110),
        (GROWING, [0, 500], 220),
        (GROWING, [0, 500, 1000], 300),
        (GROWING, [0, 1, 2, 3], "failure 4 since the job last ran well; the limit is 3 restarts"),
        (GROWING, [0, 1099], 220),
        (GROWING, [0, 1100], 110),
        (GROWING, [0, 1, 2, 1302, 1303], 220),
        (GROWING, [0, 1, 2, 1301, 1302], "failure 5 since the job last ran well; the limit is 3 restarts"),
    ],
)
def test_a_strategy_decides_by_its_own_limits(
    strategy: RestartStrategy, times_ms: list[int], expected: int | str
) -> None:
    history = FailureHistory(count=len(times_ms), times_ms=times_ms)
    decided = next_restart(strategy, history, 1.0)
    assert decided == (GiveUp(expected) if isinstance(expected, str) else RestartAfter(expected))


def test_the_longest_delay_is_that_of_the_strategy() -> None:
    delays = {
        NoRestart: delay_ms_max(NoRestart()),
        FixedDelayRestart: delay_ms_max(FixedDelayRestart(delay_ms=7)),
        FailureRateRestart: delay_ms_max(RARE),
        ExponentialDelayRestart: delay_ms_max(GROWING),
    }
    assert [*delays.values()] == [0, 7, 8, 300]
    assert next_restart(GROWING, FailureHistory(count=1, times_ms=[0]), -1.0) == RestartAfter(90)
