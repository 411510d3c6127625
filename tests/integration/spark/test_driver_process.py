from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from keyscale.failpoints import FAILPOINT, FAILPOINT_DIRECTORY
from keyscale.jobs.protocol.messages import Command
from keyscale.jobs.protocol.spark_switches import SPARK_WITHOUT_VARIABLE, SparkUse
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.state.documents.manifest import read_manifest
from keyscale.state.layout import split_location
from keyscale.state.objects.opening import open_store
from keyscale.vocabulary import CheckpointStatus, CommandKind, DriverState
from tests.support.drivers.driver_process import ChainInput, ChainJob, DriverProcess, command_line, sink_rows
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

FAILING_JOB = ROOT / "tests" / "support" / "jobs" / "failing_job.py"


@pytest.fixture
def job(tmp_path: Path) -> ChainJob:
    return ChainJob(tmp_path, ChainInput.write(tmp_path / "in", seed=1, files=12, records=30))


def start(job: ChainJob, drivers: list[DriverProcess], name: str) -> DriverProcess:
    driver = DriverProcess.start(job.home / name)
    drivers.append(driver)
    return driver


def has_checkpoint(driver: DriverProcess) -> bool:
    return any(report.status is CheckpointStatus.COMPLETED for report in driver.checkpoints())


def test_batches_continue_while_a_checkpoint_is_uploaded(
    job: ChainJob, drivers: list[DriverProcess], tmp_path: Path
) -> None:
    *_, last = sorted(job.input.directory.iterdir())
    withheld = last.rename(tmp_path / last.name)
    job.checkpoints = CheckpointSettings(interval_ms=300)
    sync = tmp_path / "sync"
    sync.mkdir()
    # As many cores as subtasks: batches need every slot.
    held = {FAILPOINT: "snapshot.file_uploaded", FAILPOINT_DIRECTORY: str(sync)}
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


def test_with_the_exchange_of_workers_switched_off_spark_s_own_daemon_runs_and_the_output_is_the_same(
    job: ChainJob, drivers: list[DriverProcess]
) -> None:
    switched_off = {SPARK_WITHOUT_VARIABLE: SparkUse.WORKER_EXCHANGE.value}
    driver = DriverProcess.start(job.home / "first", environment=switched_off)
    drivers.append(driver)
    driver.assign(job.assignment(1))
    driver.wait_for(job.is_complete, "all output")
    commands = [" ".join(command_line(process)) for process in driver.family()]
    assert any("pyspark.daemon" in command for command in commands), commands
    assert not any(" -m keyscale" in command for command in commands), commands
    stop(driver, "s1")
    job.check_output()


def test_a_checkpoint_that_could_not_begin_during_a_long_batch_is_no_failed_one(
    job: ChainJob, drivers: list[DriverProcess], tmp_path: Path
) -> None:
    job.checkpoints = CheckpointSettings(interval_ms=2000, timeout_ms=5000, tolerable_failed_checkpoints=0)
    sync = tmp_path / "sync"
    sync.mkdir()
    held = {FAILPOINT: "batch.ran", FAILPOINT_DIRECTORY: str(sync)}
    driver = DriverProcess.start(job.home / "first", environment=held)
    drivers.append(driver)
    driver.assign(job.assignment(1))
    driver.wait_for(lambda: "CHECKPOINT_NOT_BEGUN" in driver.log, "a timeout during the batch")
    driver.command(Command(id="asked", kind=CommandKind.SAVEPOINT, savepoint_id="s0"))
    failure = driver.result("asked").failure
    assert failure is not None
    assert failure.code == "CHECKPOINT_NOT_BEGUN"
    before = driver.checkpoints()
    (sync / "batch.ran.go").touch()
    driver.wait_for(lambda: len(driver.checkpoints()) > len(before) and has_checkpoint(driver), "the next checkpoint")
    stop(driver, "s1")
    reports = driver.checkpoints()
    assert {report.status for report in reports} == {CheckpointStatus.COMPLETED}
    numbers = [report.checkpoint_id for report in reports]
    assert numbers == list(range(1, len(numbers) + 1)), "a checkpoint that had not begun took a number"


def test_batches_begin_no_sooner_than_the_jobs_interval_says_and_an_idle_job_is_seen_to_wait(
    job: ChainJob, drivers: list[DriverProcess]
) -> None:
    interval_ms = 800
    driver = DriverProcess.start(job.home / "first")
    drivers.append(driver)
    given = job.assignment(1)
    driver.assign(given.model_copy(update={"spec": given.spec.model_copy(update={"batch_interval_ms": interval_ms})}))
    driver.wait_for(job.is_complete, "the output")
    job.check_output()
    driver.wait_for(lambda: (beat := driver.heartbeat()) is not None and beat.metrics.waits_for_input, "an idle job")
    beat = driver.heartbeat()
    assert beat is not None
    assert beat.restored_at_ms is not None
    assert beat.last_commit is not None
    assert beat.metrics.batches > 3
    # The first batch begins at once, and Spark's intervals begin at multiples of theirs: the second one may be shorter.
    assert beat.last_commit.at_ms - beat.restored_at_ms > (beat.metrics.batches - 2) * interval_ms


def stop(driver: DriverProcess, savepoint_id: str, *, drain: bool = False) -> str:
    """Stops the job with a savepoint; returns the savepoint's location."""
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
    """Returns the counts of the subtasks in the last complete checkpoint; none if there is none yet."""
    complete = [report for report in driver.checkpoints() if report.status is CheckpointStatus.COMPLETED]
    if not complete:
        return []
    assert complete[-1].external_path is not None
    store_url, path = split_location(complete[-1].external_path)
    manifest = read_manifest(open_store(store_url), path)
    return [len(subtask.shards) for operator in manifest.operators for subtask in operator.subtasks]


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


def test_a_savepoint_that_is_requested_again_is_taken_once(job: ChainJob, drivers: list[DriverProcess]) -> None:
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
    script.write_text("import keyscale\n\nraise RuntimeError('no such topic')\n")
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


def test_a_function_that_raises_is_shown_in_full_to_the_user_and_in_the_log_but_for_its_secret(
    job: ChainJob, drivers: list[DriverProcess]
) -> None:
    secret = {"KEYSCALE_JOB_SECRET_DATABASE": "db://app:hunter2hunter2@host"}
    driver = DriverProcess.start(job.home / "failing", artifact=FAILING_JOB, environment=secret)
    drivers.append(driver)
    digest = hashlib.sha256(FAILING_JOB.read_bytes()).hexdigest()
    driver.assign(job.assignment(1).model_copy(update={"artifact_sha256": digest}))
    assert driver.wait_for_exit() == 1
    beat = driver.heartbeat()
    assert beat is not None
    failure = beat.failure
    assert failure is not None
    assert re.match(r"ValueError: k\d is refused by \*\*\*\*\*, at record 1 of subtask \d", failure.message)
    assert failure.operator_uid == "refuse"
    assert failure.subtask in {0, 1}
    shown = failure.traceback or ""
    assert "in process_element" in shown
    assert re.fullmatch(r"ValueError: k\d is refused by \*\*\*\*\*", shown.splitlines()[-1])
    assert f"{failure.code}: {failure.message} (operator refuse, subtask {failure.subtask})\n{shown}" in driver.log
    assert "hunter2" not in f"{beat} {driver.log}"
