"""Rates of records, averaged over the last minute and weighted by time."""

from __future__ import annotations

from typing import NamedTuple

AVERAGED_MS = 60_000
"""The time that a rate is averaged over; a driver that is younger averages over its whole life."""


class Span(NamedTuple):
    """The time that the records of a batch cover.

    Attributes:
        ms: Its length.
        weight: Its share of the time that a rate is averaged over.
    """

    ms: float
    weight: float


class CoveredTime:
    """The time that a driver's rates cover so far."""

    def __init__(self) -> None:
        self._ms = 0.0

    def extend(self, ms: float) -> Span:
        """Adds the time that a batch covers."""
        self._ms += ms
        return self._newest(ms, self._ms)

    def without_records(self, ms: float) -> Span:
        """Returns the time since the last batch, which no batch covers yet."""
        return self._newest(ms, self._ms + ms)

    @staticmethod
    def _newest(ms: float, covered_ms: float) -> Span:
        return Span(ms, min(1.0, ms / max(1.0, min(AVERAGED_MS, covered_ms))))


def rate_after(before: float | None, records: int, span: Span) -> float:
    """Returns a rate in records per second after a span."""
    newest = 1000 * records / max(span.ms, 1.0)
    known = newest if before is None else before
    return known + span.weight * (newest - known)
