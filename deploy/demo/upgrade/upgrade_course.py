"""Takes the flights job through its versions by the public API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from keyscale.api.cli.artifacts import upload_file
from keyscale.api.cli.operations import follow, phase_line
from keyscale.api.cli.output import make_table
from keyscale.api.cli.plan_output import STATE_COLUMNS, state_rows, summary_lines
from keyscale.client.request_paths import job_path
from keyscale.units import duration_text

from ..course import JOB_NAME
from ..demo_job import DemoJob
from ..errors import DemoError
from ..published_output import read_rows
from ..running_feeder import RunningFeeder
from .program_versions import difference, write_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from keyscale.client.keyscale import Keyscale

    from ..progress import ProgressDisplay
    from ..scenario import UpgradeScenario

CLONE_NAME = f"{JOB_NAME}-clone"
INDENT = 10  # as wide as the time before a step


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the job's program.

    Attributes:
        answer: The API's final answer for it.
        files: The number of files delivered meanwhile.
    """

    answer: dict[str, Any]
    files: int


@dataclass(slots=True)
class UpgradeCourse:
    """The job, its clone, and their way through the scenario.

    Attributes:
        plan: The API's plan of the change to version 2.
        changes: The changes to version 2 and to version 3.
        forked_after: The job's last batch in the savepoint of the clone.
        rows_before_clone: The rows published up to that batch.
        rows_beside: The rows that the job published while its clone ran, too.
    """

    control_plane: Keyscale
    scenario: UpgradeScenario
    directory: Path
    reports: int
    display: ProgressDisplay
    plan: dict[str, Any] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    forked_after: int = -1
    rows_before_clone: int = 0
    rows_beside: int = 0
    job: DemoJob = field(init=False)
    clone: DemoJob = field(init=False)
    _feeder: RunningFeeder = field(init=False)
    _share: float = 0.0
    _counts: dict[str, Callable[[], int]] = field(default_factory=dict)

    def run(self) -> None:
        """Runs the whole scenario, from the first upload to two finished jobs.

        Raises:
            DemoError: A step took too long or ended unexpectedly, or a job ended early.
        """
        source = self.directory / "input"
        before, during_2, during_3, beside = self.scenario.delivered
        versions = write_programs(self.directory / "programs")
        with RunningFeeder(source, self.scenario, self.reports) as self._feeder:
            self.display.step(self.scenario.delivery(self.reports))
            self._start_version_1(versions[0], source)
            self._share = before
            self._show_what_is_wrong()
            version_2 = upload_file(self.control_plane, versions[1])["id"]
            self._plan(version_2)
            self._share = during_2
            self._upgrade(version_2)
            self._share = during_3
            self._fail(upload_file(self.control_plane, versions[2])["id"])
            self._share = beside
            self._clone()
            self._feeder.allow(1.0)
            self._finish()

    def _start_version_1(self, program: Path, source: Path) -> None:
        artifact = upload_file(self.control_plane, program)["id"]
        parameters = {"input": str(source), "output": str(self.directory / "output")}
        body = {"name": JOB_NAME, "spec": self.scenario.specification(artifact, parameters)}
        created = self.control_plane.post("/v1/jobs", body)
        self.job = self._demo_job(created["id"], self.directory / "output")
        self._counts = {"files delivered": self._feeder.delivered, "reports in the sink": self.job.rows}
        self.job.start()
        self.display.step(
            f"job [bold]{JOB_NAME}[/] runs [bold]version 1[/] at parallelism {self.scenario.parallelism}"
            " ([bold]flights_v1.py[/]): it drops reports that come twice, and counts the flights of each aircraft"
        )

    def _show_what_is_wrong(self) -> None:
        self.job.wait_for_rows(int(self.scenario.upgrade_at * self.reports))
        rows = read_rows(self.job.output)
        counted: dict[str, int] = {}
        for row in rows:
            counted[row["tailnum"]] = max(counted.get(row["tailnum"], 0), row["flights"])
        missed = len(rows) - sum(counted.values())
        self.display.step(
            f"[bold red]it counts wrongly[/]: {len(rows):,} reports, but {sum(counted.values()):,} flights."
            f" It misses the {missed:,} that left on time or were cancelled, and so does its state"
        )
        self.display.step("[bold]version 2[/] counts right, and repairs its state from another one, which was right:")
        self._show(_coloured(difference(1, 2)))

    def _plan(self, artifact: str) -> None:
        self._feeder.allow(self._share)  # reports come in while the request waits for its answer
        wanted = {"spec": {"artifact_id": artifact}, "dry_run": True}
        self.plan = self.control_plane.patch(job_path(self.job.id), wanted, if_match="*")["plan"]
        self.display.step("[bold]planned[/]: what will become of each state, before anything stops")
        self._show(make_table(state_rows(self.plan), STATE_COLUMNS))
        for line in summary_lines(self.plan):
            self._show(Text(line))
        if not self.plan["compatible"]:
            raise DemoError("the plan says that version 2 cannot take over the state of version 1")

    def _upgrade(self, artifact: str) -> None:
        self.display.step("[bold]applying version 2[/] while reports come in: its driver starts beside the running one")
        change = self._change(artifact, "version 2: counts flights that left on time")
        if change["status"] != "COMPLETED":
            raise DemoError(f"the change to version 2 ended as {change['status']}: {change['failure']}")
        self.display.step(
            f"[bold green]version 2 runs[/] with all state of version 1; the job stood still for {_downtime(change)}"
        )

    def _fail(self, artifact: str) -> None:
        self.display.step("[bold]version 3[/] has a slip that no plan can see: it shows with the first record")
        self._show(_coloured(difference(2, 3)))
        change = self._change(artifact, "version 3: a slip")
        if change["status"] != "ROLLED_BACK":
            raise DemoError(f"the change to version 3, which raises, ended as {change['status']}")
        self._show(Text(change["failure"]["message"], style="red"))
        self.display.step(
            "[bold green]rolled back by itself[/] to version 2 and the savepoint of the change;"
            f" the job stood still for {_downtime(change)}"
        )

    def _clone(self) -> None:
        """Starts a clone, and waits until both jobs commit batches.

        The clone starts from the savepoint of the failed change.
        """
        failed = self.changes[-1].answer
        self.control_plane.savepoints.keep(self.job.id, failed["id"])
        location = failed["result"]["location"]
        taken = self.control_plane.get_list(job_path(self.job.id, "checkpoints"), "history")["history"]
        self.forked_after = next(each["batch_id"] for each in taken if each["external_path"] == location)
        self.rows_before_clone = len(read_rows(self.job.output, self.forked_after))
        output = self.directory / "clone"
        body = {
            "name": CLONE_NAME,
            "restore_from": {"location": location},
            "spec": {"parallelism": self.scenario.clone_parallelism, "parameters": {"output": str(output)}},
            "start": True,
        }
        self.display.step(
            f"[bold]cloning[/] the job as {CLONE_NAME} at parallelism {self.scenario.clone_parallelism},"
            " from the same savepoint and into a directory of its own, while the original runs on"
        )
        created = self.control_plane.post(job_path(self.job.id, "clone"), body)
        self.clone = clone = self._demo_job(created["id"], output)
        self._counts["reports in the clone"] = lambda: self.rows_before_clone + clone.rows()
        self.clone.wait_for_rows(1)
        before = self.job.rows()
        self._feeder.allow_more(self.scenario.files_per_phase)
        self.job.wait("the original to go on beside its clone", lambda: self.job.rows() > before)
        self.rows_beside = self.job.rows() - before
        self.display.step("both run, each on its own copy of the state, and read what comes in")

    def _finish(self) -> None:
        self.job.wait("the feeder to deliver all reports", lambda: self._feeder.has_ended)
        jobs = (self.job, self.clone)
        for job in jobs:  # both at the same time
            job.begin_drain()
        for job in jobs:
            job.wait_for_status("FINISHED")
        self.display.step("all reports are delivered and processed; both jobs are FINISHED")

    def _change(self, artifact: str, message: str) -> dict[str, Any]:
        files = self._feeder.delivered()
        revision = self.job.show()["revision"]
        body = {"spec": {"artifact_id": artifact}, "message": message}
        accepted = self.control_plane.patch(job_path(self.job.id), body, if_match=f'"{revision}"')

        def show_phase(phase: dict[str, Any]) -> None:
            self._show(phase_line(phase).strip())
            self._feeder.allow_more(self.scenario.files_per_phase)

        answer: dict[str, Any] = follow(self.control_plane, accepted["id"], show_phase, self._look)
        self.changes.append(Change(answer, self._feeder.delivered() - files))
        return answer

    def _demo_job(self, job_id: str, output: Path) -> DemoJob:
        return DemoJob(self.control_plane, job_id, output, self._look, self.scenario.step_timeout_s)

    def _look(self) -> None:
        """Shows the counts, and allows the next file when due."""
        self._feeder.allow_next(self._share)
        self.display.update({name: count() for name, count in self._counts.items()})

    def _show(self, what: RenderableType) -> None:
        self.display.console.print(Padding(what, (0, 0, 0, INDENT), expand=False))


def _downtime(change: dict[str, Any]) -> str:
    return duration_text(change["downtime_ms"]) if change["downtime_ms"] is not None else "an unknown time"


def _coloured(lines: Sequence[str]) -> Text:
    styles = {"+": "green", "-": "red"}
    return Text("\n").join(Text(line, style=styles[line[0]]) for line in lines)
