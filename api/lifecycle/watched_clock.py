"""A monotonic clock that leaves out the pauses of its process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GAP_S_MAX = 5.0
"""The most that counts of the time between two looks; the reconciler looks several times a second."""


class WatchedClock:
    """Counts the time between two looks, at most `GAP_S_MAX` of it.

    A control plane that was paused (by a signal, or with its virtual machine) has received no reports meanwhile. Its
    first look after the pause must not take the drivers for silent: they report again within seconds.

    Several threads use it.

    Args:
        monotonic: A clock in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._looked_at_s = monotonic()
        self._counted_s = 0.0

    def __call__(self) -> float:
        """Returns the counted time, in seconds."""
        with self._lock:
            now_s = self._monotonic()
            self._counted_s += min(now_s - self._looked_at_s, GAP_S_MAX)
            self._looked_at_s = now_s
            return self._counted_s
