"""A result table: aligned text, which is also Markdown.

The terminal and docs/benchmarks.md get the same characters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Table:
    """A title, column headings, rows of text cells, and notes."""

    title: str
    headings: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        self.rows.append(cells)

    def render(self) -> str:
        """Returns aligned Markdown: the first column left, numbers right."""
        lines = [list(self.headings), *(list(row) for row in self.rows)]
        widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(self.headings))]

        def row(cells: Sequence[str]) -> str:
            aligned = [
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            return "| " + " | ".join(aligned) + " |"

        rule = (
            "|"
            + "|".join("-" * (width + 2) if at == 0 else "-" * (width + 1) + ":" for at, width in enumerate(widths))
            + "|"
        )
        notes = [f"- {note}" for note in self.notes]
        return "\n".join(
            [
                f"### {self.title}",
                "",
                row(lines[0]),
                rule,
                *(row(line) for line in lines[1:]),
                *([""] if notes else []),
                *notes,
                "",
            ]
        )


def count(value: float) -> str:
    """Formats a rate or an amount: 105,000."""
    return "-" if math.isnan(value) else f"{value:,.0f}"


def decimal(value: float, digits: int = 1) -> str:
    """Formats a measured quantity: 10.9."""
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def times(value: float) -> str:
    """Formats a ratio: 2.4x."""
    return "-" if math.isnan(value) else f"{value:.2f}x"


def percent(value: float) -> str:
    """Formats a share: 12 %."""
    return "-" if math.isnan(value) else f"{value * 100:.0f} %"


def mebibytes(value: float) -> str:
    """Formats bytes as MiB, with one decimal below 100."""
    if math.isnan(value):
        return "-"
    size = value / (1 << 20)
    return f"{size:,.1f} MiB" if size < 100 else f"{size:,.0f} MiB"
