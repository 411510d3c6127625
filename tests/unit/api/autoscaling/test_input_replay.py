"""Past input is replayed at another parallelism, and the model at what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.api.autoscaling.input_replay import Arrival, arrivals_of, replay
from keyscale.db.repositories.scaling import Load, Run

STEP_MS = 10_000


def loads(arrived: list[int], processed: list[int]) -> list[Load]:
    """The loads of a job that reads as many records in each step; all others wait."""
    read, waiting, found = 0, 0, [Load(0, 0, 0)]
    for step, (came, could) in enumerate(zip(arrived, processed, strict=True), 1):
        done = min(waiting + came, could)
        read, waiting = read + done, waiting + came - done
        found.append(Load(step * STEP_MS, read, waiting))
    return found


def hundred_each(parallelism: int) -> float:
    """Ten records per second and subtask: a hundred in a step."""
    return 10.0 * parallelism


def test_more_subtasks_would_have_left_a_smaller_backlog() -> None:
    past = loads([400, 400, 100, 100, 100], [200] * 5)
    found = replay(past, [Run(0, None, 2)], hundred_each, 4)
    assert found is not None
    assert found.measured == found.as_run == [200, 400, 300, 200, 100]
    assert found.replayed == [0, 0, 0, 0, 0]
    assert (found.capacity, found.error, found.rate) == (40.0, 0.0, 22.0)
    assert found.peak_ms(found.measured) == pytest.approx(1000 * 400 / 22)
    assert found.at_ms == [STEP_MS * step for step in range(1, 6)]
    fewer = replay(past, [Run(0, None, 2)], hundred_each, 1)
    assert fewer is not None
    assert fewer.replayed == [300, 600, 600, 600, 600]


def test_the_error_is_the_share_of_the_measured_peak_that_the_model_misses() -> None:
    past = loads([400, 400, 100], [100, 100, 100])  # the job was half as fast as its last batches say
    found = replay(past, [Run(0, None, 2)], hundred_each, 2)
    assert found is not None
    assert (max(found.measured), max(found.as_run)) == (600, 400)
    assert found.error == pytest.approx(1 / 3)


def test_nothing_is_processed_while_no_driver_runs_and_each_run_has_its_parallelism() -> None:
    past = loads([100] * 6, [100, 0, 0, 100, 300, 100])
    runs = [Run(0, STEP_MS, 1), Run(3 * STEP_MS + 1, None, 3)]
    found = replay(past, runs, hundred_each, 2)
    assert found is not None
    assert found.as_run == [0, 100, 200, 0, 0, 0], "one subtask, none, and then three"
    assert found.replayed == [0, 100, 200, 100, 0, 0]


def test_moments_at_which_the_sources_did_not_count_are_left_out() -> None:
    past = [Load(0, 0, 0), Load(10_000, 50, None), Load(20_000, 100, 300), Load(30_000, 200, 250)]
    assert arrivals_of(past) == [Arrival(20_000, 20.0, 400.0, 300), Arrival(30_000, 10.0, 50.0, 250)]
    assert replay([load._replace(lag_records=None) for load in past], [], hundred_each, 2) is None
    assert replay([], [], hundred_each, 2) is None


def test_a_time_without_input_has_no_lag() -> None:
    found = replay(loads([0, 0], [5, 5]), [Run(0, None, 1)], hundred_each, 2)
    assert found is not None
    assert (found.peak_ms(found.measured), found.error) == (None, None)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 8), st.integers(1, 8))
def test_more_subtasks_never_leave_more_waiting(arrived: list[int], fewer: int, more: int) -> None:
    past = loads(arrived, [100 * fewer] * len(arrived))
    small, large = (replay(past, [Run(0, None, fewer)], hundred_each, each) for each in sorted((fewer, more)))
    assert small is not None
    assert large is not None
    assert all(few >= many for few, many in zip(small.replayed, large.replayed, strict=True))
    assert small.as_run == pytest.approx(small.measured), "a job without noise is as the model says"
