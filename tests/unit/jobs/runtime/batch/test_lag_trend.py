"""The lag grows by the difference of its counts over the last minute."""

from __future__ import annotations

from keyscale.jobs.runtime.batch.lag_trend import LagTrend


def test_the_growth_is_unknown_until_ten_seconds_have_passed() -> None:
    trend = LagTrend()
    assert trend.growth() is None
    trend.saw(0.0, 100)
    trend.saw(9.0, 900)
    assert trend.growth() is None
    trend.saw(10.0, 1100)
    assert trend.growth() == 100


def test_counts_of_more_than_a_minute_ago_are_forgotten() -> None:
    trend = LagTrend()
    for at_s in range(200):
        trend.saw(at_s, 1000 * at_s if at_s < 100 else 100_000 - 50 * (at_s - 100))
    assert trend.growth() == -50


def test_many_counts_within_a_second_are_one() -> None:
    trend = LagTrend()
    for count in range(8_000):
        trend.saw(count / 64, count)
    assert len(trend._counts) < 65
    assert trend.growth() == 64


def test_many_batches_a_second_still_show_the_growth_of_the_last_minute_alone() -> None:
    trend = LagTrend()
    for count in range(8 * 200):
        trend.saw(count / 8, 10_000 - count if count < 8 * 100 else 9_200 + 2 * count)
    assert trend.growth() == 16
