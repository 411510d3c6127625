"""Several control planes on one database: the leader may die, hang or move, and running jobs notice nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from keyscale.api.cli.process import free_port
from keyscale.deploy.demo.home_processes import processes_of
from keyscale.installation import IMPORT_PATH
from tests.support.control_plane.counts_job import CountsJob
from tests.support.control_plane.flights_job import FlightsJob
from tests.support.control_plane.running_control_plane import replicas, running_control_plane
from tests.support.servers.host_clock import moving_modules, set_clock
from tests.support.servers.postgres import running_postgres
from tests.support.servers.s3_server import RestartableS3Server
from tests.support.servers.spark_cluster import running_spark_cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.control_plane.running_control_plane import RunningControlPlane
    from tests.support.servers.spark_cluster import SparkCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]


def heartbeat(job: FlightsJob) -> int:
    return int(job.show()["status"]["attempt"]["heartbeat_at_ms"] or 0)


def wait_for_a_heartbeat(job: FlightsJob) -> None:
    before = heartbeat(job)
    job.wait("the driver to be heard", lambda: heartbeat(job) > before)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_a_running_job_notices_nothing_of_a_leader_that_is_lost(fault: str) -> None:
    with replicas() as (first, second):
        wait_until(first.leads, what="the first one to lead")
        assert not second.leads()
        job = FlightsJob(first)
        job.create(parallelism=2)
        job.start()
        job.deliver_and_wait(4)
        driver = job.show()["status"]["attempt"]["pid"]
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
        assert (
            shown["status"]["attempt"]["number"],
            shown["status"]["attempt"]["pid"],
            shown["status"]["restarts"],
        ) == (1, driver, 0)
        job.finish()
        assert job.wrong_checks() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("ahead_s", [900, -900])
def test_a_job_is_restarted_and_rescaled_by_leaders_whose_clocks_differ_by_minutes(
    tmp_path: Path, ahead_s: int
) -> None:
    clock = tmp_path / "clock"
    set_clock(clock, ahead_s)
    python_path = [moving_modules(tmp_path / "modules", clock), IMPORT_PATH, os.environ.get("PYTHONPATH", "")]
    with replicas({"PYTHONPATH": os.pathsep.join(map(str, python_path))}) as (first, second):
        job = FlightsJob(first)
        job.create(parallelism=1, rescale_mode="STANDBY")
        job.start()
        job.deliver_and_wait(4)
        created_s = job.show()["created_at_ms"] / 1000
        assert abs(created_s - time.time() - ahead_s) < abs(ahead_s) / 2, "the first one's clock differs"
        psutil.Process(job.show()["status"]["attempt"]["pid"]).kill()
        job.deliver_and_wait(4)
        before = job.show()
        first.kill()
        job.control_plane = second
        wait_until(second.leads, 120, what="the second one to lead")
        wait_for_a_heartbeat(job)
        job.deliver_and_wait(4)
        shown = job.show()
        for of in (before, shown):
            assert (of["status"]["attempt"]["number"], of["status"]["restarts"]) == (2, 1)
        assert shown["status"]["attempt"]["pid"] == before["status"]["attempt"]["pid"]
        psutil.Process(shown["status"]["attempt"]["pid"]).kill()
        job.deliver_and_wait(4)
        rescale = job.rescale(2)
        job.wait("the rescale", lambda: job.show_rescale(rescale)["status"] == "COMPLETED")
        job.deliver_and_wait(4)
        job.finish()
        assert job.wrong_checks() == []


@pytest.mark.exhaustive
def test_a_driver_goes_on_without_a_control_plane_and_finds_the_next_one_on_another_port(
    control_plane: RunningControlPlane,
) -> None:
    job = FlightsJob(control_plane)
    job.create(parallelism=2)
    job.start()
    job.deliver_and_wait(4)
    driver = psutil.Process(job.show()["status"]["attempt"]["pid"])
    control_plane.kill()
    job.deliver_and_wait(6)
    control_plane.start_again(free_port())
    wait_for_a_heartbeat(job)
    job.deliver_and_wait(4)
    shown = job.show()
    assert (shown["status"]["attempt"]["number"], shown["status"]["attempt"]["pid"], shown["status"]["restarts"]) == (
        1,
        driver.pid,
        0,
    )
    job.finish()
    assert job.wrong_checks() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["files and local Spark", "S3 and a Spark cluster"])
def test_a_control_plane_that_knows_only_the_database_and_the_store_carries_on_every_job(
    where: str, tmp_path: Path
) -> None:
    """All processes and local files are gone: of the jobs, only their artifacts, checkpoints and logs are left."""
    with ExitStack() as kept:
        directory = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="keyscale-kept-")))
        shared = {"KEYSCALE_DATABASE_URL": kept.enter_context(running_postgres()).url}
        is_on_cluster = where != "files and local Spark"
        if is_on_cluster:
            bucket = RestartableS3Server()
            kept.callback(bucket.go_away)
            shared |= {"KEYSCALE_STORE_URL": f"s3://{bucket.server.new_bucket()}/jobs", **bucket.server.variables}
        else:
            shared["KEYSCALE_STORE_URL"] = (directory / "store").as_uri()
        with surroundings(shared, tmp_path / "first", is_on_cluster=is_on_cluster) as first:
            flights = FlightsJob(first, data=directory / "data")
            flights.create(parallelism=2)
            counts = CountsJob(lambda: flights.control_plane.api, directory / "counts")
            executors = {"spark_conf": {"spark.executor.memory": "512m"}} if is_on_cluster else {}
            counts.create(1, parallelism=1, checkpoints={"interval_ms": 1000}, **executors)
            counts.act("start")
            flights.start()
            counts.deliver()
            flights.deliver_and_wait(6)
            counts.wait_for_all()
            for job_id in (flights.id, counts.id):
                latest = f"/v1/jobs/{job_id}/checkpoints"
                flights.wait("a checkpoint", lambda latest=latest: first.api.get(latest)["latest"]["completed"])
            counts.deliver()
            flights.deliver_and_wait(4)
            before = {
                job_id: first.api.get(f"/v1/jobs/{job_id}")["status"]["attempt"]["number"]
                for job_id in (flights.id, counts.id)
            }
            first.kill()
            for process in processes_of(first.home):
                process.kill()
        assert not first.home.exists()
        with surroundings(shared, tmp_path / "second", is_on_cluster=is_on_cluster) as second:
            flights.control_plane = second
            for show in (flights.show, counts.show):
                flights.wait(
                    "the job to run again",
                    lambda show=show: is_run_by_another(show(), before),
                )
                assert show()["status"]["attempt"]["restore_from"] is not None
            counts.deliver()
            flights.deliver_and_wait(4)
            counts.wait_for_all()
            counts.act("stop", {})
            flights.finish()
            assert flights.wrong_checks() == []


def is_run_by_another(job: Any, before: Mapping[str, int]) -> bool:
    """Whether a job is run by a newer attempt than before."""
    return job["status"]["state"] == "RUNNING" and job["status"]["attempt"]["number"] > before[job["id"]]


@contextmanager
def surroundings(shared: Mapping[str, str], directory: Path, *, is_on_cluster: bool) -> Iterator[RunningControlPlane]:
    """A control plane and perhaps a Spark cluster, of which nothing is left afterwards."""
    of_cluster: list[psutil.Process] = []
    with ExitStack() as stack:
        settings = dict(shared)
        cluster: SparkCluster | None = None
        if is_on_cluster:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)  # last: it holds the pid files
            store = {name: value for name, value in shared.items() if name.startswith("AWS_")}
            cluster = stack.enter_context(
                running_spark_cluster(directory, workers=2, cores=2, memory_mb=2048, variables=store)
            )
            settings["KEYSCALE_SPARK_MASTER"] = cluster.master
        yield stack.enter_context(running_control_plane(settings))
        of_cluster = [] if cluster is None else cluster.processes()
        assert bool(of_cluster) is is_on_cluster
    psutil.wait_procs(of_cluster, timeout=60)
    assert not [process for process in of_cluster if process.is_running()]
    assert not directory.exists()
