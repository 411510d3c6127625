"""Which spares a host starts and ends. Facts in, decision out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyscale.api.launching.driver_start import StartPattern
from keyscale.api.launching.spare_choice import (
    BESIDE_HEAP_BYTES,
    FAILURE_PAUSE_S,
    FAILURE_PAUSE_S_MAX,
    WARM_WITHIN_S,
    EndSpare,
    HostFacts,
    SpareFacts,
    StartSpare,
    failure_pause_s,
    likely_starts,
    next_spare_step,
)

PLAIN, LARGE, OWN = (StartPattern((name,), frozenset()) for name in ("plain", "large", "own"))
HEAP_BYTES = 1 << 30
SIZE_BYTES = HEAP_BYTES + BESIDE_HEAP_BYTES
IDLE = HostFacts(wanted=[PLAIN], spares=[], starts=0, heap_bytes=HEAP_BYTES, free_bytes=2 * SIZE_BYTES)
WARM = SpareFacts("a", PLAIN, is_ready=True, age_s=9.0)


def test_an_idle_host_starts_a_spare_and_then_keeps_it() -> None:
    assert next_spare_step(IDLE, 1) == StartSpare(PLAIN)
    assert next_spare_step(replace(IDLE, spares=[WARM]), 1) is None


def test_no_spare_is_started_if_none_is_wanted() -> None:
    assert next_spare_step(IDLE, 0) is None


def test_a_spare_waits_until_no_driver_starts_and_until_the_spare_before_is_warm() -> None:
    assert next_spare_step(replace(IDLE, starts=1), 1) is None
    two = replace(IDLE, wanted=[PLAIN, LARGE], spares=[replace(WARM, is_ready=False)])
    assert next_spare_step(two, 2) is None
    assert next_spare_step(replace(two, spares=[WARM]), 2) == StartSpare(LARGE)


def test_a_spare_leaves_room_for_another_driver_and_goes_when_memory_is_short() -> None:
    assert next_spare_step(replace(IDLE, free_bytes=2 * SIZE_BYTES - 1), 1) is None
    kept = replace(IDLE, spares=[WARM], free_bytes=SIZE_BYTES // 2)
    assert next_spare_step(kept, 1) is None
    assert next_spare_step(replace(kept, free_bytes=kept.free_bytes - 1), 1) == EndSpare(
        "a", "the host is short of memory"
    )


def test_a_spare_that_no_job_is_likely_to_take_makes_room_for_one_that_fits() -> None:
    other = replace(IDLE, wanted=[LARGE, PLAIN], spares=[WARM])
    assert next_spare_step(other, 1) == EndSpare("a", "no job is likely to take it")
    assert next_spare_step(replace(other, spares=[]), 1) == StartSpare(LARGE)
    assert next_spare_step(other, 2) == StartSpare(LARGE)


def test_a_spare_that_does_not_become_warm_is_ended() -> None:
    cold = replace(WARM, is_ready=False, age_s=WARM_WITHIN_S)
    assert next_spare_step(replace(IDLE, spares=[cold]), 1) is None
    slow = replace(cold, age_s=WARM_WITHIN_S + 1)
    assert next_spare_step(replace(IDLE, spares=[slow]), 1) == EndSpare("a", "it does not become warm")


def test_spares_that_end_by_themselves_are_replaced_after_pauses() -> None:
    failed = replace(IDLE, failures=1, failed_s=FAILURE_PAUSE_S - 1)
    assert next_spare_step(failed, 1) is None
    assert next_spare_step(replace(failed, failed_s=FAILURE_PAUSE_S), 1) == StartSpare(PLAIN)
    assert [failure_pause_s(number) for number in (1, 2, 3, 99)] == [60.0, 120.0, 240.0, FAILURE_PAUSE_S_MAX]


@pytest.mark.parametrize(
    ("running", "plain", "count", "expected"),
    [
        ([], PLAIN, 1, [PLAIN]),
        ([], PLAIN, 2, [PLAIN, PLAIN]),
        ([LARGE, PLAIN, LARGE], PLAIN, 1, [LARGE]),
        ([LARGE, PLAIN, LARGE], PLAIN, 3, [LARGE, PLAIN, LARGE]),
        ([], None, 1, []),
        ([OWN], None, 2, [OWN, OWN]),
    ],
)
def test_the_newest_start_is_the_likeliest_to_be_repeated(
    running: list[StartPattern], plain: StartPattern | None, count: int, expected: list[StartPattern]
) -> None:
    assert likely_starts(running, plain, count) == expected
