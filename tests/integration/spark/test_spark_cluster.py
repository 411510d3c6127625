"""A standalone cluster of real processes: subtasks stay with their state, and a lost executor costs only its own."""

from __future__ import annotations

import contextlib
import re
import shutil
from typing import TYPE_CHECKING

import psutil
import pytest

from keyscale.api.launching.driver_command import share_of_cluster
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.vocabulary import DiagnosticKind, DriverState
from tests.support.drivers.driver_process import ChainInput, ChainJob, DriverProcess
from tests.support.servers.listening import listening_addresses
from tests.support.servers.spark_cluster import SparkCluster, running_spark_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real

PARALLELISM = 4
OPERATORS = ("chain", "unique")
FILES = 24
FILES_BEFORE_THE_LOSS = 12
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
MOVED = re.compile(r"batch \d+: (\w+)\[(\d+)\] runs on \S+?/(\d+)(?:, was on \S+?/(\d+))?; its state is (\w+)")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with running_spark_cluster(tmp_path / "stack", workers=2, cores=PARALLELISM // 2, memory_mb=1024) as running:
        yield running


@pytest.fixture
def driver(cluster: SparkCluster, tmp_path: Path) -> Iterator[DriverProcess]:
    conf = {"spark.executor.memory": "512m", **share_of_cluster(PARALLELISM)}
    started = DriverProcess.start(tmp_path / "driver", master=cluster.master, conf=conf)
    yield started
    started.end()


@pytest.mark.exhaustive
def test_subtasks_stay_with_their_state_and_a_lost_executor_costs_only_its_own(
    cluster: SparkCluster, driver: DriverProcess, tmp_path: Path
) -> None:
    written = ChainInput.write(tmp_path / "written", seed=9, files=FILES, records=30)
    job = ChainJob(tmp_path, ChainInput(tmp_path / "in", written.expected), parallelism=PARALLELISM)
    job.checkpoints = CheckpointSettings(interval_ms=5_000)
    deliver(written, job.input.directory, FILES_BEFORE_THE_LOSS)
    driver.assign(job.assignment(1))
    driver.wait_for(lambda: metrics(driver).batches == FILES_BEFORE_THE_LOSS, "the first batches")
    assert listening_addresses([*driver.family(), *cluster.processes()]) <= LOOPBACK
    before = metrics(driver)
    assert_that_processes_of_executors_show_stacks_and_logs(driver)

    executors = cluster.executors()
    assert len(executors) == 2
    victim = executors[min(executors)]
    kill_family(victim)
    deliver(written, job.input.directory, FILES - FILES_BEFORE_THE_LOSS)
    driver.wait_for(job.is_complete, "the rest of the output")
    driver.wait_for(lambda: metrics(driver).batches == FILES, "the last commit")
    after = metrics(driver)
    driver.kill()

    job.check_output()
    assert before.subtask_runs > FILES_BEFORE_THE_LOSS * len(OPERATORS)
    assert before.subtask_runs_moved <= before.subtask_runs / 100
    assert before.subtask_runs_rebuilt == 0
    moves = MOVED.findall(driver.log)
    rebuilt = {(uid, subtask) for uid, subtask, _, _, source in moves if source == "rebuilt"}
    lost = {(uid, subtask) for uid, subtask, _, was_on, _ in moves if was_on == str(victim.pid)}
    assert rebuilt <= lost, "state of an executor that was not lost was rebuilt"
    assert 0 < len(lost) <= len(OPERATORS) * PARALLELISM / 2
    # A checkpoint, or a first try of the batch, may have rebuilt some of them before their tasks reported.
    assert after.subtask_runs_rebuilt == len(rebuilt)
    others = after.subtask_runs_moved - len(lost)
    assert others <= after.subtask_runs / 100, moves


def assert_that_processes_of_executors_show_stacks_and_logs(driver: DriverProcess) -> None:
    stacks = driver.look(DiagnosticKind.THREAD_DUMP)
    assert sum(name.startswith("worker ") for name in stacks) >= PARALLELISM, list(stacks)
    assert all(f"--- {each} ---" in stacks["JVM"] for each in ("0", "1", "driver"))
    logs = driver.look(DiagnosticKind.EXECUTOR_LOGS)
    errors = [text for name, text in logs.items() if name.endswith(": stderr")]
    assert len(errors) == 2, list(logs)
    assert all("CoarseGrainedExecutorBackend" in text for text in errors), errors


def kill_family(executor: psutil.Process) -> None:
    """Kills all at once, as on a dead host: a worker that survived its executor would leave files that can be used."""
    for process in [*executor.children(recursive=True), executor]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def deliver(written: ChainInput, directory: Path, files: int) -> None:
    """Writes the job's next files."""
    directory.mkdir(exist_ok=True)
    there = len(list(directory.glob("*.json")))
    for file in sorted(written.directory.glob("*.json"))[there : there + files]:
        shutil.copy2(file, directory / f".{file.name}")
        (directory / f".{file.name}").rename(directory / file.name)


def metrics(driver: DriverProcess) -> DriverMetrics:
    beat = driver.heartbeat()
    assert beat is None or beat.state is not DriverState.FAILED, beat
    return beat.metrics if beat else DriverMetrics()
