"""Several control planes on one database: the leader may die, hang or move, and running jobs notice nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from keyscale.api.cli.process import free_port
from keyscale.deploy.demo.home_processes import end_processes, processes_of
from tests.support.control_plane.flights_job import FlightsJob
from tests.support.control_plane.running_control_plane import replicas, running_control_plane
from tests.support.servers.postgres import running_postgres
from tests.support.short_form import short_form
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.control_plane.running_control_plane import RunningControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def heartbeat(job: FlightsJob) -> int:
    return int(job.show()["attempt"]["heartbeat_at_ms"] or 0)


def wait_for_a_heartbeat(job: FlightsJob) -> None:
    before = heartbeat(job)
    job.wait("the driver to be heard", lambda: heartbeat(job) > before)


@pytest.mark.parametrize("fault", short_form(["killed", "stopped"], ["killed"]))
def test_a_running_job_notices_nothing_of_a_leader_that_is_lost(fault: str) -> None:
    with replicas() as (first, second):
        wait_until(first.leads, what="the first one to lead")
        assert not second.leads()
        job = FlightsJob(first)
        job.create(parallelism=2)
        job.start()
        job.deliver_and_wait(4)
        driver = job.show()["attempt"]["pid"]
        if fault == "killed":
            first.kill()
        else:
            first.stop_by_signal()
        job.control_plane = second
        wait_until(second.leads, 120, what="the second one to lead")
        wait_for_a_heartbeat(job)
        job.deliver_and_wait(4)
        if fault == "stopped":
            first.go_on()
            wait_until(lambda: not first.leads(), what="the first one's notice that it leads no more")
        shown = job.show()
        assert (shown["attempt"]["number"], shown["attempt"]["pid"], shown["restarts"]) == (1, driver, 0)
        job.finish()
        assert job.wrong_checks() == []


@pytest.mark.exhaustive
def test_a_driver_finds_a_control_plane_that_was_started_again_on_another_port(
    control_plane: RunningControlPlane,
) -> None:
    job = FlightsJob(control_plane)
    job.create(parallelism=2)
    job.start()
    job.deliver_and_wait(4)
    driver = psutil.Process(job.show()["attempt"]["pid"])
    control_plane.kill()
    control_plane.start_again(free_port())
    wait_for_a_heartbeat(job)
    job.deliver_and_wait(4)
    shown = job.show()
    assert (shown["attempt"]["number"], shown["attempt"]["pid"], shown["restarts"]) == (1, driver.pid, 0)
    job.finish()
    assert job.wrong_checks() == []


@pytest.mark.exhaustive
def test_a_control_plane_that_knows_only_the_database_and_the_store_carries_on_every_job() -> None:
    """All processes and local files are gone: of the job, only its artifact, its checkpoints and its log are left."""
    with running_postgres() as postgres, tempfile.TemporaryDirectory(prefix="keyscale-kept-") as kept:
        shared = {"KEYSCALE_DATABASE_URL": postgres.url, "KEYSCALE_STORE_URL": (Path(kept) / "store").as_uri()}
        with running_control_plane(shared) as first:
            job = FlightsJob(first, data=Path(kept) / "data")
            job.create(parallelism=2)
            job.start()
            job.deliver_and_wait(6)
            job.wait("a checkpoint", lambda: first.api.get(f"/jobs/{job.id}/checkpoints")["latest"]["completed"])
            job.deliver_and_wait(4)
            first.kill()
            end_processes(processes_of(first.home))
        assert not first.home.exists()
        with running_control_plane(shared) as second:
            job.control_plane = second
            job.wait("the job to run again", lambda: job.show()["status"] == "RUNNING" and job.show()["restarts"] == 1)
            job.deliver_and_wait(4)
            assert job.show()["attempt"]["restore_from"] is not None
            job.finish()
            assert job.wrong_checks() == []
