"""A message is tried again for a day."""

from __future__ import annotations

from keyscale.api.notifications.deliveries import WAITS_MS, wait_ms


def test_the_waits_grow_to_a_day_and_then_end() -> None:
    waits = [wait_ms(attempts, 0.5) for attempts in range(1, len(WAITS_MS) + 2)]
    assert waits == [*WAITS_MS, None]
    assert list(WAITS_MS) == sorted(WAITS_MS)
    assert 85_000_000 < sum(WAITS_MS) < 90_000_000
    assert (wait_ms(1, 0.0), wait_ms(1, 1.0)) == (4500, 5500)
