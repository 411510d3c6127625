"""Idle state retention: kept at least min, at most max, with few moves of the timer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.errors import DescriptorError
from state.idle_retention import IdleStateRetention


@given(st.integers(1, 50), st.integers(0, 50), st.lists(st.integers(0, 60), min_size=1, max_size=30))
def test_the_timer_fires_between_min_and_max_after_the_last_record(min_ms, more_ms, pauses_ms):
    retention = IdleStateRetention(min_ms, min_ms + more_ms)
    now, timer, last_move = 0, None, None
    for pause in pauses_ms:
        now += pause
        if timer is not None and now >= timer:
            timer = None
        moved = retention.timer_ms(timer, now)
        if timer is not None and moved != timer:
            assert now - last_move > more_ms
        if moved != timer:
            last_move = now
        timer = moved
        assert now + retention.min_ms <= timer <= now + retention.max_ms


@pytest.mark.parametrize(("min_ms", "max_ms"), [(0, 5), (6, 5), (-1, 5)])
def test_bounds_that_cannot_be_are_refused(min_ms, max_ms):
    with pytest.raises(DescriptorError):
        IdleStateRetention(min_ms, max_ms)
