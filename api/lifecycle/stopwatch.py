"""Measures how long values stay unchanged, on a monotonic clock."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


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
    starts again from zero.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        crowding: Callable[[], float] = processes_per_processor,
    ) -> None:
        self._monotonic = monotonic
        self._crowding = crowding
        self._seen: dict[Hashable, tuple[object, float]] = {}
        self._worked: dict[Hashable, tuple[object, float, float]] = {}

    def elapsed_ms(self, thing: Hashable, value: object) -> int:
        """Returns how long `thing` has been seen with `value`, in milliseconds."""
        now = self._monotonic()
        before = self._seen.get(thing)
        if before is None or before[0] != value:
            self._seen[thing] = (value, now)
            return 0
        return int((now - before[1]) * 1000)

    def worked_ms(self, thing: Hashable, value: object) -> int:
        """Returns the milliseconds that `thing` had a processor with `value`.

        Where five processes share a processor, a second counts as a fifth of a second; at least as a tenth.
        """
        now = self._monotonic()
        before, seen_at, worked = self._worked.get(thing, (None, now, 0.0))
        crowding = min(max(1.0, self._crowding()), CROWDING_MAX)
        worked = worked + (now - seen_at) / crowding if before == value else 0.0
        self._worked[thing] = (value, now, worked)
        return int(worked * 1000)
