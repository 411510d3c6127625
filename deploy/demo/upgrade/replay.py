"""The expected rows of the flights job's versions, in plain Python.

They are computed in the order of the rows found.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..reference import AircraftTotals, Check, check_report_ids, equal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..reports import Delivery

MISSED = "missed_flights"
"""The column of version 2 that version 1 lacks."""


def is_counted_by_version_1(report: dict[str, Any]) -> bool:
    """Returns whether version 1 counts a report.

    This states its seeded bug in other words than the program.
    """
    return report["dep_delay"] not in {None, 0.0}


@dataclass(slots=True)
class _Aircraft:
    totals: AircraftTotals = field(default_factory=AircraftTotals)
    counted: int = 0  # by version 1
    missed: int | None = None

    def next_row(self, report: dict[str, Any], version: int) -> dict[str, Any]:
        """Returns a version's row for the next report."""
        if version == 2 and self.missed is None:
            self.missed = self.totals.flights - self.counted
        self.totals.add(report)
        self.counted += is_counted_by_version_1(report)
        row = {
            "report_id": report["report_id"],
            "tailnum": report["tailnum"],
            "flights": self.counted if version == 1 else self.totals.flights,
            "dep_delay_sum": self.totals.dep_delay_sum,
            "last_airport": self.totals.last_airport,
            "dest": report["dest"],
            "dest_flights": self.totals.by_dest[report["dest"]],
        }
        return row if version == 1 else {**row, MISSED: self.missed}


@dataclass(slots=True)
class Replay:
    """A comparison of a sink's rows with the expected rows.

    Attributes:
        ids: The reports that each version has processed, by version.
        wrong: The rows of each version with a wrong number.
        late: Rows of version 1 after a row of version 2.
        missed: Reports that version 1 did not count, of aircraft that version 2 has seen.
        found: The missed reports that version 2 claims to have found.
    """

    ids: dict[int, set[str]]
    wrong: dict[int, int]
    late: int
    missed: int
    found: int


def replay(reports: Iterable[dict[str, Any]], rows: Iterable[dict[str, Any]]) -> Replay:
    """Compares every row with the row expected of its version.

    Args:
        reports: Every report, once.
        rows: The rows of a sink; an aircraft's rows are in the order of their emission.
    """
    by_id = {report["report_id"]: report for report in reports}
    aircraft: dict[str | None, _Aircraft] = defaultdict(_Aircraft)
    ids: dict[int, set[str]] = {1: set(), 2: set()}
    wrong = {1: 0, 2: 0}
    late = 0
    found: dict[str | None, int] = {}
    for row in rows:
        version = 2 if MISSED in row else 1
        late += version == 1 and bool(ids[2])
        report = by_id.get(row["report_id"])
        right = None if report is None else aircraft[report["tailnum"]].next_row(report, version)
        wrong[version] += row != right
        ids[version].add(row["report_id"])
        if version == 2:
            found[row["tailnum"]] = row[MISSED]
    missed = sum(each.missed for each in aircraft.values() if each.missed is not None)
    return Replay(ids, wrong, late, missed, sum(count or 0 for count in found.values()))


def sink_checks(name: str, reports: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[Check]:
    """Checks all rows of a job that went through both versions.

    Args:
        name: The job's name in the checks.
        reports: Every report, once.
        rows: The rows, in order.
    """
    seen = replay(reports, rows)
    checks = [
        *check_report_ids({report["report_id"]: report for report in reports}, rows),
        equal("rows of version 1 after version 2", 0, seen.late),
        equal("rows of version 1, with exactly its wrong count", len(seen.ids[1]), len(seen.ids[1]) - seen.wrong[1]),
        equal("rows of version 2, every number right", len(seen.ids[2]), len(seen.ids[2]) - seen.wrong[2]),
        equal("flights that version 1 missed and version 2 repaired", seen.missed, seen.found),
    ]
    return [Check(f"{name}: {check.name}", check.expected, check.found, check.holds) for check in checks]


def repeats_across(reports: Sequence[dict[str, Any]], deliveries: Sequence[Delivery], before: set[str]) -> set[str]:
    """Returns the reports processed before an upgrade and repeated after it.

    Only deduplication state that survived the upgrade can hold back the repeats.

    Args:
        reports: The reports, in the order of the plan.
        deliveries: The plan of the delivery.
        before: Ids of the reports that were processed before the upgrade.
    """
    across: set[str] = set()
    for delivery in deliveries:
        first = {reports[index]["report_id"] for index in delivery.first}
        if not first & before:
            across |= {reports[index]["report_id"] for index in delivery.again} & before
    return across
