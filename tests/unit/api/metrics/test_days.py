"""A day's counts are the growth of the job's counters since the last day on which they were known."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from keyscale.api.metrics import days as service
from keyscale.api.metrics.days import days_of
from keyscale.db.models import Job, SeriesPoint
from keyscale.db.repositories.series import DAYS

if TYPE_CHECKING:
    import pytest


def point(day: int, **values: Any) -> SeriesPoint:
    return SeriesPoint(at_ms=day * DAYS.step_ms, **values)


def test_a_day_without_a_report_leaves_its_records_to_the_next_known_day() -> None:
    job = Job(created_at_ms=3 * DAYS.step_ms + 7)
    points = [
        point(3, input_records=10, output_records=1),
        point(4, checkpoints_failed=1),  # a checkpoint failed with its attempt, and nothing was sampled
        point(5, input_records=25),
        point(6, input_records=25, output_records=4),
    ]
    days = days_of(job, points)
    assert [day.input_records for day in days] == [10, None, 15, 0]
    assert [day.output_records for day in days] == [1, None, None, 3]
    assert [day.checkpoints_failed for day in days] == [0, 1, 0, 0]


def test_without_the_first_day_the_records_of_the_oldest_known_day_are_unknown() -> None:
    days = days_of(Job(created_at_ms=0), [point(3, input_records=10), point(4, input_records=12)])
    assert [day.input_records for day in days] == [None, 2]


def test_durations_of_checkpoints_are_averaged_over_the_completed_ones() -> None:
    values = {"checkpoint_duration_sum_ms": 70, "checkpoint_duration_min_ms": 10, "checkpoint_duration_ms": 40}
    [day] = days_of(Job(created_at_ms=0), [point(3, checkpoints_completed=3, **values)])
    assert (day.checkpoint_duration_min_ms, day.checkpoint_duration_avg_ms, day.checkpoint_duration_max_ms) == (
        10,
        23,
        40,
    )
    [none] = days_of(Job(created_at_ms=0), [point(3, checkpoints_completed=0, checkpoint_duration_sum_ms=0)])
    assert none.checkpoint_duration_avg_ms is None


def test_the_oldest_shown_day_of_a_cut_list_keeps_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [point(3 + day, input_records=10 * (day + 1), output_records=2 * (day + 1)) for day in range(3)]
    monkeypatch.setattr(service, "require_job", lambda *_: Job(id="job", created_at_ms=3 * DAYS.step_ms))
    monkeypatch.setattr(service.series, "read", lambda *_: points)
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    days = service.list_of(context, "flights", 2).days
    assert [(each.day.day, each.input_records, each.output_records) for each in days] == [(6, 10, 2), (5, 10, 2)]


def test_the_days_of_a_job_are_read_from_its_first_day_until_now(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(service, "now_ms", lambda: 70)
    monkeypatch.setattr(service, "require_job", lambda _, name: {"flights": Job(id="job", created_at_ms=0)}[name])
    monkeypatch.setattr(service.series, "read", lambda _, *of: asked.append(of) or [])
    context: Any = SimpleNamespace(reads=lambda: nullcontext(None))
    assert service.list_of(context, "flights", 2).days == []
    assert asked == [("job", DAYS, 0, 70)]
