"""When a job stops processing for a change, and when it has caught up after it."""

from __future__ import annotations

from typing import Any

import pytest

from keyscale.api.lifecycle.downtime_breakdown import (
    note_progress,
    prepared_ms,
    stopped_at_ms,
    timed_steps,
    times_of,
    usual_waiting,
)
from keyscale.db.models import Attempt, Operation
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.vocabulary import RescaleMode, RescalePhase

PHASES = [{"phase": "REQUESTED", "started_at_ms": 60_000}, {"phase": "SAVEPOINT", "started_at_ms": 100_000}]


@pytest.mark.parametrize(
    ("last_commit_at_ms", "waits_for_input", "expected"),
    [
        pytest.param(99_000, False, 99_000, id="busy"),
        pytest.param(101_500, False, 101_500, id="a last batch before the savepoint"),
        pytest.param(92_000, True, 100_000, id="without input for a while"),
        pytest.param(101_500, True, 101_500, id="without input after a last batch"),
        pytest.param(40_000, False, 100_000, id="without a batch for long"),
        pytest.param(None, False, 100_000, id="without any batch"),
    ],
)
def test_a_job_stops_processing_at_its_last_batch_or_when_it_is_told_to(
    last_commit_at_ms: int | None, waits_for_input: bool, expected: int
) -> None:
    old = Attempt(last_commit_at_ms=last_commit_at_ms, metrics={"waits_for_input": waits_for_input})
    assert stopped_at_ms(old, PHASES, 105_000) == expected


def test_the_time_of_a_driver_that_is_taken_back_is_its_own_and_not_the_start_of_the_next() -> None:
    begun = {"SAVEPOINT": 1000, "STOP": 1500, "RESTORE": 1700, "VERIFY": 4000, "ROLL_BACK": 9000}
    phases = [{"phase": phase, "started_at_ms": at_ms, "ended_at_ms": None} for phase, at_ms in begun.items()]
    times = {"launched_at_ms": 9100, "attached_at_ms": 12_000, "restored_at_ms": 12_500, "first_commit_at_ms": 13_000}
    change = Operation(phases=phases, times=times, stopped_at_ms=1010)
    assert {step.name: step.ended_at_ms - step.started_at_ms for step in timed_steps(change)} == {
        "SAVEPOINT": 490,
        "STOP": 200,
        "TRIAL": 7300,
        "SUBMIT": 100,
        "SESSION": 2900,
        "RESTORE": 500,
        "FIRST_BATCH": 500,
    }
    completed = Operation(phases=phases[:-1], times=times, stopped_at_ms=1010)
    assert "TRIAL" not in {step.name for step in timed_steps(completed)}


def test_the_parts_of_a_live_rescale_have_other_names_than_its_phases() -> None:
    live = {"switched_at_ms": 3000}
    change = Operation(
        rescale_mode=RescaleMode.LIVE,
        live=live,
        phases=[],
        stopped_at_ms=1300,
        resumed_at_ms=3700,
        caught_up_at_ms=4000,
    )
    steps = {step.name: step.ended_at_ms - step.started_at_ms for step in timed_steps(change)}
    assert steps == {"HANDOVER": 1700, "FIRST_BATCH": 700, "CAUGHT_UP": 300}
    assert not set(steps) & set(RescalePhase)


def steps_of(attempt: Attempt, *reports: tuple[int, dict[str, Any]]) -> list[tuple[int | None, int | None]]:
    """Returns when an attempt had caught up and settled, after each report at a time."""
    seen = []
    for at_ms, metrics in reports:
        note_progress(attempt, DriverMetrics(batches=1, **metrics), at_ms)
        seen.append((attempt.caught_up_at_ms, attempt.settled_at_ms))
    return seen


def test_a_job_has_settled_a_minute_after_it_had_as_few_records_left_as_before() -> None:
    attempt = Attempt(restored_at_ms=1, first_commit_at_ms=1000, lag_before=5)
    left = [(99_000, 9), (100_000, 5), (159_999, 9), (160_000, 9)]
    seen = steps_of(attempt, *((at_ms, {"pending_records": records}) for at_ms, records in left))
    assert seen == [(None, None), (100_000, None), (100_000, None), (100_000, 160_000)]


def test_a_job_whose_sources_do_not_say_what_is_left_has_settled_a_minute_after_its_first_batch() -> None:
    attempt = Attempt(restored_at_ms=1, first_commit_at_ms=1000)
    assert steps_of(attempt, (60_999, {}), (61_000, {})) == [(None, None), (None, 61_000)]
    assert not note_progress(attempt, DriverMetrics(batches=1), 99_000), "it is noted once"
    assert steps_of(attempt, (99_000, {"waits_for_input": True})) == [(99_000, 61_000)]
    assert steps_of(Attempt(restored_at_ms=1), (99_000, {})) == [(None, None)], "it has run no batch"


def test_a_job_that_no_savepoint_stops_is_stopped_by_its_end() -> None:
    assert stopped_at_ms(Attempt(last_commit_at_ms=None, metrics=None), PHASES[:1], 105_000) == 105_000


def test_what_arrives_while_a_batch_runs_is_no_backlog_of_a_change() -> None:
    assert usual_waiting({"lag_records": 100, "input_rate": 220.0, "batch_duration_ms": 5000.0}) == 1200
    assert usual_waiting({"lag_records": 5}) == 5
    assert usual_waiting({"lag_records": None, "input_rate": 220.0, "batch_duration_ms": 5000.0}) is None
    assert usual_waiting({}) is None


LIVE = RescaleMode.LIVE


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({"rescale_mode": LIVE, "live": {"began_at_ms": 1000, "prepared_at_ms": 1400}}, 400, id="live"),
        pytest.param({"rescale_mode": LIVE, "live": {"began_at_ms": 1400, "prepared_at_ms": 1000}}, 0, id="clock back"),
        pytest.param({"rescale_mode": LIVE, "live": {"began_at_ms": 1000}}, None, id="live, not ready"),
        pytest.param({"rescale_mode": LIVE, "live": {"prepared_at_ms": 1000}}, None, id="live, not begun"),
        pytest.param({"rescale_mode": LIVE, "times": {"launched_at_ms": 1, "attached_at_ms": 2}}, None, id="live only"),
    ],
)
def test_a_live_rescale_prepares_until_its_subtasks_are_ready(facts: dict[str, Any], expected: int | None) -> None:
    assert prepared_ms(Operation(stopped_at_ms=5000, **facts)) == expected


def test_a_change_keeps_every_time_of_its_driver() -> None:
    driver = Attempt(launched_at_ms=1, attached_at_ms=2, restored_at_ms=3, first_commit_at_ms=None, settled_at_ms=5)
    assert times_of(driver) == {
        "launched_at_ms": 1,
        "attached_at_ms": 2,
        "restored_at_ms": 3,
        "first_commit_at_ms": None,
    }
    assert times_of(None) is None
