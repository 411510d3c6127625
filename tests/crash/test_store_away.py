"""The object store goes away under a running job and comes back: the job waits, says so, and goes on by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.vocabulary import CheckpointStatus, DriverState
from tests.support.drivers.driver_process import ChainInput, ChainJob, DriverProcess
from tests.support.servers.s3_server import RestartableS3Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.real


@pytest.fixture
def s3() -> Iterator[RestartableS3Server]:
    server = RestartableS3Server()
    yield server
    server.go_away()


def test_a_job_waits_for_its_object_store_and_goes_on_when_it_is_back(tmp_path: Path, s3: RestartableS3Server) -> None:
    settings = CheckpointSettings(interval_ms=500, tolerable_failed_checkpoints=1000)
    job = ChainJob(tmp_path, ChainInput.write(tmp_path / "in", seed=7, files=6, records=15), checkpoints=settings)
    job.store_url = f"s3://{s3.server.new_bucket()}/jobs"
    driver = DriverProcess.start(tmp_path / "driver", environment=s3.server.variables)
    try:
        driver.assign(job.assignment(1))
        driver.wait_for(lambda: _metrics(driver).batches >= 2, "commits before the store goes away")
        s3.go_away()
        driver.wait_for(lambda: _metrics(driver).store_away_since_ms is not None, "the status to say it")
        committed = _metrics(driver).batches
        completed = [each.status for each in driver.checkpoints()].count(CheckpointStatus.COMPLETED)
        driver.wait_for(lambda: "retrying for up to" in driver.log, "a batch that waits")
        assert _metrics(driver).batches == committed, "nothing can be committed without the store"
        assert [each.status for each in driver.checkpoints()].count(CheckpointStatus.COMPLETED) == completed
        assert not job.is_complete(), "the store went away after the end of the work"

        s3.come_back()
        driver.wait_for(job.is_complete, "the rest of the output")
        driver.wait_for(
            lambda: [each.status for each in driver.checkpoints()].count(CheckpointStatus.COMPLETED) > completed,
            "a checkpoint after the outage",
        )
        job.check_output()
        beat = driver.heartbeat()
        assert beat is not None
        assert (beat.state, beat.metrics.failures.count) == (DriverState.RUNNING, 0), "it has waited, not failed"
        driver.wait_for(lambda: _metrics(driver).store_away_since_ms is None, "the status to say that it is back")
    finally:
        driver.end()


def _metrics(driver: DriverProcess) -> DriverMetrics:
    beat = driver.heartbeat()
    return beat.metrics if beat else DriverMetrics()
