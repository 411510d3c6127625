from __future__ import annotations

import pytest

from keyscale.api.access.rates import RateLimit, Rates


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_and_then_the_rate() -> None:
    clock = Clock()
    limit = RateLimit(per_second=2, burst=3, clock=clock)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.5
    assert (limit.take("a"), limit.take("a")) == (0, 0.5)


def test_one_sender_does_not_use_up_the_bucket_of_another() -> None:
    limit = RateLimit(per_second=1, burst=1, clock=Clock())
    assert limit.take("a") == 0
    assert limit.take("a") == 1
    assert limit.take("b") == 0


def test_a_bucket_never_holds_more_than_a_burst() -> None:
    clock = Clock()
    limit = RateLimit(per_second=10, burst=2, clock=clock)
    limit.take("a")
    clock.now += 3600
    assert [limit.take("a") for _ in range(3)] == [0, 0, 0.1]


def test_a_refused_request_takes_nothing_so_that_waiting_as_told_is_enough() -> None:
    clock = Clock()
    limit = RateLimit(per_second=1, burst=1, clock=clock)
    limit.take("a")
    assert [limit.take("a") for _ in range(5)] == [1] * 5
    assert limit.wait_s("a") == 1
    clock.now += 1
    assert limit.wait_s("a") == 0
    assert limit.take("a") == 0


def test_without_a_rate_there_is_no_limit() -> None:
    limit = RateLimit(per_second=0, burst=0, clock=Clock())
    assert {limit.take("a") for _ in range(1000)} == {0}
    assert limit.wait_s("a") == 0


@pytest.mark.parametrize("senders", [3, 1000])
def test_memory_is_bounded_however_many_senders_there_are(senders: int) -> None:
    limit = RateLimit(per_second=1, burst=1, clock=Clock(), senders_max=10)
    for number in range(senders):
        limit.take(f"{number}")
    assert len(limit._buckets) == min(senders, 10)


def test_the_sender_that_was_silent_for_longest_is_forgotten_first() -> None:
    limit = RateLimit(per_second=1, burst=1, clock=Clock(), senders_max=2)
    for sender in ("a", "b", "c"):
        limit.take(sender)
    assert [limit.take(sender) for sender in ("b", "c", "a")] == [1, 1, 0]


def test_each_limit_of_a_control_plane_has_its_own_rate_and_burst() -> None:
    rates = Rates(per_user=7, per_address=11, failures_per_minute=120)
    limits = (rates.per_user, rates.per_address, rates.failures, rates.refusals, rates.reports_ms)
    found = [(limit._per_second, limit._burst) for limit in limits]
    assert found == [(7, 35), (11, 55), (2, 120), (5, 500), (200, 4000)]


def test_what_cost_more_than_a_bucket_holds_is_a_debt_of_its_sender_alone() -> None:
    clock = Clock()
    limit = RateLimit(per_second=100, burst=300, clock=clock)
    assert limit.wait_s("a") == 0
    limit.charge("a", 1100)
    assert limit.wait_s("a") == pytest.approx(8.01)
    assert limit.wait_s("b") == 0
    clock.now += 8.02
    assert limit.wait_s("a") == 0
