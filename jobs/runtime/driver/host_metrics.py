"""Measures the driver's processes and their host, beside the batches."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

_EVERY_S = 10.0


class HostMetrics:
    """Measures after a batch, at most every ten seconds.

    So a job that waits for input has no news.

    Args:
        heap_bytes: Returns the used heap of the driver's JVM, if known.
        clock: Returns seconds.
    """

    def __init__(self, heap_bytes: Callable[[], int | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._heap_bytes = heap_bytes
        self._clock = clock
        self._measured_at_s = float("-inf")

    def measure(self) -> dict[str, int | float]:
        """Returns metrics of the driver; none if the last ones are new."""
        now_s = self._clock()
        if now_s - self._measured_at_s < _EVERY_S:
            return {}
        self._measured_at_s = now_s
        measured: dict[str, int | float] = {"host_load_ratio": os.getloadavg()[0] / (os.cpu_count() or 1)}
        if (heap_bytes := self._heap_bytes()) is not None:
            measured["jvm_heap_bytes"] = heap_bytes
        return measured | _of_processes()


def without_spark() -> dict[str, int]:
    """Returns the metrics of a driver whose JVM has ended."""
    return {"process_memory_bytes": psutil.Process().memory_info().rss, "jvm_heap_bytes": 0}


def _of_processes() -> dict[str, int]:
    """Returns the memory and processor time of the JVM and its descendants.

    This process is one of them.
    """
    resident_bytes, busy_s = 0, 0.0
    try:
        jvm = psutil.Process(os.getppid())
        processes = [jvm, *jvm.children(recursive=True)]
    except psutil.Error:  # spark-submit has ended, and this process is about to
        return {}
    for process in processes:
        try:
            times = process.cpu_times()
            resident_bytes += process.memory_info().rss
        except psutil.Error:  # it has ended
            continue
        busy_s += times.user + times.system
    return {"process_memory_bytes": resident_bytes, "process_ms": round(1000 * busy_s)}
