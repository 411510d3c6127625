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


def test_time_without_a_processor_does_not_count_as_work() -> None:
    now, crowding = [100.0], [0.5]
    watch = Stopwatch(lambda: now[0], lambda: crowding[0])
    assert watch.worked_ms("driver", 1) == 0
    now[0] += 10
    assert watch.worked_ms("driver", 1) == 10_000, "an idle host"
    now[0], crowding[0] = now[0] + 10, 5.0
    assert watch.worked_ms("driver", 1) == 12_000, "five processes for each processor"
    assert watch.worked_ms("driver", 2) == 0, "it was launched again"
