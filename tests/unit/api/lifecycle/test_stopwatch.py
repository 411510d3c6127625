from __future__ import annotations

from keyscale.api.lifecycle.stopwatch import Stopwatch


def test_a_stopwatch_starts_again_with_each_change() -> None:
    now = [100.0]
    watch = Stopwatch(lambda: now[0])
    assert watch.elapsed_ms("driver", 1) == 0
    now[0] += 5
    assert watch.elapsed_ms("driver", 1) == 5000
    assert watch.elapsed_ms("driver", 2) == 0
    now[0] += 1
    assert watch.elapsed_ms("driver", 2) == 1000
