"""The timeline of the demo, as a drawing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WIDTH, LEFT, RIGHT = 960, 70, 20
LAG_TOP, LAG_HEIGHT = 100, 180
SLOTS_TOP, SLOTS_HEIGHT = 320, 100
ROWS, CHARACTER = 4, 6.6
"""The rows of words above the lines, and the width of a character."""
HEIGHT = SLOTS_TOP + SLOTS_HEIGHT + 40
TICKS_MAX = 12


@dataclass(frozen=True, slots=True)
class Sample:
    """The job at a moment.

    Attributes:
        at_s: Seconds since the begin.
        lag: Records that wait; None: unknown.
        parallelism: Its subtasks.
    """

    at_s: float
    lag: int | None
    parallelism: int


@dataclass(slots=True)
class Timeline:
    """What has happened, in the order of time.

    Attributes:
        title: The heading of the drawing.
        samples: The job, about once a second.
        events: What was done, or happened: the second and a few words.
        outage: When the object store was away, in seconds.
    """

    title: str
    samples: list[Sample] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    outage: tuple[float, float] | None = None

    @property
    def peak_lag(self) -> int:
        """The largest number of records that have waited."""
        return max((each.lag for each in self.samples if each.lag is not None), default=0)

    def svg(self) -> str:
        """Returns the drawing."""
        end_s = max((each.at_s for each in self.samples), default=1.0)
        lag_max = max(self.peak_lag, 1)
        slots_max = max((each.parallelism for each in self.samples), default=1)

        def x(at_s: float) -> float:
            return LEFT + (WIDTH - LEFT - RIGHT) * at_s / end_s

        def lag_y(lag: float) -> float:
            return LAG_TOP + LAG_HEIGHT * (1 - lag / lag_max)

        def slots_y(parallelism: float) -> float:
            return SLOTS_TOP + SLOTS_HEIGHT * (1 - parallelism / slots_max)

        parts = [
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            _text(LEFT, 28, self.title, size=17, weight=600),
            *self._shade(x),
            *_axis(x, end_s),
            *_scale(lag_y, (0, lag_max), "waiting"),
            *_scale(slots_y, range(0, slots_max + 1, max(1, slots_max // 4)), "subtasks"),
            _line([(x(each.at_s), lag_y(each.lag)) for each in self.samples if each.lag is not None], "#2a6fdb"),
            _line(_steps([(x(each.at_s), slots_y(each.parallelism)) for each in self.samples]), "#138a5b"),
            *self._marks(x),
        ]
        body = "\n  ".join(parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
            f' font-family="system-ui, sans-serif" aria-label="{escape(self.title)}">\n  {body}\n</svg>\n'
        )

    def _shade(self, x: Callable[[float], float]) -> list[str]:
        if self.outage is None:
            return []
        begin, end = map(x, self.outage)
        height = SLOTS_TOP + SLOTS_HEIGHT - LAG_TOP
        return [
            f'<rect x="{begin:.1f}" y="{LAG_TOP}" width="{end - begin:.1f}" height="{height}" fill="#fbe3e1"/>',
            _text(begin + 4, LAG_TOP + 14, "object store away", colour="#a33a30"),
        ]

    def _marks(self, x: Callable[[float], float]) -> list[str]:
        """Returns a line per event, with its words.

        Words are in the lowest row with room.
        """
        marks, ends = [], [0.0] * ROWS
        for at_s, words in self.events:
            at, bottom, width = x(at_s), SLOTS_TOP + SLOTS_HEIGHT, CHARACTER * len(words)
            begin = min(at + 3, WIDTH - width)
            row = next((row for row, end in enumerate(ends) if end <= begin), 0)
            ends[row] = begin + width
            marks += [
                f'<path d="M{at:.1f} {LAG_TOP - 8}V{bottom}" stroke="#8a8f98" stroke-dasharray="3 3"/>',
                _text(begin, LAG_TOP - 12 - 14 * row, words),
            ]
        return marks


def _text(x: float, y: float, text: str, *, size: int = 12, weight: int = 400, colour: str = "#30343a") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}">{escape(text)}</text>'
    )


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the corners of a line in steps."""
    found = list(points[:1])
    for (_, before), (x, y) in pairwise(points):
        if y != before:
            found += [(x, before), (x, y)]
    return [*found, *points[-1:]]


def _axis(x: Callable[[float], float], end_s: float) -> list[str]:
    bottom = SLOTS_TOP + SLOTS_HEIGHT
    ticks = range(0, int(end_s) + 1, 60 * max(1, math.ceil(end_s / 60 / TICKS_MAX)))
    return [
        f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" stroke="#30343a"/>',
        *(_text(x(tick) - 8, bottom + 18, f"{tick // 60} min") for tick in ticks),
    ]


def _scale(y: Callable[[float], float], values: Iterable[int], unit: str) -> list[str]:
    found = []
    for value in values:
        found += [
            f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#e3e5e8"/>',
            _text(8, y(value) + 4, f"{value:,}" if value else unit),
        ]
    return found
