"""Processing time goes on evenly, whatever the clock of the host does."""

from __future__ import annotations

import logging

import pytest

from keyscale.jobs.runtime.batch.processing_clock import (
    DISAGREEMENT_MAX_MS,
    ProcessingClock,
    beginning_ms,
    since_boot_ms,
)

NOW_MS, IN_2099_MS = 1_790_000_000_000, 4_070_908_800_000


def test_a_jump_of_the_hosts_clock_does_not_move_processing_time(caplog: pytest.LogCaptureFixture) -> None:
    host_ms, elapsed_ms = [NOW_MS], [5]
    clock = ProcessingClock(NOW_MS, lambda: host_ms[0], lambda: elapsed_ms[0])
    assert clock.now_ms() == NOW_MS
    host_ms[0], elapsed_ms[0] = IN_2099_MS, 1005
    with caplog.at_level(logging.WARNING):
        assert clock.now_ms() == clock.now_ms() == NOW_MS + 1000
    assert [record.message for record in caplog.records if "away from the processing time" in record.message]
    assert len(caplog.records) == 1


def test_a_clock_that_is_set_a_little_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    clock = ProcessingClock(NOW_MS, lambda: NOW_MS - DISAGREEMENT_MAX_MS, lambda: 0)
    assert clock.now_ms() == NOW_MS
    assert caplog.records == []


@pytest.mark.parametrize(
    ("store_ms", "expected_ms"),
    [
        (None, IN_2099_MS),
        (IN_2099_MS - DISAGREEMENT_MAX_MS, IN_2099_MS),
        (IN_2099_MS - DISAGREEMENT_MAX_MS - 1, IN_2099_MS - DISAGREEMENT_MAX_MS - 1),
        (NOW_MS, NOW_MS),
    ],
)
def test_processing_time_begins_at_the_stores_time_if_the_clocks_contradict_each_other(
    store_ms: int | None, expected_ms: int
) -> None:
    assert beginning_ms(IN_2099_MS, store_ms) == expected_ms


def test_the_clock_since_boot_goes_on() -> None:
    first_ms = since_boot_ms()
    assert first_ms <= since_boot_ms() < first_ms + 60_000
