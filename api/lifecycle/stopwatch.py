"""Measures how long values stay unchanged, on a monotonic clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Stopwatch:
    """Measures how long values stay unchanged.

    Stored times come from wall clocks, which jump, and from other hosts. So a silence is measured from the moment when
    this process saw the last change: after a restart of the control plane, or an outage of the database, every timeout
    starts again from zero.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def elapsed_ms(self, thing: Hashable, value: object) -> int:
        """Returns how long `thing` has been seen with `value`, in milliseconds."""
        now = self._monotonic()
        before = self._seen.get(thing)
        if before is None or before[0] != value:
            self._seen[thing] = (value, now)
            return 0
        return int((now - before[1]) * 1000)
