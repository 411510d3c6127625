"""The time, in the unit of everything stored and sent."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Returns milliseconds since the epoch, by this host's clock."""
    return time.time_ns() // 1_000_000
