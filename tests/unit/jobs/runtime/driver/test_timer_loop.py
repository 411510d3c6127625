"""While input is idle, due timers are looked for often enough to fire within a second."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from keyscale.jobs.runtime.driver.timer_loop import IDLE_SECONDS, TimerLoop
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """In place of the batch loop: notes when it is asked to fire timers, and fails at the n-th time."""

    def __init__(self, fails_at: int | None = None, fires_at: int | None = None, idle_at: int = 0) -> None:
        self.asked_at: list[float] = []
        self.idle_seconds: list[float] = []
        self.rehearsed_after: list[int] = []
        self.fails_at_rehearsal = False
        self._fails_at = fails_at
        self._fires_at = fires_at
        self._idle_at = idle_at

    def fire_timers(self, idle_seconds: float) -> bool:
        self.asked_at.append(time.monotonic())
        self.idle_seconds.append(idle_seconds)
        if len(self.asked_at) == self._fails_at:
            raise RuntimeError
        return len(self.asked_at) == self._fires_at

    def rehearse_timers(self, idle_seconds: float) -> bool:
        assert idle_seconds == IDLE_SECONDS
        if len(self.asked_at) < self._idle_at:
            return False
        self.rehearsed_after.append(len(self.asked_at))
        if self.fails_at_rehearsal:
            raise RuntimeError
        return True


def kept(loop: Loop, has_looked_for_input: Callable[[], bool] = lambda: True) -> TimerLoop:
    return TimerLoop(cast("Any", loop), has_looked_for_input)


def test_timers_wait_for_the_first_look_for_input() -> None:
    loop, looks = Loop(), iter([False, False, True])
    asked: list[bool] = []

    def has_looked_for_input() -> bool:
        asked.append(not loop.asked_at)
        return next(looks)

    keeper = kept(loop, has_looked_for_input)
    keeper.start()
    wait_until(lambda: len(loop.asked_at) >= 3, what="three looks for timers")
    keeper.end()
    assert asked == [True, True, True]


def test_idle_time_and_two_looks_take_less_than_a_second() -> None:
    loop = Loop()
    keeper = kept(loop)
    keeper.start()
    wait_until(lambda: len(loop.asked_at) >= 6, 30, what="six looks")
    keeper.end()
    looks = median(after - before for before, after in pairwise(loop.asked_at))
    assert IDLE_SECONDS + 2 * looks < 1
    assert set(loop.idle_seconds) == {IDLE_SECONDS}


def test_it_stops_looking_once_it_has_ended_or_a_batch_of_timers_has_failed() -> None:
    for loop in (Loop(), Loop(fails_at=2)):
        keeper = kept(loop)
        keeper.start()
        wait_until(lambda loop=loop: len(loop.asked_at) >= 2, 30, what="two looks")  # type: ignore[misc]  # a lambda's default
        keeper.end()
        wait_until(lambda keeper=keeper: not keeper._thread.is_alive(), 30, what="its end")  # type: ignore[misc]
        assert len(loop.asked_at) <= 3


def test_it_rehearses_while_the_loop_is_idle_until_timers_fire_or_it_has_done_so_three_times() -> None:
    for loop, rehearsed_after in ((Loop(idle_at=2), [2, 3, 4]), (Loop(fires_at=3), [1, 2])):
        keeper = kept(loop)
        keeper.start()
        wait_until(lambda loop=loop: len(loop.asked_at) >= 6, 30, what="six looks")  # type: ignore[misc]  # a lambda's default
        keeper.end()
        assert loop.rehearsed_after == rehearsed_after


def test_it_looks_for_timers_after_a_failed_rehearsal() -> None:
    loop = Loop()
    loop.fails_at_rehearsal = True
    keeper = kept(loop)
    keeper.start()
    wait_until(lambda: len(loop.asked_at) >= 5, 30, what="five looks")
    keeper.end()
    assert loop.rehearsed_after == [1, 2, 3]
