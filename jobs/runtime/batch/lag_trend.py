"""The growth of the number of waiting records."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SPAN_S = 60.0
"""The time over which the growth is measured."""
SPAN_MIN_S = 10.0
"""The growth over a shorter time is unknown."""


class _Count(NamedTuple):
    at_s: float
    records: int


class LagTrend:
    """Measures the growth of the lag over the last minute."""

    def __init__(self) -> None:
        self._counts: deque[_Count] = deque()

    def saw(self, at_s: float, records: int) -> None:
        """Notes the number of waiting records.

        At most one count per second is kept.
        """
        count = _Count(at_s, records)
        if len(self._counts) > 1 and at_s - self._counts[-2].at_s < 1:
            self._counts[-1] = count
        else:
            self._counts.append(count)
        while len(self._counts) > 1 and at_s - self._counts[1].at_s >= SPAN_S:
            self._counts.popleft()

    def growth(self) -> float | None:
        """Returns the growth in records per second.

        None before ten seconds have passed.
        """
        if not self._counts:
            return None
        first, last = self._counts[0], self._counts[-1]
        passed_s = last.at_s - first.at_s
        return (last.records - first.records) / passed_s if passed_s >= SPAN_MIN_S else None
