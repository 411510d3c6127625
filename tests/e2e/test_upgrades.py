"""State outlives its program: upgraded, taken back by itself, and forked beside the running job; every count exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.api.cli.client import job_path
from tests.support.control_plane.command_line import keyscale
from tests.support.control_plane.counts_job import RAISES, CountsJob
from tests.support.control_plane.running_control_plane import running_control_plane

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_an_upgrade_keeps_state_one_that_raises_is_taken_back_and_a_clone_runs_beside_the_job(tmp_path: Path) -> None:
    with running_control_plane() as platform:
        job = CountsJob(lambda: platform.api, tmp_path)
        job.create(1, parallelism=2, max_parallelism=16, checkpoints={"interval_ms": 2000})
        job.act("start")
        job.deliver()
        job.wait_for_all()

        assert job.ended(job.update(2))["status"] == "COMPLETED"
        job.deliver()
        job.wait_for_all()
        newest = [row["version"] for row in job.rows() if row["count"] == job.files]
        assert set(newest) == {2}

        taken = keyscale(platform, "savepoints", "trigger", "counts", "--id", "fork")
        assert taken.exit_code == 0, taken.stderr
        forked_at = job.files
        options = ("--from", "fork", "-p", "3", "-P", f"output={tmp_path / 'clone'}", "--start")
        cloned = keyscale(platform, "jobs", "clone", "counts", "copy", *options)
        assert cloned.exit_code == 0, cloned.stderr

        failed = job.ended(job.update(RAISES))
        assert (failed["status"], "version 3 counts nothing" in failed["failure"]["message"]) == ("ROLLED_BACK", True)
        job.deliver()
        job.wait_for_all()
        job.wait_for_all(tmp_path / "clone", after=forked_at)
        shown = [(each["status"], each["revision"], each["parallelism"]) for each in map(job.show, ("counts", "copy"))]
        assert shown == [("RUNNING", 2, 2), ("RUNNING", 1, 3)]
        for name in ("counts", "copy"):
            platform.api.post(job_path(name, "cancel"))
