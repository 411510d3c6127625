"""Measures the activities of a task; each moment belongs to one activity."""

from __future__ import annotations

import contextlib
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..retries import Retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_Item = TypeVar("_Item")
_END: Any = object()
_SCHEDULER_TIMES = Path("/proc/thread-self/schedstat")


class Activity(StrEnum):
    """The activities of a task."""

    INPUT = "input"  # waiting for records: for the shuffle and the stages before it
    OPEN = "open"  # opening or rebuilding the state
    PROCESS = "process"  # running the operator
    OUTPUT = "output"  # waiting for the reader of its rows, or writing them to the sink
    STORE = "store"  # waiting for the object store
    FINISH = "finish"  # making the changes part of the local state, and closing it


def processor_wait_s() -> float:
    """Returns how long this thread has waited for a processor so far.

    Linux counts the time; elsewhere it is 0.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_SCHEDULER_TIMES.read_bytes().split()[1]) / 1e9
    return 0.0


class TaskStopwatch:
    """The times of one task.

    The time of a nested activity counts for the nested activity only.

    Args:
        activity: The first activity.
        clock: Returns seconds.
        processor_clock: Returns the processor time of this process in seconds.
        wait_clock: Returns how long this thread has waited for a processor, in seconds.
    """

    def __init__(
        self,
        activity: Activity,
        clock: Callable[[], float] = time.perf_counter,
        processor_clock: Callable[[], float] = time.process_time,
        wait_clock: Callable[[], float] = processor_wait_s,
    ) -> None:
        self.began_at_ms = time.time() * 1000
        self._seconds = dict.fromkeys(Activity, 0.0)
        self._activity = activity
        self._clock = clock
        self._since = clock()
        self._processor_clock = processor_clock
        self._processor_began = processor_clock()
        self._wait_clock = wait_clock
        self._wait_began = wait_clock()
        self._thread = threading.get_ident()

    def begin(self, activity: Activity) -> Activity:
        """Switches to another activity; returns the previous activity."""
        before, now = self._activity, self._clock()
        self._seconds[before] += now - self._since
        self._activity, self._since = activity, now
        return before

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Counts the time inside the block as an activity.

        Other threads of the task count as the task's current activity.
        """
        if threading.get_ident() != self._thread:
            yield
            return
        before = self.begin(activity)
        try:
            yield
        finally:
            self.begin(before)

    def pulled(self, items: Iterable[_Item], activity: Activity) -> Iterator[_Item]:
        """Passes on items; counts the time to fetch each as an activity."""
        source = iter(items)
        while True:
            with self.during(activity):
                item = next(source, _END)
            if item is _END:
                return
            yield item

    def taken(self, items: Iterable[_Item], activity: Activity) -> Iterator[_Item]:
        """Passes on items; counts the reader's time on each as an activity."""
        for item in items:
            with self.during(activity):
                yield item

    def ms(self, activity: Activity) -> float:
        """Returns the time spent on an activity so far."""
        self.begin(self._activity)
        return self._seconds[activity] * 1000

    @property
    def processor_ms(self) -> float:
        """The processor time of this process since the task began.

        It includes all threads.
        """
        return (self._processor_clock() - self._processor_began) * 1000

    @property
    def processor_wait_ms(self) -> float:
        """The time in which the task's thread waited for a processor."""
        return (self._wait_clock() - self._wait_began) * 1000


@dataclass(frozen=True)
class TimedRetries(Retries):
    """Retries on the object store, timed by a stopwatch.

    Attributes:
        stopwatch: The stopwatch.
    """

    stopwatch: TaskStopwatch | None = None

    def run(self, operation: Callable[[], _Item], report: Callable[[Any], None] = lambda _: None) -> _Item:
        if self.stopwatch is None:
            return super().run(operation, report)
        with self.stopwatch.during(Activity.STORE):
            return super().run(operation, report)
