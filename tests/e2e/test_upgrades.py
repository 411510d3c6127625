"""State outlives its program: upgraded, taken back by itself, and forked beside the running job; every count exact."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.cli.artifacts import upload_file
from keyscale.api.cli.client import job_path
from keyscale.deploy.demo.feeder import write_atomically
from tests.support.control_plane.command_line import keyscale
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.drivers.driver_process import sink_rows
from tests.support.repository import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SCRIPT = ROOT / "tests" / "support" / "jobs" / "versioned_job.py"
KEYS = [f"key-{number}" for number in range(8)]
SECONDS = 300.0


class Counts:
    """The job `counts`, and the input that it shares with its clone: every file has a record of each key."""

    def __init__(self, platform: RunningControlPlane, directory: Path) -> None:
        self.platform, self.directory = platform, directory
        self.files = 0
        (directory / "input").mkdir()

    def deliver(self) -> None:
        write_atomically(self.directory / "input", f"{self.files:04d}.json", [{"key": key} for key in KEYS])
        self.files += 1

    def counts(self, output: str) -> Counter[tuple[str, int]]:
        return Counter((row["key"], row["count"]) for row in sink_rows(self.directory / output))

    def wait_for(self, output: str, numbers: range) -> None:
        """Waits until the output has as many rows as it should, and compares every one."""
        exact = Counter((key, number) for key in KEYS for number in numbers)
        wait_until(
            lambda: self.counts(output).total() >= exact.total(),
            SECONDS,
            what=f"{exact.total()} rows in {output}",
            poll=0.5,
        )
        assert self.counts(output) == exact

    def program(self, version: int) -> str:
        file = self.directory / f"counts_{version}.py"
        file.write_text(SCRIPT.read_text(encoding="utf-8").replace("VERSION = 1\n", f"VERSION = {version}\n"))
        return str(upload_file(self.platform.api, file)["id"])

    def show(self, name: str = "counts") -> Any:
        return self.platform.api.get(job_path(name))

    def update(self, version: int) -> str:
        body = {"artifact_id": self.program(version)}
        revision = self.show()["revision"]
        answer = self.platform.api.patch(job_path("counts"), body, if_match=f'"{revision}"')
        return str(answer["change"]["id"])

    def ended(self, change_id: str) -> Any:
        """Waits until a change has ended, while input comes in."""

        def look() -> Any:
            self.deliver()
            change = self.platform.api.get(job_path("counts", "changes", change_id))
            return change if change["status"] != "IN_PROGRESS" else None

        return wait_until(look, SECONDS, what="the end of the change", poll=1.0)


def test_an_upgrade_keeps_state_one_that_raises_is_taken_back_and_a_clone_runs_beside_the_job(tmp_path: Path) -> None:
    with running_control_plane() as platform:
        job = Counts(platform, tmp_path)
        parameters = {"input": str(tmp_path / "input"), "output": str(tmp_path / "out")}
        body = {"name": "counts", "artifact_id": job.program(1), "parallelism": 2, "max_parallelism": 16}
        platform.api.post("/jobs", {**body, "parameters": parameters, "checkpoints": {"interval_ms": 2000}})
        platform.api.post(job_path("counts", "start"))
        job.deliver()
        job.wait_for("out", range(1, 2))

        assert job.ended(job.update(2))["status"] == "COMPLETED"
        job.deliver()
        job.wait_for("out", range(1, job.files + 1))
        newest = [row["version"] for row in sink_rows(tmp_path / "out") if row["count"] == job.files]
        assert set(newest) == {2}

        taken = keyscale(platform, "savepoints", "trigger", "counts", "--id", "fork")
        assert taken.exit_code == 0, taken.stderr
        forked_at = job.files
        options = ("--from", "fork", "-p", "3", "-P", f"output={tmp_path / 'clone'}", "--start")
        cloned = keyscale(platform, "jobs", "clone", "counts", "copy", *options)
        assert cloned.exit_code == 0, cloned.stderr

        failed = job.ended(job.update(3))
        assert (failed["status"], "version 3 counts nothing" in failed["failure"]["message"]) == ("ROLLED_BACK", True)
        job.deliver()
        job.wait_for("out", range(1, job.files + 1))
        job.wait_for("clone", range(forked_at + 1, job.files + 1))
        shown = [(each["status"], each["revision"], each["parallelism"]) for each in map(job.show, ("counts", "copy"))]
        assert shown == [("RUNNING", 2, 2), ("RUNNING", 1, 3)]
        for name in ("counts", "copy"):
            platform.api.post(job_path(name, "cancel"))
