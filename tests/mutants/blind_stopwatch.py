"""The negative control of test_mutants.py: a test that goes through the code and sees half of what it does."""

from __future__ import annotations

from keyscale.api.lifecycle.stopwatch import Stopwatch


def test_a_stopwatch_starts_at_zero() -> None:
    watch = Stopwatch(lambda: 100.0)
    assert watch.elapsed_ms("driver", 1) == 0
    watch.elapsed_ms("driver", 1)
