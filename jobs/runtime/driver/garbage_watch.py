"""Watches how much of the tasks' time the JVMs collect garbage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...spark_internals.executor_times import ExecutorTimes
    from ..control.driver_status import DriverStatus

_SECONDS = 10.0


class GarbageWatch:
    """Passes the share of garbage collection on to the driver's status.

    Args:
        read: Returns the times of all executors so far, if known.
        status: The status.
        clock: Returns seconds.
    """

    def __init__(
        self,
        read: Callable[[], ExecutorTimes | None],
        status: DriverStatus,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._status = status
        self._clock = clock
        self._before: ExecutorTimes | None = None
        self._read_at = float("-inf")

    def poll(self) -> None:
        """Reads the times if the last reading is ten seconds old."""
        now = self._clock()
        if now - self._read_at < _SECONDS:
            return
        self._read_at = now
        times, before = self._read(), self._before
        ratio = None if times is None or before is None else times.collection_ratio(before)
        if ratio is not None:
            self._status.garbage_collected(ratio)
        if times is not None:
            self._before = times
