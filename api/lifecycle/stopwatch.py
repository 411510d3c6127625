"""Measures how long values stay unchanged, on a monotonic clock."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from .watched_clock import WatchedClock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

FORGET_S = 3600.0
"""The shortest time without a question after which a thing is forgotten, such as an attempt that has ended."""

CROWDING_MAX = 10.0
"""The most by which a crowded host slows the time that things had a processor.

The load also counts processes that wait for a disk, and a thing that hangs must not wait for them without end.
"""


def processes_per_processor() -> float:
    """Returns this host's load per processor, over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


class Stopwatch:
    """Measures how long values stay unchanged.

    Stored times come from wall clocks, which jump, and from other hosts. So a silence is measured from the moment when
    this process saw the last change: after a restart of the control plane, or an outage of the database, every timeout
    starts again from zero. A pause of this process hardly counts.

    Several threads use it.

    Args:
        monotonic: A clock in seconds; None for a clock that leaves out pauses of this process.
        crowding: Returns the host's load per processor.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] | None = None,
        crowding: Callable[[], float] = processes_per_processor,
    ) -> None:
        self._monotonic = monotonic or WatchedClock()
        self._crowding = crowding
        self._lock = threading.Lock()
        self._seen: dict[Hashable, tuple[object, float]] = {}
        self._worked: dict[Hashable, tuple[object, float, float]] = {}
        self._asked: set[Hashable] = set()
        self._asked_since_s = self._monotonic()

    def elapsed_ms(self, thing: Hashable, value: object) -> int:
        """Returns how long `thing` has been seen with `value`, in milliseconds."""
        with self._lock:
            now = self._note(thing)
            before = self._seen.get(thing)
            if before is None or before[0] != value:
                self._seen[thing] = (value, now)
                return 0
            return int((now - before[1]) * 1000)

    def worked_ms(self, thing: Hashable, value: object) -> int:
        """Returns the milliseconds that `thing` had a processor with `value`.

        Where five processes share a processor, a second counts as a fifth of a second; at least as a tenth.
        """
        crowding = min(max(1.0, self._crowding()), CROWDING_MAX)
        with self._lock:
            now = self._note(thing)
            before, seen_at, worked = self._worked.get(thing, (None, now, 0.0))
            worked = worked + (now - seen_at) / crowding if before == value else 0.0
            self._worked[thing] = (value, now, worked)
            return int(worked * 1000)

    def _note(self, thing: Hashable) -> float:
        """Notes a question about a thing; returns the time.

        From time to time, the things without questions are forgotten.
        """
        now = self._monotonic()
        if now - self._asked_since_s >= FORGET_S:
            self._seen = {each: seen for each, seen in self._seen.items() if each in self._asked}
            self._worked = {each: worked for each, worked in self._worked.items() if each in self._asked}
            self._asked, self._asked_since_s = set(), now
        self._asked.add(thing)
        return now
