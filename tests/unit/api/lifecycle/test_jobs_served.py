"""A job that waits for nothing is looked at rarely, until something happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.lifecycle.reconciler import REST_S_MAX, ROUND_S, JobsServed
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Rounds:
    """Rounds of a reconciler over one job, on a clock of the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.may_rest = True
        self.looks: list[float] = []
        self.served = JobsServed(self._pursue, cast("Any", None), lambda: self.now_s)

    def _pursue(self, _job_id: str) -> bool:
        self.looks.append(round(self.now_s, 3))
        return self.may_rest

    def play(self, count: int, *, is_rung: bool = False) -> None:
        for number in range(count):
            self.served.serve(["job"], is_rung=is_rung and number == 0)
            wait_until(lambda: not self.served._busy, what="the end of the look")
            self.now_s += ROUND_S + 1e-6  # sums of fractions are not exact


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    rounds = Rounds()
    yield rounds
    rounds.served.close()


def test_a_job_that_may_rest_is_looked_at_after_longer_and_longer_pauses(rounds: Rounds) -> None:
    rounds.play(21)
    pauses = [round(later - sooner, 3) for sooner, later in zip(rounds.looks, rounds.looks[1:], strict=False)]
    assert pauses[:3] == [ROUND_S, 2 * ROUND_S, 4 * ROUND_S]
    assert set(pauses[3:]) == {REST_S_MAX}


def test_whatever_happens_ends_the_rest(rounds: Rounds) -> None:
    rounds.play(10)
    before, rung_at_s = len(rounds.looks), round(rounds.now_s, 3)
    rounds.play(2, is_rung=True)
    assert rounds.looks[before:] == [rung_at_s, round(rung_at_s + ROUND_S, 3)]


def test_a_job_that_waits_for_something_is_looked_at_in_each_round(rounds: Rounds) -> None:
    rounds.may_rest = False
    rounds.play(10)
    assert len(rounds.looks) == 10
