"""The points of a series that are read, and how those of one step become one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.api.schemas.series import SeriesName
from keyscale.api.services import series
from keyscale.api.services.series import SAMPLE_MS, choose_step, is_sample_due, merged
from keyscale.db.models import Attempt, SeriesPoint
from keyscale.db.repositories.series import COLUMNS, RINGS
from keyscale.jobs.protocol.messages import DriverState, Heartbeat

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 100 * DAY_MS


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "points", "expected"),
    [
        (NOW_MS - HOUR_MS, NOW_MS, 360, (10_000, 10_000)),
        (NOW_MS - HOUR_MS, NOW_MS, 100, (10_000, 40_000)),
        (NOW_MS - HOUR_MS // 2, NOW_MS, 1000, (10_000, 10_000)),
        (NOW_MS - DAY_MS, NOW_MS, 1440, (60_000, 60_000)),
        (NOW_MS - DAY_MS, NOW_MS, 300, (60_000, 300_000)),
        (NOW_MS - 5 * HOUR_MS, NOW_MS - 4 * HOUR_MS, 360, (60_000, 60_000)),
        (NOW_MS - 30 * DAY_MS, NOW_MS, 3000, (900_000, 900_000)),
        (NOW_MS - 50 * DAY_MS, NOW_MS - 40 * DAY_MS, 3000, (DAY_MS, DAY_MS)),
        (NOW_MS - 90 * DAY_MS, NOW_MS, 30, (DAY_MS, 3 * DAY_MS)),
        (NOW_MS - 3000 * DAY_MS, NOW_MS - 2999 * DAY_MS, 3000, (DAY_MS, DAY_MS)),
        (NOW_MS, NOW_MS, 1, (10_000, 10_000)),
    ],
)
def test_the_finest_steps_that_are_still_kept_are_read(
    from_ms: int, to_ms: int, points: int, expected: tuple[int, int]
) -> None:
    ring, step_ms = choose_step(from_ms, to_ms, points, NOW_MS)
    assert (ring.step_ms, step_ms) == expected
    assert (to_ms - from_ms) // step_ms <= points


def test_a_ring_holds_the_whole_span_that_it_stands_for() -> None:
    spans = (HOUR_MS, DAY_MS, 30 * DAY_MS, 2 * 365 * DAY_MS)
    assert [ring.span_ms >= span for ring, span in zip(RINGS, spans, strict=True)] == [True] * 4
    assert sum(ring.slots for ring in RINGS) < 6000


def point(at_ms: int, **values: Any) -> SeriesPoint:
    return SeriesPoint(**{**dict.fromkeys(COLUMNS), "at_ms": at_ms, "samples": 1, **values})


def test_of_several_points_the_largest_lag_the_latest_size_and_the_mean_of_rates_count() -> None:
    steps = merged(
        [
            point(20_000, lag_records=7, state_size=50, processed_rate=10.0, input_records=5),
            point(30_000, lag_records=3, state_size=40, processed_rate=40.0, input_records=9, samples=2),
            point(40_000),
        ],
        40_000,
    )
    assert steps.keys() == {0, 40_000}
    first = steps[0]
    assert (first["lag_records"], first["state_size"], first["processed_rate"]) == (7, 40, 30.0)
    assert (first["input_records"], first["lag_ms"]) == (9, None)
    assert set(steps[40_000].values()) == {None}


def test_of_several_points_counts_are_added_and_the_shortest_duration_counts() -> None:
    points = [
        point(20_000, checkpoints_completed=2, checkpoint_duration_min_ms=30, restarts=1),
        point(30_000, checkpoints_completed=3, checkpoint_duration_min_ms=20),
    ]
    [step] = merged(points, 40_000).values()
    assert (step["checkpoints_completed"], step["checkpoint_duration_min_ms"], step["restarts"]) == (5, 20, 1)


@pytest.mark.parametrize(
    ("ring_ms", "step_ms"), [(10_000, 10_000), (10_000, 40_000), (60_000, 60_000), (60_000, 300_000)]
)
@given(passed_ms=st.integers(0, 900_000), late_ms=st.integers(0, 9_000))
def test_steady_records_have_one_rate_in_every_step_also_in_one_that_is_not_over(
    ring_ms: int, step_ms: int, passed_ms: int, late_ms: int
) -> None:
    now = HOUR_MS + passed_ms
    rows: dict[int, SeriesPoint] = {}
    for at_ms in range(0, now + 1, SAMPLE_MS):
        row_ms = at_ms - at_ms % ring_ms
        rows[row_ms] = point(row_ms, step_ms=ring_ms, input_records=7 * (at_ms + late_ms) // 1000)
    steps = merged(list(rows.values()), step_ms)
    counted = series.counted_at(list(rows.values()), step_ms, now)
    times = list(range(0, now + 1, step_ms))
    first, *rates = series._values(steps, times, step_ms, counted, SeriesName.INPUT_RATE)
    assert first is None, "nothing is known of before"
    assert rates == pytest.approx([7.0] * len(rates))


@pytest.mark.parametrize(
    ("metrics", "last_ms", "at_ms", "state", "is_due"),
    [
        (None, None, 20_000, "RUNNING", True),
        ({}, None, 20_000, "RUNNING", True),
        ({}, 19_999, 20_000, "RUNNING", True),
        ({}, 20_000, 29_999, "RUNNING", False),
        ({}, 20_000, 29_999, "RESTORING", True),
        (None, 20_000, 20_001, "RUNNING", True),
    ],
)
def test_the_first_report_of_each_step_and_of_each_state_is_a_sample(
    metrics: dict[str, Any] | None, last_ms: int | None, at_ms: int, state: str, is_due: bool
) -> None:
    attempt = Attempt(driver_state="RUNNING", heartbeat_at_ms=last_ms, metrics=metrics)
    assert is_sample_due(attempt, Heartbeat(state=DriverState(state)), at_ms) is is_due
