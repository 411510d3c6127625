from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch, by this host's clock: for reports, never for decisions."""
    return time.time_ns() // 1_000_000
