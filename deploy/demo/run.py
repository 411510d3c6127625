"""The whole demo: starts its own control plane, runs the scenario, shows the verdict, and ends every process."""

from __future__ import annotations

import shutil
import signal
import threading
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from keyscale.api.cli.client import ControlPlane, job_path
from keyscale.api.cli.process import ControlPlaneProcess
from keyscale.deploy.demo.course import JOB_NAME, Course
from keyscale.deploy.demo.errors import DemoError
from keyscale.deploy.demo.home_processes import end_processes, processes_of
from keyscale.deploy.demo.progress import ProgressDisplay
from keyscale.deploy.demo.published_output import read_rows
from keyscale.deploy.demo.reference import Check, compare, equal
from keyscale.deploy.demo.reports import departure_reports, plan_deliveries
from keyscale.deploy.demo.verdict import Verdict, show_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from keyscale.deploy.demo.scenario import Scenario


# The one job is ours, and reads and writes in the directory of the user who runs the demo.
_TRUSTED = MappingProxyType({"KEYSCALE_JOB_USERS": "off"})


@dataclass(frozen=True, slots=True)
class Demo:
    """One run of the demo.

    Attributes:
        home: Its own directory, emptied at the start.
        port: The port of its control plane.
        scenario: The scenario to run.
        console: The console to print on.
        stay: Whether the control plane stays up after the verdict, until it is interrupted.
        settings: Further environment variables of the control plane.
    """

    home: Path
    port: int
    scenario: Scenario
    console: Console
    stay: bool
    settings: Mapping[str, str]

    def run(self) -> Verdict:
        """Runs the demo, shows the verdict, and ends every process that it started.

        Raises:
            DemoError: The demo did not complete.
        """
        self._clear()
        control_plane = ControlPlaneProcess(self.home, self.port, {**_TRUSTED, **self.settings})
        try:
            verdict = self._run_on(control_plane)
            show_verdict(self.console, verdict)
            self.console.print(f"\nDashboard  {control_plane.connection.dashboard_url}")
            self.console.print(f"Open first {control_plane.connection.dashboard_url}jobs/{JOB_NAME}/rescale")
            if self.stay:
                self._stay(control_plane)
        finally:
            control_plane.stop()
            left = processes_of(self.home)
            end_processes(left)
        return verdict

    def _clear(self) -> None:
        """Ends the processes of an interrupted run, and empties the directory."""
        end_processes(processes_of(self.home))
        if self.home.exists():
            shutil.rmtree(self.home)
        self.home.mkdir(parents=True)

    def _run_on(self, process: ControlPlaneProcess) -> Verdict:
        reports = departure_reports(self.scenario.reports)
        deliveries = plan_deliveries(len(reports), self.scenario.files, self.scenario.seed)
        with ProgressDisplay(self.console, len(reports), len(deliveries)) as display:
            process.start()
            display.step(f"control plane and PostgreSQL are up, dashboard at {process.connection.dashboard_url}")
            with ControlPlane(process.connection) as control_plane:
                course = Course(control_plane, self.scenario, self.home / "data", len(reports), display)
                course.run()
                elapsed_s = display.elapsed_s()
                checkpoints = control_plane.get(job_path(course.job_id, "checkpoints"))
            display.step("comparing the sink with the table")
            rows = read_rows(course.output)
        if course.recovery is None:
            raise DemoError("the driver was never killed")
        checks = [*compare(reports, rows), *course_checks(course, len(reports))]
        return Verdict(checks, checkpoints, course.rescales, course.recovery, elapsed_s)

    def _stay(self, control_plane: ControlPlaneProcess) -> None:
        self.console.print(f"Token      {control_plane.connection.token}")
        self.console.print("The control plane stays up until you press Ctrl-C.")
        interrupted = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: interrupted.set())
        interrupted.wait()


def course_checks(course: Course, reports: int) -> list[Check]:
    """Checks that the faults really happened: the right result of an undisturbed job would prove nothing."""
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
