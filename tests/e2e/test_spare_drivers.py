"""A spare driver takes a start, a restart after a kill, and an upgrade; every number is right."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import psutil
import pytest

from keyscale.api.launching.isolation import owner_of
from tests.support.control_plane.counts_job import SECONDS, CountsJob
from tests.support.control_plane.running_control_plane import running_control_plane
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.exhaustive, pytest.mark.timeout(900)]

USERS = pytest.param(
    "50000-50999", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each job a user of its own")
)


def taken(home: Path, job: str) -> list[str]:
    """Returns the spare of each attempt, in order; empty: none."""
    runs = sorted((home / "runs" / job).glob("[1-9]*"), key=lambda run: int(run.name))
    return [json.loads((run / "process.json").read_text()).get("spare", "") for run in runs]


def waiting(home: Path, job: str = "none") -> Path:
    """Waits for a warm spare without a run; returns its directory."""

    def look() -> Path | None:
        ready = (file.parent for file in home.glob("spares/*/ready"))
        return next((spare for spare in ready if spare.name not in taken(home, job)), None)

    return wait_until(look, SECONDS, what="a warm spare")


@pytest.mark.parametrize("users", ["off", USERS])
def test_a_spare_takes_the_next_start_of_a_job(users: str) -> None:
    with running_control_plane({"KEYSCALE_JOB_USERS": users, "KEYSCALE_SPARE_DRIVERS": "1"}) as control_plane:
        home = control_plane.home
        directory = home.parent / "jobs"
        directory.mkdir(mode=0o755)
        counts = CountsJob(lambda: control_plane.api, directory / "counts")
        counts.output.mkdir()
        counts.output.chmod(0o777)
        counts.create(1, parallelism=2)
        if users == "off":
            waiting(home)
        counts.deliver()
        counts.act("start")
        counts.wait_for_all()
        spare = waiting(home, counts.id)
        assert owner_of(spare / "work") == owner_of(home / "runs" / counts.id / "state"), "it is of the job's user"

        psutil.Process(counts.show()["status"]["attempt"]["pid"]).kill()
        counts.deliver()
        counts.wait_for_all()
        waiting(home, counts.id)
        change = counts.ended(counts.update(2))
        assert (change["status"], change["failure"]) == ("COMPLETED", None)
        counts.wait_for_all()

        first, *later = taken(home, counts.id)
        assert bool(first) is (users == "off"), "a new job with a user of its own starts without a spare"
        assert (len(later), all(later)) == (2, True)
        log = (home / "runs" / counts.id / "2" / "driver.log").read_text()
        assert "the spare driver has its run" in log
        assert "warm after" not in log, "the log begins with the run"
        counts.act("stop")
        wait_until(lambda: counts.show()["status"]["state"] == "STOPPED", SECONDS, what="the stop")
        control_plane.process.stop()
        left = [process for process in psutil.process_iter() if str(home / "spares") in _work_of(process)]
        wait_until(lambda: not [each for each in left if each.is_running()], what="the end of the spares")


def _work_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("KEYSCALE_WORK_DIR", "")
    except psutil.Error:
        return ""
