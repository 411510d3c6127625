"""Slots of executors that come late count, and an executor that is away takes none away."""

from __future__ import annotations

from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver.slot_watch import SlotWatch


def test_the_number_of_slots_rises_and_never_falls() -> None:
    status, counts, seconds = DriverStatus(), iter([2, None, 4, 3]), iter([0.0, 9.0, 10.0, 20.0, 30.0])
    watch = SlotWatch(lambda: next(counts), status, lambda: next(seconds))
    seen = []
    for _ in range(5):
        watch.poll()
        seen.append(status.slots)
    assert seen == [2, 2, 2, 4, 4]
