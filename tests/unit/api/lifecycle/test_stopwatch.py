from __future__ import annotations

import os

import pytest

from keyscale.api.lifecycle.stopwatch import FORGET_S, Stopwatch, processes_per_processor


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
    now[0], crowding[0] = now[0] + 10, 500.0
    assert watch.worked_ms("driver", 1) == 13_000, "at least a tenth counts, or a hung start would not end"
    assert watch.worked_ms("driver", 2) == 0, "it was launched again"


def test_a_thing_without_questions_is_forgotten() -> None:
    now = [100.0]
    watch = Stopwatch(lambda: now[0], lambda: 1.0)
    for thing in ("ended", "running"):
        watch.elapsed_ms(thing, 1)
        watch.worked_ms(thing, 1)
    for _ in range(2):
        now[0] += FORGET_S
        assert watch.elapsed_ms("running", 1) == watch.worked_ms("running", 1) == (now[0] - 100) * 1000
    assert watch._seen.keys() == watch._worked.keys() == {"running"}
    assert watch.elapsed_ms("ended", 1) == watch.worked_ms("ended", 1) == 0


@pytest.mark.parametrize(("processors", "crowding"), [(4, 1.5), (1, 6.0), (None, 6.0)])
def test_the_load_of_the_last_minute_is_shared_by_the_processors(
    monkeypatch: pytest.MonkeyPatch, processors: int | None, crowding: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 2.0, 1.0))
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert processes_per_processor() == crowding
