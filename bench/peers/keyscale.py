"""Our own contenders: a real driver process, run without a control plane, on the same files with the same Spark."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from bench.peers.spark import DRIVER_MEMORY
from bench.peers.task import DedupTask, Progress, folder_bytes
from jobs.runtime.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS
from jobs.wire import Assignment, CheckpointSettings, Command, CommandKind, Heartbeat
from state.identifiers import JobId
from state.layout import Layout
from state.log import AttemptOpened, BatchCommitted, CommitLog
from state.objects import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

JOB = JobId("bench")
MAX_PARALLELISM = 128
POLL_SECONDS = 0.1


class DriverFailedError(RuntimeError):
    """The driver ended before it had committed all input; its log is above."""


def run(*, form: str, **options: Any) -> Mapping[str, Any]:
    """Deduplicate with `deduplicate` or with a KeyedProcessFunction (`form`: batch, process_element)."""
    task = DedupTask(**options)
    work = Path(task.work)
    artifact = Path(__file__).with_name("dedup_job.py")
    assignment = Assignment(
        job_id=JOB,
        job_name="dedup",
        attempt=1,
        parallelism=task.cores,
        max_parallelism=MAX_PARALLELISM,
        artifact_filename=artifact.name,
        artifact_sha256=hashlib.sha256(artifact.read_bytes()).hexdigest(),
        parameters={
            "input": task.input,
            "output": str(task.output),
            "files_per_batch": str(task.files_per_batch),
            "form": form,
        },
        store_url=(work / "store").as_uri(),
        checkpoints=CheckpointSettings(interval_ms=task.checkpoint_interval_ms),
    )
    assignment_file = work / "assignment.json"
    assignment_file.write_text(assignment.model_dump_json(), encoding="utf-8")
    environment = {
        **os.environ,
        "KEYSCALE_WORK_DIR": str(work / "driver"),
        "KEYSCALE_ASSIGNMENT_FILE": str(assignment_file),
        "KEYSCALE_ARTIFACT_FILE": str(artifact),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with subprocess.Popen(_command(task), env=environment) as driver:  # noqa: S603 - our own driver
        all_committed = _wait_for_all_input(driver, assignment_file.with_suffix(".control"), task.events)
        if driver.wait() != 0 or not all_committed:
            message = f"the driver ended with {driver.returncode} before all input was committed"
            raise DriverFailedError(message)
    return _answer(task, assignment.store_url)


def output_files(folder: Path) -> list[Path]:
    """The files of all published batches."""
    return sorted((folder / "output").glob("batch=*/part-*.parquet"))


def _command(task: DedupTask) -> list[str]:
    package = Path(pyspark.__file__).parent
    settings = {
        **REQUIRED_SETTINGS,
        **DEFAULT_SETTINGS,
        **LOCAL_SETTINGS,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.local.dir": f"{task.work}/spark",
    }
    conf = [argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")]
    driver = Path(__file__).resolve().parents[2] / "jobs" / "runtime" / "driver.py"
    return [str(package / "bin" / "spark-submit"), "--master", f"local[{task.cores},4]", *conf, str(driver)]


def _wait_for_all_input(driver: subprocess.Popen[bytes], control: Path, events: int) -> bool:
    """Tell the driver to end when it reports that all is committed; False if it ended before."""
    while driver.poll() is None:
        time.sleep(POLL_SECONDS)
        try:
            heartbeat = Heartbeat.model_validate_json((control / "heartbeat.json").read_bytes())
        except FileNotFoundError:
            continue
        if heartbeat.metrics.input_records >= events:
            command = Command(id="end", kind=CommandKind.CANCEL)
            (control / "commands" / "end.json").write_text(command.model_dump_json(), encoding="utf-8")
            return True
    return False


def _answer(task: DedupTask, store_url: str) -> Mapping[str, Any]:
    """Figures from the commit log: the clock starts when the attempt is opened, and ends when the last batch is published."""
    entries = [entry for _, entry in CommitLog(open_store(store_url), Layout(JOB)).read()]
    opened_ms = next(entry.opened_at_ms for entry in entries if isinstance(entry, AttemptOpened))
    committed = [entry for entry in entries if isinstance(entry, BatchCommitted) and entry.input_records]
    published_seconds = max(path.stat().st_ctime for path in task.output.glob("batch=*"))  # the rename into place
    progress = Progress()
    records = 0
    for entry in committed:
        records += entry.input_records
        progress.processed(records, (entry.committed_at_ms - opened_ms) / 1000)
    storage = Path(task.work, "store", JOB)
    checkpoints = list(storage.glob("chk-*"))
    state_bytes = sum(folder_bytes(folder) for folder in (storage / "changelog", storage / "shared", *checkpoints))
    return progress.answer(
        task.events,
        state_bytes,
        ended_seconds=published_seconds - opened_ms / 1000,
        batches=len(committed),
        checkpoints=len(checkpoints),
    )
