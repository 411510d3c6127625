"""The distributions of checkpoint statistics."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.api.services.checkpoints import quantile, spread, summarize


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0, 1))
def test_a_quantile_is_between_the_extremes_and_grows_with_its_fraction(values: list[int], fraction: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, fraction) <= ordered[-1]
    assert quantile(ordered, fraction) <= quantile(ordered, min(1.0, fraction + 0.1))


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_the_median_is_the_median(values: list[int]) -> None:
    assert summarize(values).p50 == pytest.approx(statistics.median(values))


def test_without_values_every_result_is_zero() -> None:
    assert set(summarize([]).model_dump().values()) == {0}
    assert spread([]).model_dump() == {"min": 0, "max": 0, "avg": 0}
