"""The wall clock of a host, which may be wrong, jump and drift."""

from __future__ import annotations

from dataclasses import dataclass

EPOCH_MS = 1_900_000_000_000  # when each simulation begins


@dataclass(slots=True)
class HostClock:
    """A wall clock.

    Attributes:
        ahead_ms: How much it is ahead of the true time.
        drift: How much it gains per second, in seconds.
    """

    ahead_ms: int = 0
    drift: float = 0.0

    def now_ms(self, true_seconds: float) -> int:
        """Returns milliseconds since the epoch, by this clock."""
        return EPOCH_MS + self.ahead_ms + int(true_seconds * (1.0 + self.drift) * 1000)
