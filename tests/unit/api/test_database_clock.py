"""A host whose clock differs from the database's follows the database's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api import database_clock
from keyscale.api.database_clock import AGREES_MS, DatabaseClock

if TYPE_CHECKING:
    from collections.abc import Callable

SESSION: Any = None


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[[DatabaseClock, int, int], int]:
    """Lets a clock follow a database; returns the clock's time at 100,000 ms of its host."""

    def follow(clock: DatabaseClock, database_ms: int, round_trip_ms: int) -> int:
        times = iter((50_000, 50_000 + round_trip_ms, 100_000))
        monkeypatch.setattr(database_clock, "now_ms", lambda: next(times))
        monkeypatch.setattr(database_clock, "database_now_ms", lambda _: database_ms)
        clock.follow(SESSION)
        return clock.now_ms()

    return follow


@pytest.mark.parametrize(
    ("database_ms", "round_trip_ms", "now_ms"),
    [
        (50_000, 0, 100_000),
        (50_000 - AGREES_MS + 1, 0, 100_000),
        (50_000 - AGREES_MS, 0, 99_000),
        (50_000 + AGREES_MS, 0, 101_000),
        (53_000, 4000, 100_000),
        (52_000 - 2999, 4000, 100_000),
        (52_000 - 3000, 4000, 97_000),
        (40_000, 200, 89_900),
    ],
)
def test_a_difference_counts_if_it_is_larger_than_the_time_of_the_answer_allows(
    follow: Callable[[DatabaseClock, int, int], int], database_ms: int, round_trip_ms: int, now_ms: int
) -> None:
    assert follow(DatabaseClock(), database_ms, round_trip_ms) == now_ms


def test_a_difference_is_told_when_it_changes_and_ends_with_the_next_measurement(
    follow: Callable[[DatabaseClock, int, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    clock = DatabaseClock()
    measured = [follow(clock, database_ms, 0) for database_ms in (45_000, 44_500, 44_000, 50_100)]
    assert measured == [95_000, 94_500, 94_000, 100_000]
    told = [5000, 0]
    assert caplog.messages == [f"the clock of this host is ahead of the database's by {ms} ms" for ms in told]
