"""Distributions, as Flink's checkpoint summary gives them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.schemas.checkpoint import RangeAnswer, StatisticsAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence


def quantile(ordered: Sequence[int], fraction: float) -> float:
    """Returns the quantile of ordered values, interpolated between neighbours at (n + 1) * fraction, as Flink does."""
    if not ordered:
        return 0.0
    position = fraction * (len(ordered) + 1)
    if position < 1:
        return float(ordered[0])
    if position >= len(ordered):
        return float(ordered[-1])
    below = int(position)
    return ordered[below - 1] + (position - below) * (ordered[below] - ordered[below - 1])


def summarize(values: Sequence[int]) -> StatisticsAnswer:
    """Returns the distribution of values; all zeros if there are none."""
    ordered = sorted(values)
    return StatisticsAnswer(
        min=ordered[0] if ordered else 0,
        max=ordered[-1] if ordered else 0,
        avg=sum(ordered) // len(ordered) if ordered else 0,
        p50=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        p999=quantile(ordered, 0.999),
    )


def spread(values: Sequence[int]) -> RangeAnswer:
    """Returns minimum, maximum and mean; all zeros if there are no values."""
    if not values:
        return RangeAnswer(min=0, max=0, avg=0)
    return RangeAnswer(min=min(values), max=max(values), avg=sum(values) // len(values))
