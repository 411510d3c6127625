from __future__ import annotations

import pytest

from keyscale.api.lifecycle.watched_clock import GAP_S_MAX, WatchedClock


def test_a_pause_between_two_looks_counts_as_the_longest_gap() -> None:
    now = [100.0]
    clock = WatchedClock(lambda: now[0])
    counted = []
    for gap_s in (0.0, 1.0, GAP_S_MAX, 90.0, 1.0):
        now[0] += gap_s
        counted.append(clock())
    assert counted == pytest.approx([0, 1, 1 + GAP_S_MAX, 1 + 2 * GAP_S_MAX, 2 + 2 * GAP_S_MAX])
