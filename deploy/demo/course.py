"""Runs a scenario on a running control plane, through the public API only, with the faults of a bad day."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from keyscale.api.cli.artifacts import upload_file
from keyscale.api.cli.client import job_path
from keyscale.api.cli.rescale import follow
from keyscale.clock import now_ms
from keyscale.deploy.demo.errors import DemoError
from keyscale.deploy.demo.feeder import file_count
from keyscale.deploy.demo.published_output import PublishedOutput
from keyscale.deploy.demo.waiting import wait_for
from keyscale.installation import EXAMPLES, IMPORT_PATH

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.api.cli.client import ControlPlane
    from keyscale.deploy.demo.progress import ProgressDisplay
    from keyscale.deploy.demo.scenario import Scenario

SCRIPT = EXAMPLES / "flights.py"
JOB_NAME = "flights"

Observed = TypeVar("Observed")


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

    control_plane: ControlPlane
    scenario: Scenario
    directory: Path
    reports: int
    display: ProgressDisplay
    job_id: str = ""
    recovery: Recovery | None = None
    rescales: list[dict[str, Any]] = field(default_factory=list)
    rows_before_rescales: list[int] = field(default_factory=list)
    _feeder: subprocess.Popen[bytes] | None = None
    _published: PublishedOutput = field(init=False)

    def __post_init__(self) -> None:
        self._published = PublishedOutput(self.output)

    @property
    def input(self) -> Path:
        """The directory into which the feeder delivers, and from which the job reads."""
        return self.directory / "input"

    @property
    def output(self) -> Path:
        """The directory of the job's sink."""
        return self.directory / "output"

    @property
    def _allowance(self) -> Path:
        return self.directory / "allowance"

    def run(self) -> None:
        """Runs the whole scenario, from the upload to a finished job.

        Raises:
            DemoError: A step took too long, or the job ended early.
        """
        try:
            self._start_feeder()
            self._start_job()
            hold_at_kill, *holds_at_rescales = self.scenario.holds
            self._allow(hold_at_kill)
            self._kill_driver_at(self.scenario.kill_at, held=hold_at_kill, following=holds_at_rescales[0])
            for hold, (moment, parallelism) in zip(holds_at_rescales, self.scenario.rescales, strict=True):
                self._allow(hold)
                self._rescale_at(moment, parallelism)
            self._allow(1.0)
            self._finish()
        finally:
            if self._feeder is not None and self._feeder.poll() is None:
                self._feeder.kill()
                self._feeder.wait()

    def _start_feeder(self) -> None:
        """Starts the feeder, which prepares itself while the job starts, and then waits for its allowance."""
        self.input.mkdir(parents=True)
        command = [sys.executable, "-P", "-m", "keyscale.deploy.demo.feeder", "--input", str(self.input)]
        command += ["--files", str(self.scenario.files), "--seconds", str(self.scenario.seconds)]
        command += ["--seed", str(self.scenario.seed), "--reports", str(self.reports)]
        command += ["--allowance", str(self._allowance)]
        self._allow(0.0)
        environment = {**os.environ, "PYTHONPATH": str(IMPORT_PATH)}
        self._feeder = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)  # noqa: S603 - our program
        self.display.step(
            f"the feeder delivers {self.reports:,} reports over {self.scenario.seconds:.0f} s, a tenth twice"
        )

    def _start_job(self) -> None:
        artifact = upload_file(self.control_plane, SCRIPT)
        self.display.step(f"uploaded {SCRIPT.name}, {artifact['size_bytes']:,} bytes")
        job = self.control_plane.post(
            "/jobs",
            {
                "name": JOB_NAME,
                "artifact_id": artifact["id"],
                "parallelism": self.scenario.parallelism,
                "parameters": {"input": str(self.input), "output": str(self.output)},
                "checkpoints": {"interval_ms": self.scenario.checkpoint_interval_ms, "retained_count": 3},
            },
        )
        self.job_id = job["id"]
        self.control_plane.post(job_path(self.job_id, "start"))
        self._wait("the job to run", lambda: self._job()["status"] == "RUNNING")
        self.display.step(f"job [bold]{JOB_NAME}[/] runs at parallelism {self.scenario.parallelism}")

    def _allow(self, share: float) -> None:
        """Allows the feeder a share of its files; 1.0 includes the file with the last repeats."""
        files = self.scenario.files + 1 if share >= 1.0 else int(share * self.scenario.files)
        fresh = self._allowance.with_suffix(".new")
        fresh.write_text(str(files))
        fresh.rename(self._allowance)

    def _kill_driver_at(self, moment: float, *, held: float, following: float) -> None:
        """Kills the driver just after a commit, with more input waiting both before and after the kill."""
        self._wait_for_rows(moment)
        self._wait("a completed checkpoint", lambda: self._checkpoints()["counts"]["completed"] > 0)
        commit = self._attempt()["last_commit_batch_id"]
        self._allow((held + following) / 2)  # a quick job has processed all available input
        # Just after a commit the next batch is being processed: the worst moment.
        attempt = self._wait("a commit", lambda: (run := self._attempt())["last_commit_batch_id"] != commit and run)
        rows_before = self._published.count_rows()
        os.kill(attempt["pid"], signal.SIGKILL)
        killed_at_ms = now_ms()
        self._allow(following)
        self.display.step(
            f"[bold red]killed the driver[/] (process {attempt['pid']}) with {rows_before:,} reports in the sink"
        )
        new = self._wait(
            "the job to recover by itself",
            lambda: (run := self._attempt())["number"] > attempt["number"] and run["first_commit_at_ms"] and run,
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
        self._wait_for_rows(moment)
        before = self._job()["parallelism"]
        self.rows_before_rescales.append(self._published.count_rows())
        self.display.step(f"rescaling {before} → {parallelism}")
        accepted = self.control_plane.post(job_path(self.job_id, "rescale"), {"parallelism": parallelism})
        rescale = follow(
            self.control_plane,
            self.job_id,
            accepted["id"],
            on_look=self._show_counts,
        )
        self.rescales.append(rescale)
        if rescale["status"] != "COMPLETED":
            raise DemoError(f"the rescale {before} -> {parallelism} ended as {rescale['status']}: {rescale['failure']}")
        self.display.step(f"runs at parallelism {parallelism}; downtime {rescale['downtime_ms']:,} ms")

    def _finish(self) -> None:
        self._wait(
            "the feeder to deliver all reports", lambda: self._feeder is not None and self._feeder.poll() is not None
        )
        self.control_plane.post(job_path(self.job_id, "stop"), {"drain": True})
        self._wait("the job to finish", lambda: self._job()["status"] == "FINISHED")
        self.display.step(f"all reports are delivered and processed; the job is {self._job()['status']}")

    def _wait_for_rows(self, share: float) -> None:
        wanted = int(share * self.reports)
        self._wait(f"{wanted:,} reports in the sink", lambda: self._published.count_rows() >= wanted)

    def _wait(self, what: str, observe: Callable[[], Observed]) -> Observed:
        def look() -> Observed:
            self._show_counts()
            return observe()

        return wait_for(what, look, self._job, timeout_s=self.scenario.step_timeout_s)

    def _show_counts(self) -> None:
        self.display.update(file_count(self.input), self._published.count_rows())

    def _job(self) -> Any:
        return self.control_plane.get(job_path(self.job_id))

    def _attempt(self) -> Any:
        return self._job()["attempt"]

    def _checkpoints(self) -> Any:
        return self.control_plane.get(job_path(self.job_id, "checkpoints"))
