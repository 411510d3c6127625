"""The demo's play of faults: one kill of the driver, two rescales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from keyscale.units import duration_text

from .course import JOB_NAME, Course, Recovery
from .errors import DemoError
from .published_output import read_rows
from .reference import Check, compare, equal
from .reports import departure_reports, plan_deliveries
from .verdict import Verdict, show_checkpoints, show_phases

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from keyscale.client.keyscale import Keyscale

    from .progress import ProgressDisplay
    from .scenario import RescaleScenario


@dataclass(frozen=True, slots=True)
class FaultsVerdict(Verdict):
    """The verdict, with the course of the job.

    Attributes:
        checkpoints: The API's statistics of the job's checkpoints.
        rescales: The API's answer for each rescale.
        recovery: How the job recovered from the kill of its driver.
    """

    checkpoints: dict[str, Any]
    rescales: list[dict[str, Any]]
    recovery: Recovery

    def show_course(self, console: Console) -> None:
        show_checkpoints(console, self.checkpoints)
        console.print("\n[bold]Rescales[/] (milliseconds per phase)")
        changes = [(_arrows([each["from_parallelism"], each["to_parallelism"]]), each) for each in self.rescales]
        show_phases(console, "PARALLELISM", changes)
        recovery = self.recovery
        console.print(
            f"\n[bold]Recovery[/] attempt {recovery.killed_attempt} was killed, attempt {recovery.new_attempt}"
            f" committed {duration_text(recovery.downtime_ms)} later",
            f"\n  restored from {recovery.restored_from}",
        )


@dataclass(frozen=True, slots=True)
class KillAndRescale:
    """Runs the flights job, kills its driver and rescales it.

    Attributes:
        scenario: The scenario to run.
    """

    page: ClassVar[str] = f"jobs/{JOB_NAME}/rescale"
    scenario: RescaleScenario

    def totals(self) -> dict[str, int]:
        return {**self.scenario.totals(), "reports in the sink": len(departure_reports(self.scenario.reports))}

    def perform(self, control_plane: Keyscale, directory: Path, display: ProgressDisplay) -> FaultsVerdict:
        reports = departure_reports(self.scenario.reports)
        course = Course(control_plane, self.scenario, directory, len(reports), display)
        course.run()
        elapsed_s = display.elapsed_s()
        display.step("comparing the sink with the table")
        rows = read_rows(course.output)
        if course.recovery is None:
            raise DemoError("the driver was never killed")
        checks = [
            *compare(reports, rows),
            *figures_checks(course.figures(), self.scenario, len(reports)),
            *course_checks(course, len(reports)),
        ]
        return FaultsVerdict(checks, elapsed_s, course.checkpoints(), course.rescales, course.recovery)


def figures_checks(figures: Mapping[str, int], scenario: RescaleScenario, reports: int) -> list[Check]:
    """Checks that the job's counters include every batch.

    The last batch of the killed driver counts, too.
    """
    deliveries = plan_deliveries(reports, scenario.files, scenario.seed)
    sent = sum(len(delivery.first) + len(delivery.again) for delivery in deliveries)
    return [
        equal("records read, as its page says", sent, figures["input_records"]),
        equal("records emitted, as its page says", reports, figures["output_records"]),
    ]


def course_checks(course: Course, reports: int) -> list[Check]:
    """Checks that the faults really happened.

    The right result of an undisturbed job would prove nothing.
    """
    recovery = course.recovery
    killed_inside = recovery is not None and 0 < recovery.rows_before < reports
    from_checkpoint = recovery is not None and recovery.restored_from is not None
    rescaled_inside = sum(0 < rows < reports for rows in course.rows_before_rescales)
    wanted = [course.scenario.parallelism, *(parallelism for _, parallelism in course.scenario.rescales)]
    path = [course.scenario.parallelism, *(int(rescale["to_parallelism"]) for rescale in course.rescales)]
    return [
        equal("drivers killed while reports were coming in", 1, int(killed_inside)),
        equal("recoveries from a checkpoint, by itself", 1, int(from_checkpoint)),
        equal("rescales while reports were coming in", len(course.scenario.rescales), rescaled_inside),
        Check("parallelism", _arrows(wanted), _arrows(path), wanted == path),
    ]


def _arrows(parallelisms: list[int]) -> str:
    return " → ".join(str(parallelism) for parallelism in parallelisms)
