"""The autoscaler acts only if another parallelism helps, and rests otherwise."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.autoscaler import HOT_GROUP, KEY_GROUPS, shares
from keyscale.api.autoscaling import autoscaler
from keyscale.api.autoscaling.decision import (
    BATCHES_MIN,
    BATCHES_MIN_MS,
    REMEMBERED_MS,
    UTILIZATION_AIM,
    UTILIZATION_DOWN,
    UTILIZATION_MAX,
    Decision,
    candidates,
    decide,
)
from keyscale.api.autoscaling.facts import BatchFacts, Disturbance, Limits, MoveFacts, OperatorFacts, ScalingFacts
from keyscale.vocabulary import ScalingOutcome, ScalingVerdict

NOW_MS, MINUTE_MS = 10_000_000_000, 60_000
V = ScalingVerdict


def facts(parallelism: int, rate: float, *, work_us: float = 50.0, hot: float = 0.0, **changed: Any) -> ScalingFacts:
    """A job in batches of a second, without noise; parts of a batch by their names."""
    spread = shares(hot, parallelism)
    records = changed.pop("records", max(1, int(rate)))
    work_ms = records * work_us / 1000 * max(spread)
    parts = {name: changed.pop(name, 0.0) for name in ("store_ms", "sink_ms")}
    batch = BatchFacts(records, spark_ms=changed.pop("spark_ms", 300.0), work_ms=work_ms, **parts)
    key_groups = {HOT_GROUP: int(records * (hot + (1 - hot) / KEY_GROUPS))}
    known: dict[str, Any] = {
        "limits": Limits(1, 16),
        "batches": (batch,) * 8,
        "operators": (OperatorFacts("counts", work_ms, tuple(int(records * each) for each in spread), key_groups),),
        "rate_peak": rate,
        "observed_ms": 10 * MINUTE_MS,
        "backlog": 0,
    }
    return ScalingFacts(NOW_MS, parallelism, KEY_GROUPS, rate=rate, **{**known, **changed})


def move(before: int, after: int, outcome: ScalingOutcome, *, ago_ms: int = 20 * MINUTE_MS, **ms: float) -> MoveFacts:
    return MoveFacts(NOW_MS - ago_ms, before, after, outcome, **ms)


def test_an_overloaded_job_moves_to_the_smallest_parallelism_with_room_to_spare() -> None:
    decided = decide(facts(2, 40_000))
    assert (decided.verdict, decided.target) == (V.SCALE_UP, 4)
    assert decided.present is not None
    assert decided.expected is not None
    assert decided.present.utilization > UTILIZATION_MAX > UTILIZATION_AIM >= decided.expected.utilization
    assert decided.expected.work_ms == pytest.approx(decided.present.work_ms / 2, rel=0.01)


@pytest.mark.parametrize("most", [2, 3, 4, 6])
@pytest.mark.parametrize("work_us", [10, 25, 50, 100])
@pytest.mark.parametrize("sink_ms", [0, 300])
def test_a_job_lacks_slots_only_where_it_has_all_that_there_are(most: int, work_us: float, sink_ms: float) -> None:
    for rate in (5_000, 10_000, 20_000, 40_000, 80_000):
        for spark_ms in (100, 300, 600, 900):
            for parallelism in range(1, most):
                known = {"work_us": work_us, "sink_ms": sink_ms, "spark_ms": spark_ms}
                decided = decide(facts(parallelism, rate, limits=Limits(1, most), **known))
                assert decided.verdict is not V.NO_SLOTS, (rate, spark_ms, parallelism)


def test_a_job_that_needs_more_than_the_limit_moves_to_the_limit_and_then_lacks_slots() -> None:
    known = {"work_us": 50, "sink_ms": 300, "spark_ms": 600}
    decided = decide(facts(1, 10_000, limits=Limits(1, 2), **known))
    assert (decided.verdict, decided.target) == (V.SCALE_UP, 2)
    assert decide(facts(2, 14_000, limits=Limits(1, 2), **known)).verdict is V.NO_SLOTS


def test_a_job_with_too_many_subtasks_moves_down_by_its_highest_recent_input() -> None:
    assert decide(facts(8, 20_000)).target == 2
    assert decide(facts(8, 20_000, rate_peak=60_000.0)).target == 7
    held = decide(facts(8, 20_000, rate_peak=95_000.0))
    assert (held.verdict, held.message) == (
        V.STEADY,
        "the input takes 15% of the capacity, and took up to 70% in the last ten minutes",
    )
    assert decide(facts(8, 20_000, observed_ms=2 * MINUTE_MS)).verdict is V.STEADY, (
        "the peak of a short time is unknown"
    )
    assert decide(facts(8, 20_000, backlog=200_000)).verdict is V.STEADY


def test_a_small_backlog_asks_for_no_more_subtasks_than_the_input_alone_would_keep() -> None:
    waiting = decide(facts(2, 40_000, backlog=5_000_000))
    assert waiting.target > decide(facts(2, 40_000)).target
    later = facts(waiting.target, 40_000, batch_limit=waiting.batch_limit)
    assert not decide(later).is_move, "the job stays when the backlog is gone"


def test_a_large_backlog_is_worth_a_cluster_that_processes_it_in_the_time_for_catching_up() -> None:
    large = decide(facts(2, 40_000, records=200_000, backlog=20_000_000))
    assert large.expected is not None
    assert large.expected.capacity * UTILIZATION_AIM >= 40_000 + 19_600_000 / 600
    assert "the input and the backlog take" in large.message
    patient = decide(facts(2, 40_000, records=200_000, backlog=20_000_000, catch_up_ms=24 * 60 * MINUTE_MS))
    assert patient.target < large.target
    later = facts(large.target, 40_000, batch_limit=large.batch_limit)
    assert decide(later).verdict is V.SCALE_DOWN, "the job gives the cluster back when the backlog is gone"


def test_a_job_without_input_moves_to_its_smallest_parallelism() -> None:
    idle = replace(facts(4, 0), batches=(), limits=Limits(2, 16))
    decided = decide(idle)
    assert (decided.verdict, decided.target, decided.message) == (V.SCALE_DOWN, 2, "4 to 2: no record arrives")
    assert decide(replace(idle, parallelism=2)).verdict is V.STEADY
    assert decide(replace(idle, observed_ms=MINUTE_MS)).verdict is V.WARMING_UP
    assert decide(replace(idle, backlog=1)).verdict is V.WARMING_UP
    assert decide(replace(idle, rate_peak=0.1)).verdict is V.WARMING_UP
    moved = move(2, 4, ScalingOutcome.DELIVERED, ago_ms=2 * MINUTE_MS)
    assert decide(replace(idle, moves=(moved,))).verdict is V.COOLING_DOWN
    unmeasured = move(2, 4, ScalingOutcome.PENDING)
    assert decide(replace(idle, moves=(unmeasured,))).verdict is V.WARMING_UP
    assert decide(replace(idle, limits=Limits(2, 16, is_excluded=True))).verdict is V.EXCLUDED_HOURS


@pytest.mark.parametrize(
    ("verdict", "costs"),
    [
        (V.SINK_SLOW, {"sink_ms": 3000.0}),
        (V.STORE_SLOW, {"store_ms": 3000.0}),
        (V.SOURCE_LIMITED, {"spark_ms": 5000.0}),
        (V.FIXED_COST, {"records": 1000, "backlog": 9_000_000, "spark_ms": 800.0}),
        (V.HOT_KEY_GROUP, {"hot": 0.7}),
        (V.FUNCTION_SLOW, {"work_us": 10_000.0, "limits": Limits(1, 128)}),
        (V.NO_SLOTS, {"limits": Limits(1, 2)}),
        (V.HOST_OVERLOADED, {"processor_wait": 0.4}),
        (V.BUDGET, {"limits": Limits(1, 16, affordable=2)}),
        (V.EXCLUDED_HOURS, {"limits": Limits(1, 16, is_excluded=True)}),
    ],
)
def test_where_more_subtasks_do_not_help_or_are_not_allowed_the_job_stays_and_the_reason_is_named(
    verdict: ScalingVerdict, costs: dict[str, Any]
) -> None:
    parallelism = 128 if verdict is V.FUNCTION_SLOW else 2
    decided = decide(facts(parallelism, 45_000, **costs))
    assert (decided.verdict, decided.target) == (verdict, parallelism), decided.message
    assert decided.present is not None
    assert decided.present.utilization > UTILIZATION_MAX
    assert (decided.advice is None) == (verdict is V.EXCLUDED_HOURS)
    assert decide(facts(2, 45_000)).verdict is V.SCALE_UP, "the same load without the obstacle"


def test_small_parallelisms_are_all_tried_and_large_ones_in_small_steps() -> None:
    assert list(candidates(3, 9)) == [3, 4, 5, 6, 7, 8, 9]
    tried = list(candidates(1, 4096))
    assert tried[:64] == list(range(1, 65))
    assert len(tried) < 250
    assert all(later <= earlier * 33 / 32 for earlier, later in pairwise(tried[64:]))
    assert list(candidates(4, 3)) == []


def test_a_hot_key_group_is_named_with_its_share() -> None:
    said = decide(facts(2, 45_000, hot=0.7)).message
    assert "key group 37 of operator counts has 70% of the records" in said


def test_the_budget_bounds_a_move() -> None:
    assert decide(facts(2, 90_000, limits=Limits(1, 16, affordable=5))).target == 5


@pytest.mark.parametrize("verdict", [each for each in V if each.is_disturbance])
@pytest.mark.parametrize("rate", [1000, 90_000])
def test_a_disturbance_that_hides_the_jobs_speed_forbids_each_move(verdict: ScalingVerdict, rate: int) -> None:
    decided = decide(facts(4, rate, disturbance=Disturbance(verdict, "why")))
    assert (decided.verdict, decided.target, decided.message) == (verdict, 4, "why")
    assert decide(facts(4, rate)).is_move


def test_a_decision_in_trouble_passes_on_the_limit_of_batches_that_an_earlier_decision_has_seen() -> None:
    disturbed = facts(2, 100, disturbance=Disturbance(V.OUTAGE, "the store does not answer"), batch_limit=7)
    assert autoscaler._columns(disturbed, decide(disturbed))["facts"]["batch_limit"] == 7


def test_a_job_outside_its_limits_moves_into_them_at_once() -> None:
    assert decide(facts(1, 10_000, limits=Limits(2, 8))).target == 2
    assert decide(facts(9, 10_000, limits=Limits(2, 8))).target == 8
    assert decide(facts(9, 10_000, limits=Limits(2, 8, is_excluded=True))).verdict is V.EXCLUDED_HOURS


def test_the_first_batches_after_a_start_decide_nothing() -> None:
    given_ = facts(2, 90_000)
    assert decide(replace(given_, batches=given_.batches[: BATCHES_MIN - 1])).verdict is V.WARMING_UP
    assert decide(replace(given_, batches=given_.batches[:BATCHES_MIN])).is_move
    assert decide(replace(given_, rate=None)).verdict is V.WARMING_UP
    long = BatchFacts(900_000, spark_ms=2000, work_ms=BATCHES_MIN_MS - 2000)
    assert decide(replace(given_, batches=(long,))).is_move, "an overloaded job has few long batches"
    assert decide(replace(given_, batches=(replace(long, spark_ms=1999),))).verdict is V.WARMING_UP


@pytest.mark.parametrize(
    ("before", "after", "rate", "ago_ms"),
    [
        (1, 4, 90_000, MINUTE_MS),
        (8, 4, 90_000, 2 * MINUTE_MS),
        (2, 4, 1000, 5 * MINUTE_MS),
        (8, 4, 1000, 2 * MINUTE_MS),
    ],
    ids=["up after up", "up after down", "down after up", "down after down"],
)
def test_a_move_waits_for_the_cooldown_of_the_last_move(before: int, after: int, rate: int, ago_ms: int) -> None:
    def decided(passed_ms: int) -> Decision:
        return decide(facts(4, rate, moves=(move(before, after, ScalingOutcome.DELIVERED, ago_ms=passed_ms),)))

    assert (decided(ago_ms - 1).verdict, decided(ago_ms).is_move) == (V.COOLING_DOWN, True)


# --- the effect of a move


def test_an_upward_move_has_delivered_that_shortened_the_work_as_promised() -> None:
    present = decide(facts(4, 40_000)).present
    assert present is not None
    promised = {"work_ms_before": 2 * present.work_ms, "work_ms_expected": present.work_ms}
    good = decide(facts(4, 40_000, moves=(move(2, 4, ScalingOutcome.PENDING, **promised),)))
    assert (good.outcome, good.is_move) == (ScalingOutcome.DELIVERED, False)
    too_slow = {name: ms / 2 for name, ms in promised.items()}
    bad = decide(facts(4, 40_000, moves=(move(2, 4, ScalingOutcome.PENDING, **too_slow),)))
    assert (bad.outcome, bad.verdict, bad.target) == (ScalingOutcome.NOT_DELIVERED, V.UNDO, 2)
    assert "changed the work of a record by -0% instead of -50%" in bad.message
    outside = facts(4, 40_000, limits=Limits(3, 16), moves=(move(2, 4, ScalingOutcome.PENDING, **too_slow),))
    assert (decide(outside).outcome, decide(outside).is_move) == (ScalingOutcome.NOT_DELIVERED, False)


def test_a_downward_move_has_delivered_if_the_job_keeps_up() -> None:
    promised = {"work_ms_before": 10.0, "work_ms_expected": 20.0}
    pending = (move(8, 4, ScalingOutcome.PENDING, **promised),)
    assert decide(facts(4, 40_000, moves=pending)).outcome is ScalingOutcome.DELIVERED
    bad = decide(facts(4, 90_000, moves=pending))
    assert (bad.outcome, bad.verdict, bad.target) == (ScalingOutcome.NOT_DELIVERED, V.UNDO, 8)


def test_a_move_is_measured_after_a_minute_and_only_if_the_job_still_has_its_parallelism() -> None:
    recent = (move(2, 4, ScalingOutcome.PENDING, ago_ms=MINUTE_MS - 1, work_ms_before=1.0),)
    assert decide(facts(4, 40_000, moves=recent)).verdict is V.COOLING_DOWN
    measured = (move(2, 4, ScalingOutcome.PENDING, ago_ms=MINUTE_MS, work_ms_before=1.0),)
    assert decide(facts(4, 40_000, moves=measured)).verdict is not V.COOLING_DOWN
    replaced = decide(facts(5, 40_000, moves=(move(2, 4, ScalingOutcome.PENDING),)))
    assert replaced.outcome is ScalingOutcome.REPLACED


def test_a_move_is_neither_measured_nor_undone_in_excluded_hours() -> None:
    pending = (move(2, 4, ScalingOutcome.PENDING, work_ms_before=1.0, work_ms_expected=0.5),)
    assert decide(facts(4, 40_000, moves=pending)).verdict is V.UNDO
    waiting = decide(facts(4, 40_000, moves=pending, limits=Limits(1, 16, is_excluded=True)))
    assert (waiting.verdict, waiting.outcome) == (V.COOLING_DOWN, None)


@pytest.mark.parametrize("outcome", [ScalingOutcome.NOT_DELIVERED, ScalingOutcome.FAILED])
def test_a_move_that_has_not_helped_is_remembered_for_an_hour(outcome: ScalingOutcome) -> None:
    def decided(ago_ms: int, rate: int = 40_000, *, before: int = 2, after: int = 4, at: int = 2) -> ScalingVerdict:
        return decide(facts(at, rate, moves=(move(before, after, outcome, ago_ms=ago_ms),))).verdict

    assert decided(REMEMBERED_MS - 1) is V.NOT_DELIVERED
    assert decided(REMEMBERED_MS) is V.SCALE_UP
    assert decided(REMEMBERED_MS - 1, after=5) is V.SCALE_UP, "a smaller move may help"
    assert decided(REMEMBERED_MS - 1, 1000, before=8, after=1, at=8) is V.STEADY
    assert decided(REMEMBERED_MS, 1000, before=8, after=1, at=8) is V.SCALE_DOWN


# --- rest

RATES = st.integers(100, 300_000)
COSTS = st.fixed_dictionaries(
    {
        "work_us": st.floats(1, 400),
        "hot": st.sampled_from([0.0, 0.05, 0.3, 0.8]),
        "sink_ms": st.floats(0, 4000),
        "store_ms": st.floats(0, 500),
        "spark_ms": st.floats(50, 3000),
        "backlog": st.sampled_from([None, 0, 10_000, 10_000_000]),
    }
)


@given(parallelism=st.integers(1, 64), rate=RATES, least=st.integers(1, 32), more=st.integers(0, 32), costs=COSTS)
def test_no_move_leaves_the_limits(parallelism: int, rate: int, least: int, more: int, costs: dict[str, Any]) -> None:
    limits = Limits(least, least + more)
    decided = decide(facts(parallelism, rate, limits=limits, **costs))
    if decided.is_move:
        assert limits.parallelism_min <= decided.target <= limits.parallelism_max
    assert decided.is_move == (decided.target != parallelism)


@given(parallelism=st.integers(1, 16), rate=RATES, noise=st.floats(0.85, 1.15), work_us=st.floats(1, 400))
def test_a_job_that_has_moved_rests_and_noise_of_15_percent_does_not_move_it(
    parallelism: int, rate: int, noise: float, work_us: float
) -> None:
    decided = decide(facts(parallelism, rate, work_us=work_us))
    peak = max(rate, int(rate * noise))  # the last minutes have seen the rate without noise, too
    for _ in range(2):
        again = decide(facts(decided.target, int(rate * noise), work_us=work_us, rate_peak=peak))
        assert not again.is_move or decided.verdict is V.STEADY, again.message


def test_the_distances_between_the_thresholds_are_wider_than_the_noise() -> None:
    assert UTILIZATION_AIM * 1.15 < UTILIZATION_MAX
    assert UTILIZATION_DOWN < UTILIZATION_AIM * 0.85
