"""The demo's play of upgrades: its course, checks and results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..course import JOB_NAME
from ..published_output import read_rows
from ..reference import Check, equal
from ..reports import departure_reports, plan_deliveries
from ..verdict import Verdict, show_phases
from .replay import repeats_across, replay, sink_checks
from .upgrade_course import CLONE_NAME, UpgradeCourse

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from keyscale.client.keyscale import Keyscale

    from ..progress import ProgressDisplay
    from ..scenario import UpgradeScenario

FATES = {
    "unique-reports.seen": "KEPT",
    "aircraft-totals.flights": "MIGRATED",
    "aircraft-totals.flights_by_dest": "KEPT",
    "aircraft-totals.missed_flights": "NEW",
}
"""The fates that the plan of version 2 must name."""


@dataclass(frozen=True, slots=True)
class UpgradeVerdict(Verdict):
    """The verdict, with the job's changes.

    Attributes:
        changes: The API's answer for each change.
    """

    changes: list[dict[str, Any]]

    def show_course(self, console: Console) -> None:
        console.print("\n[bold]Changes[/] (milliseconds per phase)")
        named = [(f"version {number}: {each['status']}", each) for number, each in enumerate(self.changes, 2)]
        show_phases(console, "CHANGE", named)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Upgrades the flights job, rolls back an upgrade, and clones the job.

    Attributes:
        scenario: The scenario to run.
    """

    page: ClassVar[str] = f"jobs/{JOB_NAME}/revisions"
    scenario: UpgradeScenario

    def totals(self) -> dict[str, int]:
        reports = len(departure_reports(self.scenario.reports))
        return {**self.scenario.totals(), "reports in the sink": reports, "reports in the clone": reports}

    def perform(self, control_plane: Keyscale, directory: Path, display: ProgressDisplay) -> UpgradeVerdict:
        reports = departure_reports(self.scenario.reports)
        course = UpgradeCourse(control_plane, self.scenario, directory, len(reports), display)
        course.run()
        elapsed_s = display.elapsed_s()
        display.step("comparing every row of both sinks with the plain computation")
        rows = read_rows(course.job.output)
        cloned = [*read_rows(course.job.output, course.forked_after), *read_rows(course.clone.output)]
        checks = [
            *sink_checks(JOB_NAME, reports, rows),
            self._deduplication_check(reports, rows),
            *sink_checks(CLONE_NAME, reports, cloned),
            *course_checks(course),
        ]
        return UpgradeVerdict(checks, elapsed_s, [change.answer for change in course.changes])

    def _deduplication_check(self, reports: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Check:
        deliveries = plan_deliveries(len(reports), self.scenario.files, self.scenario.seed)
        across = repeats_across(reports, deliveries, replay(reports, rows).ids[1])
        seen = Counter(row["report_id"] for row in rows)
        once = sum(seen[report_id] == 1 for report_id in across)
        name = f"{JOB_NAME}: reports sent to both versions, counted once"
        return Check(name, f"{len(across):,}", f"{once:,}", 0 < len(across) == once)


def course_checks(course: UpgradeCourse) -> list[Check]:
    """Checks that the changes were as intended.

    The right result of an unchanged job would prove nothing.
    """
    fates = {
        f"{operator['uid']}.{state['name']}": state["fate"]
        for operator in course.plan["operators"]
        for state in operator["states"]
    }
    ended = [change.answer["status"] for change in course.changes]
    wanted = ["COMPLETED", "ROLLED_BACK"]
    return [
        equal("states with the fate that the plan should name", len(FATES), len(FATES.items() & fates.items())),
        equal("states that the plan drops or cannot read", 0, len(set(fates.values()) - {"KEPT", "MIGRATED", "NEW"})),
        Check("ends of the changes", ", ".join(wanted), ", ".join(ended), wanted == ended),
        equal("changes during which reports came in", len(wanted), sum(change.files > 0 for change in course.changes)),
        equal("revision of the job at the end", 2, course.job.show()["revision"]),
        equal(
            "parallelism of the clone", course.scenario.clone_parallelism, course.clone.show()["spec"]["parallelism"]
        ),
        Check("the job went on beside its clone", "yes", "yes" if course.rows_beside else "no", course.rows_beside > 0),
    ]
