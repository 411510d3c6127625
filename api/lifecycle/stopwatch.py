from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Stopwatch:
    """Measures for how long things have been as they are, on a clock that never jumps.

    Stored times are of wall clocks, which do jump, and of other hosts. So a silence is measured from when this process saw
    the last change: after a restart of the control plane, or an outage of the database, everybody gets their full time.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def elapsed_ms(self, thing: Hashable, value: object) -> int:
        """Returns for how long `thing` has been seen to have `value`."""
        now = self._monotonic()
        before = self._seen.get(thing)
        if before is None or before[0] != value:
            self._seen[thing] = (value, now)
            return 0
        return int((now - before[1]) * 1000)

    def reset(self) -> None:
        """Forgets everything: whatever was not seen for a while gets its full time again."""
        self._seen.clear()
