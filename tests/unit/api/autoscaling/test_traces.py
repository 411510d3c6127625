"""The autoscaler on played traces: few moves, little lag, and a verdict where a move would not help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.autoscaler import TRACES, Autoscaler, DoubleWhenBusy, PlayedJob, Trace, day, flat, noisy, play, step
from keyscale.vocabulary import ScalingVerdict

BY_NAME = {trace.name.split(",")[0]: trace for trace in TRACES}


def played(trace: Trace) -> tuple[PlayedJob, Autoscaler]:
    rule = Autoscaler()
    return play(trace, rule), rule


def test_a_load_step_needs_two_moves_up_and_two_moves_down() -> None:
    job, _ = played(BY_NAME["load step 20k-110k-20k/s"])
    ups, downs = ([move for move in job.moves if (move[2] > move[1]) is is_up] for is_up in (True, False))
    assert (len(ups) <= 2, len(downs) <= 2, job.parallelism) == (True, True, 3)
    assert max(after for _, _, after in job.moves) <= 13
    assert job.peak_s < 40
    assert job.lag_s < 2


@pytest.mark.parametrize("factor", [1.5, 4, 9])
def test_a_step_of_any_height_needs_at_most_two_moves(factor: float) -> None:
    job, _ = played(Trace("step", step(15_000, 15_000 * factor, end_s=1e9), seconds=1000))
    assert len(job.moves) <= 2
    assert job.lag_s < 2


def test_the_parallelism_follows_a_daily_curve_without_lag() -> None:
    job, _ = played(Trace("day", day(10_000, 150_000, 7200), seconds=7200))
    directions = [after > before for _, before, after in job.moves]
    assert directions == sorted(directions, reverse=True), "up all morning, down all evening"
    assert job.peak_s < 10
    assert job.slot_s / job.trace.seconds < 11


@pytest.mark.parametrize("seed", range(2))
def test_noise_of_15_percent_causes_no_move(seed: int) -> None:
    job, _ = played(Trace("noise", noisy(60_000, 0.15, seed), parallelism=6))
    assert job.moves == []


@pytest.mark.parametrize(
    ("trace", "verdict"),
    [
        ("slow sink", ScalingVerdict.SINK_SLOW),
        ("hot key group", ScalingVerdict.HOT_KEY_GROUP),
        ("slow reading", ScalingVerdict.SOURCE_LIMITED),
        ("batches of at most 2", ScalingVerdict.FIXED_COST),
    ],
)
def test_no_move_where_a_larger_cluster_does_not_help(trace: str, verdict: ScalingVerdict) -> None:
    given = replace(BY_NAME[trace], seconds=600)
    job, rule = played(given)
    assert (job.moves, rule.said) == ([], verdict)
    assert len(play(given, DoubleWhenBusy()).moves) > 2, "a rule that only sees busy subtasks moves on and on"


def test_a_failing_job_is_left_alone() -> None:
    job, rule = played(BY_NAME["failing"])
    assert len(job.moves) <= 1
    assert rule.decisions[-1].verdict is ScalingVerdict.FAILING


def test_the_backlog_of_an_outage_is_processed_by_a_larger_cluster_that_is_given_back() -> None:
    trace = BY_NAME["store away for 5 minutes"]
    job, rule = played(trace)
    assert trace.outage is not None
    (first_at_s, before, most), *later = job.moves
    assert first_at_s >= trace.outage[1], "the outage is no reason for a move while it lasts"
    assert before == trace.parallelism < most
    assert len(later) <= 2
    assert later[-1][2] < most
    assert (rule.said, job.lag_s < 2) == ("OUTAGE, SCALE_UP, SCALE_DOWN", True)


def test_a_move_that_does_not_deliver_is_undone_and_not_repeated() -> None:
    job, rule = played(BY_NAME["two processors"])
    assert [(before, after) for _, before, after in job.moves] == [(2, 6), (6, 2)]
    assert rule.said == "SCALE_UP, UNDO, NOT_DELIVERED"


def test_an_idle_job_has_the_fewest_subtasks() -> None:
    job, _ = played(Trace("idle", flat(10), parallelism=8))
    assert (job.parallelism, len(job.moves)) == (1, 1)
