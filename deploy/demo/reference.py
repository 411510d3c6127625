"""The expected result of the main job, in plain Python.

It is computed from the flights, without Spark and Keyscale.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MISSING = object()


@dataclass(slots=True)
class AircraftTotals:
    """The totals of one aircraft after some of its flights."""

    flights: int = 0
    dep_delay_sum: float = 0.0
    latest: tuple[int, str] = (-1, "")
    last_airport: str = ""
    by_dest: Counter[str] = field(default_factory=Counter)

    def add(self, report: dict[str, Any]) -> None:
        """Adds a report of this aircraft."""
        self.flights += 1
        self.dep_delay_sum += report["dep_delay"] or 0.0
        self.by_dest[report["dest"]] += 1
        moment = (report["sched_ms"], report["report_id"])
        if moment > self.latest:
            self.latest, self.last_airport = moment, report["dest"]


def fold(reports: Iterable[dict[str, Any]]) -> dict[str | None, AircraftTotals]:
    """Returns the totals per aircraft (None: unknown aircraft).

    Each report is given once.
    """
    totals: dict[str | None, AircraftTotals] = defaultdict(AircraftTotals)
    for report in reports:
        totals[report["tailnum"]].add(report)
    return dict(totals)


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison between the sink and the reference."""

    name: str
    expected: str
    found: str
    holds: bool


def compare(reports: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[Check]:
    """Compares the rows of the job's sink with the reference.

    Args:
        reports: Every report, once.
        rows: All rows of the sink.

    Returns:
        The checks. All of them hold if and only if the result is exactly right.
    """
    reference = fold(reports)
    by_id = {report["report_id"]: report for report in reports}
    rows_by_aircraft: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        rows_by_aircraft[row["tailnum"]].append(row)
    return [
        *check_report_ids(by_id, rows),
        _check_row_origins(by_id, rows),
        _check_running_counts(reference, rows_by_aircraft),
        *_check_final_totals(reference, rows_by_aircraft),
        _check_destinations(reference, rows_by_aircraft),
    ]


def check_report_ids(by_id: dict[str, dict[str, Any]], rows: list[dict[str, Any]]) -> list[Check]:
    """Checks that each report has exactly one row.

    Args:
        by_id: Every report.
        rows: All rows of the sink.
    """
    seen = Counter(row["report_id"] for row in rows)
    lost = len(by_id.keys() - seen.keys())
    foreign = len(seen.keys() - by_id.keys())
    doubled = sum(count - 1 for count in seen.values())
    return [
        equal("reports in the sink", len(by_id), len(rows)),
        equal("reports lost", 0, lost),
        equal("reports counted twice", 0, doubled),
        equal("reports that were never sent", 0, foreign),
    ]


def _check_row_origins(by_id: dict[str, dict[str, Any]], rows: list[dict[str, Any]]) -> Check:
    wrong = 0
    for row in rows:
        report = by_id.get(row["report_id"], {})
        wrong += (row["tailnum"], row["dest"]) != (report.get("tailnum", MISSING), report.get("dest", MISSING))
    return equal("rows with another report's aircraft or destination", 0, wrong)


def _check_running_counts(
    reference: dict[str | None, AircraftTotals], rows: dict[str | None, list[dict[str, Any]]]
) -> Check:
    right = sum(
        sorted(row["flights"] for row in rows.get(tailnum, [])) == list(range(1, aircraft.flights + 1))
        for tailnum, aircraft in reference.items()
    )
    return equal("aircraft counted 1, 2, … n without gap or repeat", len(reference), right)


def _check_final_totals(
    reference: dict[str | None, AircraftTotals], rows: dict[str | None, list[dict[str, Any]]]
) -> list[Check]:
    last_rows = {tailnum: max(group, key=lambda row: row["flights"]) for tailnum, group in rows.items()}

    def matching(column: str) -> int:
        return sum(
            tailnum in last_rows and last_rows[tailnum][column] == getattr(aircraft, column)
            for tailnum, aircraft in reference.items()
        )

    return [
        equal("aircraft in the sink", len(reference), len(last_rows)),
        equal("aircraft with the right number of flights", len(reference), matching("flights")),
        equal("aircraft with the right sum of delays", len(reference), matching("dep_delay_sum")),
        equal("aircraft with the right last airport", len(reference), matching("last_airport")),
        equal(
            "total minutes of delay",
            sum(aircraft.dep_delay_sum for aircraft in reference.values()),
            sum(row["dep_delay_sum"] for row in last_rows.values()),
        ),
    ]


def _check_destinations(
    reference: dict[str | None, AircraftTotals], rows: dict[str | None, list[dict[str, Any]]]
) -> Check:
    """Counts the exactly counted pairs of aircraft and destination.

    Their running counts in the sink are exactly 1, 2, … m.
    """
    counts: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    for tailnum, group in rows.items():
        for row in group:
            counts[tailnum, row["dest"]].append(row["dest_flights"])
    expected = {
        (tailnum, dest): count for tailnum, totals in reference.items() for dest, count in totals.by_dest.items()
    }
    right = sum(sorted(counts.get(pair, [])) == list(range(1, count + 1)) for pair, count in expected.items())
    return equal("pairs of aircraft and destination counted exactly", len(expected), right)


def equal(name: str, expected: float, found: float) -> Check:
    """Returns the check that two exact numbers are equal."""
    return Check(name, f"{expected:,}", f"{found:,}", expected == found)
