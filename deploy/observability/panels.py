"""Draws the panels of the Grafana dashboard from a Prometheus, without Grafana.

    python -m keyscale.deploy.observability.panels http://127.0.0.1:9090 docs/images/panels.svg --minutes 6

The picture has each panel of dashboard.json that has values, with its own expressions.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Mapping

DASHBOARD = Path(__file__).parent / "dashboard.json"
COLUMNS, WIDTH, HEIGHT, PLOT = 4, 300, 170, (44, 26, 246, 92)
"""Panels in a row, the size of a panel, and the left, top, width and height of its plot, in pixels."""
COLOURS = ("#3274d9", "#e0752d", "#56a64b", "#a352cc", "#e02f44", "#8f8f8f")
LINES_MAX = len(COLOURS)
STEPS = 120

Line = tuple[str, list[tuple[float, float]]]


def lines_of(prometheus: httpx.Client, panel: dict[str, Any], seconds: int) -> list[Line]:
    """Returns the lines of a panel, the highest first."""
    until_s = time.time()
    lines: list[Line] = []
    for target in panel["targets"]:
        query = target["expr"].replace("$job", ".*").replace("[5m]", "[1m]")
        span = {"start": until_s - seconds, "end": until_s, "step": seconds / STEPS}
        answer = prometheus.get("/api/v1/query_range", params={"query": query, **span}).raise_for_status().json()
        for series in answer["data"]["result"]:
            name = named(target["legendFormat"], series["metric"])
            points = [(at, float(value)) for at, value in series["values"] if float(value) == float(value)]
            if points:
                lines.append((name, points))
    return sorted(lines, key=highest, reverse=True)[:LINES_MAX]


def highest(line: Line) -> float:
    """Returns the greatest value of a line."""
    return max(value for _, value in line[1])


def named(legend: str, labels: Mapping[str, str]) -> str:
    """Returns a line's name from Grafana's form of a legend."""
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), legend)


def drawing(title: str, unit: str, lines: list[Line], begin_s: float, end_s: float) -> str:
    """Returns a panel in SVG."""
    left, top, width, height = PLOT
    values = [value for _, points in lines for _, value in points]
    least, most = min(0.0, *values), max(values) or 1.0
    parts = [
        f'<rect width="{WIDTH - 8}" height="{HEIGHT - 8}" rx="3" fill="#fff" stroke="#ddd"/>',
        f'<text x="10" y="17" font-weight="600">{escape(title)}</text>',
        *(
            f'<text x="{left - 4}" y="{y}" text-anchor="end" fill="#777">{shown(value, unit)}</text>'
            for value, y in ((most, top + 8), (least, top + height))
        ),
        f'<path d="M{left} {top}V{top + height}H{left + width}" fill="none" stroke="#bbb"/>',
    ]
    for number, ((name, points), colour) in enumerate(zip(lines, COLOURS, strict=False)):
        path = " ".join(
            f"{left + width * (at - begin_s) / (end_s - begin_s):.1f},"
            f"{top + height * (1 - (value - least) / (most - least or 1)):.1f}"
            for at, value in points
        )
        x, y = left + 124 * (number % 2), top + height + 14 + 12 * (number // 2)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{x}" y="{y}" fill="{colour}">{escape(name[:20])}</text>')
    return "".join(parts)


def shown(value: float, unit: str) -> str:
    """Returns a value of an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}" + ("s" if unit == "s" else "")


def main() -> None:
    """Draws the panels."""
    parser = argparse.ArgumentParser(description="Draw the panels of the Grafana dashboard from a Prometheus.")
    parser.add_argument("prometheus", help="Its address.")
    parser.add_argument("picture", type=Path, help="The file to write.")
    parser.add_argument("--minutes", type=int, default=6)
    options = parser.parse_args()
    seconds = 60 * options.minutes
    parts, place = [], 0
    with httpx.Client(base_url=options.prometheus, trust_env=False) as prometheus:
        for panel in json.loads(DASHBOARD.read_text())["panels"]:
            lines = lines_of(prometheus, panel, seconds) if panel["type"] == "timeseries" else []
            if not lines:
                continue
            x, y, now_s = 8 + WIDTH * (place % COLUMNS), 8 + HEIGHT * (place // COLUMNS), time.time()
            unit = panel["fieldConfig"]["defaults"].get("unit", "")
            parts.append(f'<g transform="translate({x} {y})">')
            parts.append(drawing(panel["title"], unit, lines, now_s - seconds, now_s) + "</g>")
            place += 1
    height = 8 + HEIGHT * -(-place // COLUMNS)
    options.picture.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{8 + WIDTH * COLUMNS}" height="{height}" '
        'font-family="sans-serif" font-size="10"><rect width="100%" height="100%" fill="#f4f5f5"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )
    print(f"{place} panels: {options.picture}")  # noqa: T201


if __name__ == "__main__":
    main()
