"""Properties of the restart strategies, as Flink documents them, for any failures."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

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

ANY: TypeAdapter[RestartStrategy] = TypeAdapter(RestartStrategy)
gaps = st.lists(st.integers(0, 200_000), min_size=1, max_size=FAILURE_TIMES_MAX + 20)
jitters = st.floats(-1, 1)


def history_of(gaps_ms: list[int]) -> FailureHistory:
    history = FailureHistory()
    for at_ms in itertools.accumulate(gaps_ms):
        history = with_failure(history, at_ms)
    return history


@given(gaps)
def test_a_history_counts_all_failures_and_keeps_the_latest_times_in_order(gaps_ms: list[int]) -> None:
    history = history_of(gaps_ms)
    assert history.count == len(gaps_ms)
    assert history.times_ms == list(itertools.accumulate(gaps_ms))[-FAILURE_TIMES_MAX:]


def test_a_clock_that_was_set_back_does_not_make_a_failure_older_than_the_previous_one() -> None:
    assert with_failure(history_of([5000]), 1000).times_ms == [5000, 5000]


@given(gaps, jitters)
def test_none_never_restarts(gaps_ms: list[int], jitter: float) -> None:
    assert isinstance(next_restart(NoRestart(), history_of(gaps_ms), jitter), GiveUp)


@given(gaps, st.integers(1, 150), jitters)
def test_a_fixed_delay_limits_the_total_number_of_restarts_however_far_apart(
    gaps_ms: list[int], attempts: int, jitter: float
) -> None:
    strategy = FixedDelayRestart(attempts=attempts, delay_ms=70)
    decided = next_restart(strategy, history_of(gaps_ms), jitter)
    assert decided == RestartAfter(70) if len(gaps_ms) <= attempts else isinstance(decided, GiveUp)


@given(gaps, st.integers(1, 5), st.integers(1, 400_000), jitters)
def test_a_failure_rate_is_exceeded_by_one_more_failure_than_allowed_within_the_interval(
    gaps_ms: list[int], allowed: int, interval_ms: int, jitter: float
) -> None:
    strategy = FailureRateRestart(max_failures_per_interval=allowed, failure_rate_interval_ms=interval_ms, delay_ms=3)
    decided = next_restart(strategy, history_of(gaps_ms), jitter)
    span_ms = sum(gaps_ms[-allowed:])  # from the failure before the last `allowed` ones
    if len(gaps_ms) > allowed and span_ms <= interval_ms:
        assert isinstance(decided, GiveUp)
    else:
        assert decided == RestartAfter(3)


exponential = st.builds(
    ExponentialDelayRestart,
    initial_backoff_ms=st.integers(1, 1000),
    max_backoff_ms=st.integers(1000, 100_000),
    backoff_multiplier=st.floats(1, 10),
    reset_backoff_threshold_ms=st.integers(1, 150_000),
    jitter_factor=st.floats(0, 1),
    attempts_before_reset_backoff=st.none() | st.integers(1, FAILURE_TIMES_MAX - 1),
)


@given(exponential, gaps, jitters)
def test_an_exponential_delay_never_exceeds_the_maximum_and_varies_only_by_its_jitter(
    strategy: ExponentialDelayRestart, gaps_ms: list[int], jitter: float
) -> None:
    history = history_of(gaps_ms)
    decided, steady = (next_restart(strategy, history, chance) for chance in (jitter, 0.0))
    assert isinstance(decided, GiveUp) == isinstance(steady, GiveUp), "jitter decides when to restart, never whether"
    if isinstance(decided, RestartAfter) and isinstance(steady, RestartAfter):
        assert 0 <= decided.delay_ms <= strategy.max_backoff_ms
        assert abs(decided.delay_ms - steady.delay_ms) <= strategy.jitter_factor * steady.delay_ms + 2


@given(exponential, gaps)
def test_after_a_long_time_without_a_failure_an_exponential_delay_is_reset(
    strategy: ExponentialDelayRestart, gaps_ms: list[int]
) -> None:
    long_ms = strategy.reset_backoff_threshold_ms + strategy.max_backoff_ms
    assert next_restart(strategy, history_of([*gaps_ms, long_ms]), 0.0) == RestartAfter(strategy.initial_backoff_ms)


def test_an_exponential_delay_grows_to_the_maximum_and_gives_up_after_its_attempts() -> None:
    strategy = ExponentialDelayRestart(
        initial_backoff_ms=100, max_backoff_ms=500, backoff_multiplier=2, attempts_before_reset_backoff=5
    )
    decided = [next_restart(strategy, history_of([1000] * count), 0.0) for count in range(1, 7)]
    assert decided[:5] == [RestartAfter(delay_ms) for delay_ms in (100, 200, 400, 500, 500)]
    assert isinstance(decided[5], GiveUp)


@given(exponential | st.builds(FixedDelayRestart, delay_ms=st.integers(0, 9)) | st.just(NoRestart()), gaps, jitters)
def test_no_delay_exceeds_the_longest_delay(strategy: RestartStrategy, gaps_ms: list[int], jitter: float) -> None:
    decided = next_restart(strategy, history_of(gaps_ms), jitter)
    assert isinstance(decided, GiveUp) or decided.delay_ms <= delay_ms_max(strategy)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"type": "fixed"}, "fixed-delay"),
        ({"type": "fixed-delay", "attempts": 0}, "greater than or equal to 1"),
        ({"type": "fixed-delay", "delay": 5}, "Extra inputs are not permitted"),
        ({"type": "exponential-delay", "initial_backoff_ms": 90_000}, "max_backoff_ms is less than initial_backoff_ms"),
        ({"type": "exponential-delay", "jitter_factor": 2}, "less than or equal to 1"),
    ],
)
def test_an_inconsistent_strategy_is_refused_with_the_reason(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ANY.validate_python(given)
