from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.pace import CheckpointPace
from jobs.wire import CheckpointSettings

SETTINGS = CheckpointSettings(interval_ms=10_000, min_pause_ms=3_000, tolerable_failed_checkpoints=2)


def test_the_first_checkpoint_is_due_an_interval_after_the_start() -> None:
    assert CheckpointPace(started_at=100).due_at(SETTINGS) == 110


def test_a_quick_checkpoint_is_followed_an_interval_after_its_start() -> None:
    assert CheckpointPace(started_at=0).triggered(100).completed(101).due_at(SETTINGS) == 110


def test_a_slow_checkpoint_is_followed_no_sooner_than_the_pause_after_its_end() -> None:
    assert CheckpointPace(started_at=0).triggered(100).completed(118).due_at(SETTINGS) == 121


def test_failures_are_tolerated_up_to_the_limit_and_a_success_forgives_them() -> None:
    pace = CheckpointPace(started_at=0).failed(1).failed(2)
    assert not pace.has_failed_too_often(SETTINGS)
    assert pace.failed(3).has_failed_too_often(SETTINGS)
    assert not pace.completed(3).failed(4).has_failed_too_often(SETTINGS)


@given(
    started=st.floats(0, 1e6), lasted=st.floats(0, 1e5), interval=st.integers(100, 10**6), pause=st.integers(0, 10**6)
)
def test_two_checkpoints_never_overlap(started: float, lasted: float, interval: int, pause: int) -> None:
    settings = CheckpointSettings(interval_ms=interval, min_pause_ms=pause)
    ended = started + lasted
    due = CheckpointPace(started_at=0).triggered(started).completed(ended).due_at(settings)
    assert due >= ended
    assert due >= started + interval / 1000
