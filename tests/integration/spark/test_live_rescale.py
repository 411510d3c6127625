"""A driver rescales its job itself, on real Spark: each record has its effect once, without a stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.api.launching.driver_command import share_of_cluster
from keyscale.jobs.protocol.messages import Command, Heartbeat, ReservedAttempt
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.vocabulary import CommandKind, DriverState
from tests.support.drivers.driver_process import ChainInput, ChainJob, DriverProcess, sink_rows
from tests.support.servers.s3_server import RestartableS3Server
from tests.support.servers.spark_cluster import running_spark_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

FILES = 60


@pytest.fixture
def job(tmp_path: Path) -> ChainJob:
    job = ChainJob(tmp_path, ChainInput.write(tmp_path / "in", seed=1, files=FILES, records=30))
    job.checkpoints = CheckpointSettings(interval_ms=3000)
    return job


@pytest.fixture
def s3() -> Iterator[RestartableS3Server]:
    server = RestartableS3Server()
    yield server
    server.go_away()


def reserved(job: ChainJob, attempt: int, parallelism: int) -> ReservedAttempt:
    return ReservedAttempt(token=f"token of {attempt}", assignment=job.assignment(attempt, parallelism=parallelism))


def command_to(job: ChainJob, attempt: int, parallelism: int) -> Command:
    return Command(
        id=f"to-{parallelism}-{attempt}",
        kind=CommandKind.RESCALE,
        next_attempt=reserved(job, attempt, parallelism),
        return_attempt=reserved(job, attempt + 1, job.parallelism),
    )


def rescale(job: ChainJob, driver: DriverProcess, attempt: int, parallelism: int) -> Heartbeat:
    """Rescales to the attempt of a number; returns the heartbeat after it."""
    command = command_to(job, attempt, parallelism)
    driver.command(command)
    result = driver.result(command.id)
    assert (result.status, result.failure) == ("COMPLETED", None), driver.log[-5000:]

    def after() -> Heartbeat | None:
        beat = driver.heartbeat()
        return beat if beat is not None and beat.rescale is not None and beat.rescale.committed_at_ms else None

    beat: Heartbeat = driver.wait_for(after, "the first commit of the next attempt")
    assert (beat.attempt, beat.state) == (attempt, DriverState.RUNNING)
    return beat


def test_a_job_is_rescaled_from_2_to_4_to_1_to_3_without_a_stop(job: ChainJob, drivers: list[DriverProcess]) -> None:
    driver = DriverProcess.start(job.home / "first", cores=5)
    drivers.append(driver)
    driver.assign(job.assignment(1))
    done = 0
    for attempt, parallelism in ((2, 4), (4, 1), (6, 3)):
        driver.wait_for(lambda: len(list(job.output.glob("batch=*"))) > done + 4, "some batches")  # noqa: B023
        beat = rescale(job, driver, attempt, parallelism)
        done = len(list(job.output.glob("batch=*")))
        assert beat.slots == 4
        assert beat.rescale is not None
        assert (beat.rescale.to_attempt, beat.rescale.failure) == (attempt, None)
        print(parallelism, beat.rescale)  # noqa: T201 - for whoever measures
    assert len(sink_rows(job.output)) < len(job.input.expected), "all rescales were done before the input's end"
    driver.wait_for(job.is_complete, "all output")
    driver.command(Command(id="stop", kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id="s1"))
    driver.result("stop")
    driver.wait_for_exit()
    job.check_output()
    assert "its state is rebuilt" not in driver.log


def test_a_driver_whose_first_batch_fails_goes_back_to_the_old_parallelism(
    job: ChainJob, drivers: list[DriverProcess]
) -> None:
    driver = DriverProcess.start(job.home / "first", cores=5)
    drivers.append(driver)
    driver.assign(job.assignment(1))
    driver.wait_for(lambda: len(list(job.output.glob("batch=*"))) > 4, "some batches")
    (job.home / "fault").write_text("4")
    command = command_to(job, 2, 4)
    driver.command(command)
    result = driver.result(command.id)
    assert result.status == "FAILED"
    assert result.failure is not None
    assert "the fault is there" in result.failure.message
    driver.wait_for(job.is_complete, "all output")
    beat = driver.heartbeat()
    assert beat is not None
    assert beat.rescale is not None
    assert beat.rescale.failure == result.failure
    assert (beat.attempt, beat.state) == (3, DriverState.RUNNING)
    driver.command(Command(id="stop", kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id="s1"))
    driver.result("stop")
    driver.wait_for_exit()
    job.check_output()


def test_a_job_on_s3_is_rescaled_beside_a_savepoint_in_an_outage_and_without_input(
    job: ChainJob, drivers: list[DriverProcess], s3: RestartableS3Server
) -> None:
    job.store_url = f"s3://{s3.server.new_bucket()}/jobs"
    driver = DriverProcess.start(job.home / "first", cores=5, environment=s3.server.variables)
    drivers.append(driver)
    driver.assign(job.assignment(1))
    driver.wait_for(lambda: len(list(job.output.glob("batch=*"))) > 4, "some batches")
    driver.command(Command(id="beside", kind=CommandKind.SAVEPOINT, savepoint_id="beside"))
    rescale(job, driver, 2, 4)
    assert driver.result("beside").status == "COMPLETED"

    s3.go_away()
    outage = command_to(job, 4, 1)
    driver.command(outage)
    driver.wait_for(lambda: driver.log.count("retrying for up to"), "something that waits for the store")
    s3.come_back()
    result = driver.result(outage.id)
    assert result.failure is None or result.failure.code == "STATE_STORE_UNAVAILABLE", result
    driver.wait_for(job.is_complete, "all output")

    driver.wait_for(lambda: (beat := driver.heartbeat()) and beat.metrics.waits_for_input, "the end of the input")
    idle = command_to(job, 6, 3)
    driver.command(idle)
    assert driver.result(idle.id).status == "COMPLETED"
    beat = driver.heartbeat()
    assert beat is not None
    assert (beat.attempt, beat.state, beat.first_commit) == (6, DriverState.RUNNING, None)
    driver.command(Command(id="stop", kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id="s1"))
    driver.result("stop")
    driver.wait_for_exit()
    job.check_output()


def test_a_job_is_rescaled_live_on_two_executors(job: ChainJob, drivers: list[DriverProcess], tmp_path: Path) -> None:
    with running_spark_cluster(tmp_path / "stack", workers=2, cores=2, memory_mb=1024) as cluster:
        conf = {"spark.executor.memory": "512m", **share_of_cluster(4)}
        driver = DriverProcess.start(tmp_path / "driver", master=cluster.master, conf=conf)
        drivers.append(driver)
        driver.assign(job.assignment(1))
        for attempt, parallelism in ((2, 4), (4, 3)):
            done = len(list(job.output.glob("batch=*")))
            driver.wait_for(lambda: len(list(job.output.glob("batch=*"))) > done + 2, "some batches")  # noqa: B023
            beat = rescale(job, driver, attempt, parallelism)
            assert beat.slots == 4
        driver.wait_for(job.is_complete, "all output")
        driver.kill()
    job.check_output()
