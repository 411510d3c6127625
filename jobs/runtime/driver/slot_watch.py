"""Watches how many subtasks Spark has room for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..control.driver_status import DriverStatus

_SECONDS = 10.0


class SlotWatch:
    """Passes the number of Spark's task slots on to the driver's status.

    An executor may register late, or be replaced: the number is counted again and again, and never falls.

    Args:
        count: Returns the largest parallelism at the moment, if known.
        status: The status.
        clock: Returns seconds.
    """

    def __init__(
        self, count: Callable[[], int | None], status: DriverStatus, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._status = status
        self._clock = clock
        self._counted_at = float("-inf")

    def poll(self) -> None:
        """Counts the slots if the last count is ten seconds old."""
        now = self._clock()
        if now - self._counted_at < _SECONDS:
            return
        self._counted_at = now
        slots, known = self._count(), self._status.slots
        if slots is not None and (known is None or slots > known):
            self._status.has_slots(slots)
