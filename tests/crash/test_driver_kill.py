"""Drivers are SIGKILLed, held and doubled at chosen and at random moments; the sink is always exact."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from keyscale.jobs.protocol.messages import Counters
from keyscale.jobs.protocol.specification import CheckpointSettings, FixedDelayRestart
from keyscale.jobs.runtime.executor.worker import WARM_IDLE_VARIABLE
from keyscale.vocabulary import CheckpointStatus, DriverState
from tests.support.drivers.driver_process import ChainInput, ChainJob, DriverProcess, sink_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

MOMENTS = (
    "batch.received",
    "batch.planned",
    "open.marker_taken",
    "task-mid-batch",
    "task.part_written",
    "batch.changelog_written",
    "close.flushed",
    "batch.ran",
    "batch.committed",
    "batch.published",
    "snapshot.shard_linked",
    "checkpoint.linked",
    "snapshot.file_uploaded",
    "checkpoint.uploaded",
    "checkpoint.publishing",
    "checkpoint.published",
)
COLD_MOMENTS = ("open.marker_taken", "close.flushed")  # seldom reached where stores stay open between batches
LONGEST_DELAY_SECONDS = 1.5  # about two batches
FILES = 8
RECORDS = 15  # of each file


def chain_job(home: Path, seed: int) -> ChainJob:
    return ChainJob(
        home,
        ChainInput.write(home / "in", seed=seed, files=FILES, records=RECORDS),
        checkpoints=CheckpointSettings(interval_ms=random.Random(seed).choice([300, 1000, 100_000])),
    )


def start(
    job: ChainJob, drivers: list[DriverProcess], name: str, environment: Mapping[str, str] | None = None
) -> DriverProcess:
    driver = DriverProcess.start(job.home / name, environment=environment)
    drivers.append(driver)
    return driver


def latest_checkpoint(driver: DriverProcess) -> str | None:
    """The location that a control plane would restore from."""
    completed = [report for report in driver.checkpoints() if report.status is CheckpointStatus.COMPLETED]
    return completed[-1].external_path if completed else None


def counters(driver: DriverProcess) -> Counters | None:
    beat = driver.heartbeat()
    return beat.metrics.counters if beat else None


def held_at(directory: Path, moment: str) -> dict[str, str]:
    directory.mkdir()
    return {FAILPOINT: moment, FAILPOINT_DIRECTORY: str(directory)}


def finish(job: ChainJob, survivor: DriverProcess, killed: DriverProcess) -> None:
    survivor.assign(job.assignment(2, restore_from=latest_checkpoint(killed)))
    survivor.wait_for(job.is_complete, "the rest of the output")
    whole = Counters(input_records=FILES * RECORDS, output_records=len(job.input.expected))
    survivor.wait_for(lambda: counters(survivor) == whole, f"exact counters, which are {counters(survivor)}")
    survivor.kill()
    job.check_output()


@pytest.mark.parametrize("seed", range(5))
def test_a_driver_killed_at_a_random_point_of_a_batch_loses_and_doubles_nothing(
    tmp_path: Path, drivers: list[DriverProcess], seed: int
) -> None:
    chance = random.Random(seed)
    job = chain_job(tmp_path, seed)
    job.format = "json" if seed % 4 == 3 else "parquet"
    at_named_moment = seed % 2 == 0
    environment = {}
    if at_named_moment:
        moment = chance.choice(MOMENTS)
        job.checkpoints = CheckpointSettings(interval_ms=300)  # moments of a checkpoint come early, too
        environment = held_at(tmp_path / "sync", f"{moment}@{chance.randrange(1, 4)}")
        if moment in COLD_MOMENTS:
            environment[WARM_IDLE_VARIABLE] = "0"
    first = start(job, drivers, "first", environment)
    second = start(job, drivers, "second")
    first.assign(job.assignment(1))

    if at_named_moment:
        first.wait_for(lambda: any((tmp_path / "sync").iterdir()), f"the moment {moment}")
    else:
        batch = chance.randrange(FILES - 2)
        offsets = tmp_path / "first" / "work" / "positions-1" / "offsets" / str(batch)
        first.wait_for(offsets.exists, f"batch {batch}")
        time.sleep(chance.uniform(0, LONGEST_DELAY_SECONDS))  # a point in time that nobody knows is what is wanted
    committed_before = len(sink_rows(job.output))
    first.kill(chance.choice(("jvm", "python", "all")))

    assert committed_before < len(job.input.expected), "the driver was killed after the end of its work"
    finish(job, second, first)


@pytest.mark.parametrize("checkpoint_interval_ms", [300, 100_000])
def test_the_records_of_a_batch_that_was_committed_when_its_driver_was_killed_are_counted(
    tmp_path: Path, drivers: list[DriverProcess], checkpoint_interval_ms: int
) -> None:
    job = chain_job(tmp_path, seed=104)
    job.checkpoints = CheckpointSettings(interval_ms=checkpoint_interval_ms)
    first = start(job, drivers, "first", held_at(tmp_path / "sync", "batch.committed@3"))
    second = start(job, drivers, "second", held_at(tmp_path / "sync-of-second", "batch.received"))
    first.assign(job.assignment(1))
    first.wait_for(lambda: any((tmp_path / "sync").iterdir()), "the third batch, committed and not counted")
    known = counters(first)
    assert known is not None
    assert known.input_records == 2 * RECORDS, "the driver has not reported the third batch"
    first.kill()

    second.assign(job.assignment(2, restore_from=latest_checkpoint(first)))
    second.wait_for(lambda: counters(second) is not None, "its restored state")
    counted = counters(second)
    assert counted is not None
    assert counted.input_records == 3 * RECORDS
    assert counted.output_records == len(sink_rows(job.output))


def test_what_the_subtasks_of_a_killed_driver_have_written_is_gone(
    tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    job = chain_job(tmp_path, seed=102)
    first = start(job, drivers, "first", held_at(tmp_path / "sync", "task.part_written"))
    second = start(job, drivers, "second")
    first.assign(job.assignment(1))
    first.wait_for(lambda: len(list((tmp_path / "sync").iterdir())) == job.parallelism, "the files of all subtasks")
    assert len(staged_files(job)) == job.parallelism
    first.kill("all")
    finish(job, second, first)
    assert staged_files(job) == set()


def test_a_task_that_is_killed_after_it_has_written_is_tried_again_and_its_file_is_not_in_the_output(
    tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    job = chain_job(tmp_path, seed=103)
    driver = start(job, drivers, "first", held_at(tmp_path / "sync", "task.part_written"))
    driver.assign(job.assignment(1))
    driver.wait_for(lambda: len(list((tmp_path / "sync").iterdir())) == job.parallelism, "the files of all subtasks")
    left = staged_files(job)
    worker = next((tmp_path / "sync").iterdir())
    os.kill(int(worker.suffix.removeprefix(".")), signal.SIGKILL)
    (tmp_path / "sync" / "task.part_written.go").touch()
    driver.wait_for(job.is_complete, "all output")
    driver.kill()
    job.check_output()
    published = {file.name for file in job.output.glob("batch=0/part-*")}
    assert len(published) == job.parallelism
    assert len(published & left) == job.parallelism - 1
    assert staged_files(job) == set()


def staged_files(job: ChainJob) -> set[str]:
    """Names of the output's files that no reader sees."""
    return {file.name for file in job.output.glob("_staging/**/part-*")}


def test_of_two_drivers_at_once_only_the_newer_one_commits(tmp_path: Path, drivers: list[DriverProcess]) -> None:
    job = chain_job(tmp_path, seed=100)
    first = start(job, drivers, "first", held_at(tmp_path / "sync", "batch.ran@3"))
    second = start(job, drivers, "second")
    first.assign(job.assignment(1))
    first.wait_for(lambda: any((tmp_path / "sync").iterdir()), "the third batch, run and not committed")

    second.assign(job.assignment(2, restore_from=latest_checkpoint(first)))
    second.wait_for(lambda: _batches(second) >= 2, "commits of the second driver")
    (tmp_path / "sync" / "batch.ran.go").touch()

    assert first.wait_for_exit() == 10, first.log
    beat = first.heartbeat()
    assert beat is not None
    assert beat.state is DriverState.FENCED
    assert beat.metrics.batches == 2, "the fenced driver committed"
    second.wait_for(job.is_complete, "all output")
    job.check_output()


def test_an_idle_driver_finds_out_that_a_newer_one_has_taken_over(tmp_path: Path, drivers: list[DriverProcess]) -> None:
    job = chain_job(tmp_path, seed=101)
    first = start(job, drivers, "first")
    second = start(job, drivers, "second")
    first.assign(job.assignment(1))
    first.wait_for(job.is_complete, "all output")
    second.assign(job.assignment(2, restore_from=latest_checkpoint(first)))
    assert first.wait_for_exit() == 10, first.log
    job.check_output()


def _batches(driver: DriverProcess) -> int:
    beat = driver.heartbeat()
    return beat.metrics.batches if beat else 0


def test_a_failed_run_starts_again_in_its_process_and_the_sink_is_exact(
    tmp_path: Path, drivers: list[DriverProcess]
) -> None:
    job = chain_job(tmp_path, seed=102)
    job.restart = FixedDelayRestart(attempts=50, delay_ms=100)
    driver = start(job, drivers, "first")
    driver.assign(job.assignment(1))
    driver.wait_for(lambda: _batches(driver) >= 2, "commits before the fault")
    (tmp_path / "fault").touch()
    driver.wait_for(lambda: _failures(driver) >= 1, "a failure")
    (tmp_path / "fault").unlink()
    assert not job.is_complete(), "the fault came after the end of the work"
    driver.wait_for(job.is_complete, "the rest of the output")
    job.check_output()
    checkpoints = [report.checkpoint_id for report in driver.checkpoints()]
    assert len(set(checkpoints)) == len(checkpoints)


def _failures(driver: DriverProcess) -> int:
    beat = driver.heartbeat()
    return beat.metrics.failures.count if beat else 0
