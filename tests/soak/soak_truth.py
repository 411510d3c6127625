"""Compares the metrics of a job with what the brokers, the commit log and the sinks say. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SLACK_MS = 1_000
"""The time between a commit and the time of its object."""
CALM_MS = 15_000
"""How old the numbers of a driver that reports may be."""
DISTURBED_MS = 330_000
"""How old the numbers may be under a fault: the time in which a job must go on."""
ASKED_MS = 15_000
"""How old the brokers' answer in a number of waiting records may be: the driver asks every three seconds."""
PUBLISHED_MS = 60_000
"""Within this time readers of the sinks see what was committed, unless there is a fault."""
RATE_MS = 60_000
RATE_SPANS_MS = (RATE_MS, 2 * RATE_MS, 4 * RATE_MS)
RATE_SHARE, RATE_MARGIN = 1.5, 3.0

COUNTERS = ("input_records", "output_records", "late_records", "dead_letters")
USER_COUNTER = "numbered"
"""The counter that the job's function counts itself."""
COUNTED = (*COUNTERS, USER_COUNTER)


class Timeline:
    """A number that only grows, as it was seen at some times."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._values: list[int] = []

    def add(self, at_ms: int, value: int) -> None:
        self._times.append(at_ms)
        self._values.append(value)

    def before(self, at_ms: float) -> int:
        """Returns the last number that was seen until then; 0 before the first."""
        index = bisect_right(self._times, at_ms)
        return self._values[index - 1] if index else 0

    def after(self, at_ms: float) -> float:
        """Returns the first number that was seen from then on; infinity if there is none yet."""
        index = bisect_left(self._times, at_ms)
        return self._values[index] if index < len(self._times) else math.inf

    @property
    def last(self) -> int:
        return self._values[-1] if self._values else 0

    @property
    def last_ms(self) -> int:
        return self._times[-1] if self._times else 0


@dataclass(slots=True)
class Truth:
    """What others than the control plane say of a job.

    Attributes:
        ends: The sum of the end offsets, as the brokers have answered.
        reached: The sum of the committed offsets; a step at each commit.
        counted: The counters of each commit.
        visible: The rows that readers of the sinks see, by the counter that counts them.
    """

    ends: Timeline = field(default_factory=Timeline)
    reached: Timeline = field(default_factory=Timeline)
    counted: dict[str, Timeline] = field(default_factory=lambda: {name: Timeline() for name in COUNTED})
    visible: dict[str, Timeline] = field(default_factory=lambda: {name: Timeline() for name in COUNTED})

    def waiting(self, from_ms: float, to_ms: float) -> tuple[float, float]:
        """Returns the least and the largest number of waiting records that a report of this time may have."""
        least = self.ends.before(from_ms) - self.reached.before(to_ms + SLACK_MS)
        return max(0, least), self.ends.after(to_ms) - self.reached.before(from_ms)

    def rates(self, from_ms: float, to_ms: float) -> tuple[float, float]:
        """Returns the least and the largest rate that a driver may report at this time, in records per second.

        A driver counts over a minute, or over its last batch if that took longer.
        """
        rates = [
            (self.reached.before(at) - self.reached.before(at - length)) * 1000 / length
            for at in range(int(from_ms), int(to_ms) + 1, 1000)
            for length in RATE_SPANS_MS
        ]
        return min(rates), max(rates)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a control plane has said of a job.

    Attributes:
        asked_ms: When it was asked.
        answered_ms: When its answer was there.
        is_calm: Whether no fault has been there for a while, so that the numbers must be new.
        figures: The job's metrics.
        series: Points of its series: the time of a step, its length in ms, and the values by name.
        page: What its page shows, by the names of the metrics.
        scraped: What Prometheus gets, by the names of the metrics.
    """

    asked_ms: int
    answered_ms: int
    is_calm: bool
    figures: Mapping[str, float | None]
    series: tuple[tuple[int, int, Mapping[str, float | None]], ...] = ()
    page: Mapping[str, int] = field(default_factory=dict)
    scraped: Mapping[str, float] = field(default_factory=dict)


def judge(seen: Observation, truth: Truth) -> list[str]:
    """Returns the numbers of an observation that are wrong.

    The truth must reach a minute beyond the observation.
    """
    figures, age_ms = seen.figures, CALM_MS if seen.is_calm else DISTURBED_MS
    found = _wrong_counters("API", figures, (seen.asked_ms - age_ms, seen.answered_ms), truth)
    if seen.is_calm:
        for name in COUNTERS:
            most = truth.visible[name].after(seen.answered_ms + PUBLISHED_MS)
            found += _unless(f"API: {name} beyond the sinks'", figures[name], 0, most)
    found += _wrong_waiting(seen, truth)
    begun = truth.reached.before(seen.asked_ms - RATE_MS - CALM_MS) > 0  # before, a minute has less than a minute's
    if seen.is_calm and begun and (rate := figures["input_rate"]) is not None:
        least, most = truth.rates(seen.asked_ms - CALM_MS, seen.answered_ms)
        least, most = least / RATE_SHARE - RATE_MARGIN, most * RATE_SHARE + RATE_MARGIN
        found += _unless("API: input_rate", rate, least, most)
    for at_ms, step_ms, values in seen.series:
        found += _wrong_counters(f"series at {at_ms}", values, (at_ms - DISTURBED_MS, at_ms + step_ms), truth)
        if (waiting := values.get("lag_records")) is not None:
            least, most = truth.waiting(at_ms - ASKED_MS, at_ms + step_ms)
            found += _unless(f"series at {at_ms}: lag_records", waiting, least, most)
    begin_ms = seen.asked_ms - 2 * age_ms
    for who, values in (("page", seen.page), ("Prometheus", seen.scraped)):
        found += _wrong_counters(who, values, (begin_ms, seen.answered_ms), truth)
        if "lag_records" in values and (seen.is_calm or who == "page"):  # else the last known number is older
            least, most = truth.waiting(begin_ms, seen.answered_ms)
            found += _unless(f"{who}: lag_records", values["lag_records"], least, most)
    return found


def _wrong_waiting(seen: Observation, truth: Truth) -> list[str]:
    waiting, at_ms = seen.figures["lag_records"], seen.figures["lag_records_at_ms"]
    if waiting is None or at_ms is None:
        return []
    least, most = truth.waiting(at_ms - ASKED_MS, at_ms)
    found = _unless("API: lag_records", waiting, least, most)
    # Brokers that do not answer leave the number of their last answer, with its time.
    age_ms_max = 2 * CALM_MS if seen.is_calm else DISTURBED_MS
    if seen.figures["input_rate"] is not None and at_ms < seen.asked_ms - age_ms_max:
        found.append(f"API: lag_records of a driver that reports is {(seen.asked_ms - at_ms) / 1000:.0f} s old")
    return found


def _wrong_counters(who: str, values: Mapping[str, float | None], span: tuple[float, float], truth: Truth) -> list[str]:
    from_ms, to_ms = span
    found = []
    for name in COUNTED:
        if (value := values.get(name)) is not None:
            counted, visible = truth.counted[name], truth.visible[name]
            least = max(counted.before(from_ms), visible.before(from_ms))
            found += _unless(f"{who}: {name}", value, least, counted.before(to_ms + SLACK_MS))
    return found


def _unless(what: str, value: float | None, least: float, most: float) -> list[str]:
    return [] if value is None or least <= value <= most else [f"{what} is {value}, not {least:.0f} to {most:.0f}"]
