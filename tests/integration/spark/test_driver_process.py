from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from jobs.wire import CheckpointSettings, CheckpointStatus, Command, CommandKind, DriverState
from state.layout import split_location
from state.manifest import read_manifest
from state.objects import open_store
from state.syncpoint import SYNC_DIRECTORY, SYNC_POINT
from tests.support.driver_process import ChainInput, ChainJob, DriverProcess, sink_rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


@pytest.fixture
def job(tmp_path: Path) -> ChainJob:
    return ChainJob(tmp_path, ChainInput.write(tmp_path / "in", seed=1, files=12, records=30))


def start(job: ChainJob, drivers: list[DriverProcess], name: str) -> DriverProcess:
    driver = DriverProcess.start(job.home / name)
    drivers.append(driver)
    return driver


def has_checkpoint(driver: DriverProcess) -> bool:
    return any(report.status is CheckpointStatus.COMPLETED for report in driver.checkpoints())


def test_batches_go_on_while_a_checkpoint_is_uploaded(
    job: ChainJob, drivers: list[DriverProcess], tmp_path: Path
) -> None:
    *_, last = sorted(job.input.directory.iterdir())
    withheld = last.rename(tmp_path / last.name)
    job.checkpoints = CheckpointSettings(interval_ms=300)
    sync = tmp_path / "sync"
    sync.mkdir()
    # As many cores as subtasks: every slot is wanted by batches.
    held = {SYNC_POINT: "snapshot.file_uploaded", SYNC_DIRECTORY: str(sync)}
    driver = DriverProcess.start(job.home / "first", cores=job.parallelism, environment=held)
    drivers.append(driver)
    driver.assign(job.assignment(1))
    driver.wait_for(lambda: any(sync.iterdir()), "the first upload, which is held")
    withheld.rename(last)
    driver.wait_for(job.is_complete, "all output")
    assert not has_checkpoint(driver)
    (sync / "snapshot.file_uploaded.go").touch()
    driver.wait_for(lambda: has_checkpoint(driver), "the checkpoint")
    stop(driver, "s1")
    job.check_output()


def stop(driver: DriverProcess, savepoint_id: str, *, drain: bool = False) -> str:
    """Stop with a savepoint; returns the savepoint's location."""
    driver.command(
        Command(id=f"stop-{savepoint_id}", kind=CommandKind.STOP_WITH_SAVEPOINT, savepoint_id=savepoint_id, drain=drain)
    )
    result = driver.result(f"stop-{savepoint_id}")
    assert result.status == "COMPLETED", result
    assert result.location
    assert driver.wait_for_exit() == 0, driver.log
    beat = driver.heartbeat()
    assert beat is not None
    assert beat.state is (DriverState.FINISHED if drain else DriverState.STOPPED)
    return result.location


@pytest.mark.exhaustive
def test_a_job_is_checkpointed_rescaled_from_a_savepoint_and_drained(
    job: ChainJob, drivers: list[DriverProcess]
) -> None:
    first = start(job, drivers, "first")
    first.assign(job.assignment(1))
    first.wait_for(lambda: sink_rows(job.output) and has_checkpoint(first), "output and a checkpoint")
    second = start(job, drivers, "second")
    savepoint = stop(first, "s1")
    published = sink_rows(job.output)

    second.assign(job.assignment(2, restore_from=savepoint, parallelism=3, next_checkpoint_id=1))
    second.wait_for(lambda: len(sink_rows(job.output)) > len(published), "output after the rescale")
    stop(second, "s2", drain=True)
    job.check_output()
    numbers = [report.checkpoint_id for report in (*first.checkpoints(), *second.checkpoints())]
    assert len(numbers) == len(set(numbers)), "checkpoint numbers started over"


def shards(driver: DriverProcess) -> list[int]:
    """How many each subtask of the last complete checkpoint holds; none if there is none yet."""
    complete = [report for report in driver.checkpoints() if report.status is CheckpointStatus.COMPLETED]
    if not complete:
        return []
    assert complete[-1].external_path is not None
    store_url, path = split_location(complete[-1].external_path)
    manifest = read_manifest(open_store(store_url), path)
    return [len(subtask.shards) for operator in manifest.operators for subtask in operator.subtasks]


@pytest.mark.exhaustive
def test_the_shards_of_a_rescaled_job_are_merged_beside_its_batches(
    job: ChainJob, drivers: list[DriverProcess], tmp_path: Path
) -> None:
    *most, last = sorted(job.input.directory.iterdir())
    held = last.rename(tmp_path / last.name)
    first = start(job, drivers, "first")
    first.assign(job.assignment(1, parallelism=3))
    first.wait_for(lambda: len(list(job.output.glob("batch=*"))) == len(most), "all but the last batch")
    second = start(job, drivers, "second")
    savepoint = stop(first, "s1")

    second.assign(job.assignment(2, restore_from=savepoint, parallelism=1))
    second.wait_for(lambda: shards(second) == [3, 3], "a checkpoint as it was")
    second.wait_for(lambda: second.log.count("is ready after") == 2, "the merged shards")
    held.rename(last)
    second.wait_for(lambda: shards(second) == [1, 1], "a checkpoint of the merged shards")
    stop(second, "s2", drain=True)
    job.check_output()


@pytest.mark.exhaustive
def test_a_savepoint_that_is_asked_for_again_is_the_one_that_was_taken(
    job: ChainJob, drivers: list[DriverProcess]
) -> None:
    driver = start(job, drivers, "first")
    driver.assign(job.assignment(1))
    driver.wait_for(job.is_complete, "all output")
    for name in ("once", "twice"):
        driver.command(Command(id=name, kind=CommandKind.SAVEPOINT, savepoint_id="same"))
    assert driver.result("once").location == driver.result("twice").location is not None
    driver.command(Command(id="cancel", kind=CommandKind.CANCEL))
    assert driver.wait_for_exit() == 0
    job.check_output()


def test_a_script_that_raises_fails_with_its_own_traceback(
    job: ChainJob, drivers: list[DriverProcess], tmp_path: Path
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import jobs\n\nraise RuntimeError('no such topic')\n")
    driver = DriverProcess.start(job.home / "broken", artifact=script)
    drivers.append(driver)
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    driver.assign(job.assignment(1).model_copy(update={"artifact_sha256": digest}))
    assert driver.wait_for_exit() == 1
    beat = driver.heartbeat()
    assert beat is not None
    assert beat.state is DriverState.FAILED
    assert beat.failure is not None
    assert beat.failure.code == "JOB_SCRIPT_FAILED"
    assert "no such topic" in (beat.failure.traceback or "")
    assert "line 3" in (beat.failure.traceback or "")
