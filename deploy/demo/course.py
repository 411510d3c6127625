"""Runs a scenario with faults, through the public API only."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyscale.api.cli.artifacts import upload_file
from keyscale.api.cli.operations import follow
from keyscale.clock import now_ms
from keyscale.installation import EXAMPLES

from .demo_job import DemoJob
from .errors import DemoError
from .running_feeder import RunningFeeder

if TYPE_CHECKING:
    from keyscale.client.keyscale import Keyscale

    from .progress import ProgressDisplay
    from .scenario import RescaleScenario

SCRIPT = EXAMPLES / "flights.py"
JOB_NAME = "flights"


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the job recovered from the kill of its driver."""

    killed_attempt: int
    new_attempt: int
    restored_from: str | None
    rows_before: int
    downtime_ms: int


@dataclass(slots=True)
class Course:
    """One job, and its way through the scenario."""

    control_plane: Keyscale
    scenario: RescaleScenario
    directory: Path
    reports: int
    display: ProgressDisplay
    recovery: Recovery | None = None
    rescales: list[dict[str, Any]] = field(default_factory=list)
    rows_before_rescales: list[int] = field(default_factory=list)
    _feeder: RunningFeeder = field(init=False)
    _job: DemoJob = field(init=False)

    @property
    def output(self) -> Path:
        """The directory of the job's sink."""
        return self.directory / "output"

    def run(self) -> None:
        """Runs the whole scenario, from the upload to a finished job.

        Raises:
            DemoError: A step took too long, or the job ended early.
        """
        source = self.directory / "input"
        with RunningFeeder(source, self.scenario, self.reports) as self._feeder:  # prepares itself while the job starts
            self.display.step(self.scenario.delivery(self.reports))
            self._start_job(source)
            hold_at_kill, *holds_at_rescales = self.scenario.holds
            self._feeder.allow(hold_at_kill)
            self._kill_driver_at(self.scenario.kill_at, held=hold_at_kill, following=holds_at_rescales[0])
            for hold, (moment, parallelism) in zip(holds_at_rescales, self.scenario.rescales, strict=True):
                self._feeder.allow(hold)
                self._rescale_at(moment, parallelism)
            self._feeder.allow(1.0)
            self._finish()

    def checkpoints(self) -> Any:
        """Returns the statistics of the job's checkpoints."""
        return self._job.checkpoints()

    def figures(self) -> Any:
        """Returns the metrics that the job's page shows."""
        return self._job.show()["metrics"]

    def _start_job(self, source: Path) -> None:
        artifact = upload_file(self.control_plane, SCRIPT)
        self.display.step(f"uploaded {SCRIPT.name}, {artifact['size_bytes']:,} bytes")
        parameters = {"input": str(source), "output": str(self.output)}
        specification = self.scenario.specification(artifact["id"], parameters)
        created = self.control_plane.post("/v1/jobs", {"name": JOB_NAME, "spec": specification})
        self._job = DemoJob(
            self.control_plane, created["id"], self.output, self._show_counts, self.scenario.step_timeout_s
        )
        self._job.start()
        self.display.step(f"job [bold]{JOB_NAME}[/] runs at parallelism {self.scenario.parallelism}")

    def _kill_driver_at(self, moment: float, *, held: float, following: float) -> None:
        """Kills the driver just after a commit.

        More input waits both before and after the kill.
        """
        job = self._job
        self._wait_for_share(moment)
        job.wait("a completed checkpoint", lambda: job.checkpoints()["counts"]["completed"] > 0)
        commit = job.attempt()["last_commit_batch_id"]
        self._feeder.allow((held + following) / 2)  # a quick job has processed all available input
        # Just after a commit the next batch is being processed: the worst moment.
        attempt = job.wait("a commit", lambda: (run := job.attempt())["last_commit_batch_id"] != commit and run)
        rows_before = job.rows()
        os.kill(attempt["pid"], signal.SIGKILL)
        killed_at_ms = now_ms()
        self._feeder.allow(following)
        self.display.step(
            f"[bold red]killed the driver[/] (process {attempt['pid']}) with {rows_before:,} reports in the sink"
        )
        new = job.wait(
            "the job to recover by itself",
            lambda: (run := job.attempt())["number"] > attempt["number"] and run["first_commit_at_ms"] and run,
        )
        self.recovery = Recovery(
            killed_attempt=attempt["number"],
            new_attempt=new["number"],
            restored_from=new["restore_from"],
            rows_before=rows_before,
            downtime_ms=new["first_commit_at_ms"] - killed_at_ms,
        )
        source = Path(new["restore_from"] or "nothing").parent.name
        self.display.step(
            f"it recovered by itself from {source}: first commit {self.recovery.downtime_ms:,} ms after the kill"
        )

    def _rescale_at(self, moment: float, parallelism: int) -> None:
        self._wait_for_share(moment)
        before = self._job.show()["spec"]["parallelism"]
        self.rows_before_rescales.append(self._job.rows())
        self.display.step(f"rescaling {before} → {parallelism}")
        accepted = self.control_plane.jobs.rescale(self._job.id, parallelism=parallelism)
        rescale = follow(self.control_plane, str(accepted.id), on_poll=self._show_counts)
        self.rescales.append(rescale)
        if rescale["status"] != "COMPLETED":
            raise DemoError(f"the rescale {before} -> {parallelism} ended as {rescale['status']}: {rescale['failure']}")
        self.display.step(f"runs at parallelism {parallelism}; downtime {rescale['downtime_ms']:,} ms")

    def _finish(self) -> None:
        self._job.wait("the feeder to deliver all reports", lambda: self._feeder.has_ended)
        self._job.drain()
        self.display.step("all reports are delivered and processed; the job is FINISHED")

    def _wait_for_share(self, share: float) -> None:
        self._job.wait_for_rows(int(share * self.reports))

    def _show_counts(self) -> None:
        self.display.update({"files delivered": self._feeder.delivered(), "reports in the sink": self._job.rows()})
