"""Our own contenders: a real driver process, run without a control plane, on the same files with the same Spark."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyspark

from bench.peers.spark import DRIVER_MEMORY
from bench.peers.task import DedupTask, Progress, folder_bytes
from jobs.runtime.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS
from jobs.wire import Assignment, CheckpointSettings, Command, CommandKind, Heartbeat
from state.identifiers import JobId
from state.layout import Layout, split_location
from state.log import AttemptOpened, BatchCommitted, CommitLog
from state.objects import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

ARTIFACT = Path(__file__).with_name("dedup_job.py")
MAX_PARALLELISM = 128
POLL_SECONDS = 0.1


class DriverFailedError(RuntimeError):
    """The driver ended before it had committed all input; its log is above."""


def run(
    *, form: str, restore_from: str | None = None, ttl_hours: int | None = None, **options: Any
) -> Mapping[str, Any]:
    """Deduplicate with `deduplicate` or with a KeyedProcessFunction.

    Args:
        form: batch, or process_element.
        restore_from: Location of a savepoint to start from; state is then kept in the same object store.
        ttl_hours: How long the batch form remembers an id; for ever if None.
        options: As of DedupTask.
    """
    task = DedupTask(**options)
    work = Path(task.work)
    parameters = {"form": form} if ttl_hours is None else {"form": form, "ttl_hours": str(ttl_hours)}
    assignment = _assignment(task, parameters, restore_from)
    assignment_file = work / "assignment.json"
    assignment_file.write_text(assignment.model_dump_json(), encoding="utf-8")
    control = assignment_file.with_suffix(".control")
    environment = {
        **os.environ,
        "KEYSCALE_WORK_DIR": str(work / "driver"),
        "KEYSCALE_ASSIGNMENT_FILE": str(assignment_file),
        "KEYSCALE_ARTIFACT_FILE": str(ARTIFACT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with subprocess.Popen(_command(task), env=environment) as driver:  # noqa: S603 - our own driver
        all_committed = _wait_for_all_input(driver, control, task.events)
        if driver.wait() != 0 or not all_committed:
            message = f"the driver ended with {driver.returncode} before all input was committed"
            raise DriverFailedError(message)
    answer = _answer(task, assignment, Heartbeat.model_validate_json((control / "heartbeat.json").read_bytes()))
    shutil.rmtree(Path(_store_folder(assignment.store_url), assignment.job_id))  # the store may be the savepoint's own
    return answer


def _assignment(task: DedupTask, parameters: Mapping[str, str], restore_from: str | None) -> Assignment:
    return Assignment(
        job_id=f"dedup-{uuid.uuid4().hex}",
        job_name="dedup",
        attempt=1,
        parallelism=task.cores,
        max_parallelism=MAX_PARALLELISM,
        artifact_filename=ARTIFACT.name,
        artifact_sha256=hashlib.sha256(ARTIFACT.read_bytes()).hexdigest(),
        parameters={
            "input": task.input,
            "output": str(task.output),
            "files_per_batch": str(task.files_per_batch),
            **parameters,
        },
        store_url=split_location(restore_from)[0] if restore_from else Path(task.work, "store").as_uri(),
        restore_from=restore_from,
        checkpoints=CheckpointSettings(interval_ms=task.checkpoint_interval_ms),
    )


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


def _answer(task: DedupTask, assignment: Assignment, last: Heartbeat) -> Mapping[str, Any]:
    """Figures from the commit log: the clock starts when the attempt is opened, and ends when the last batch is published."""
    job = JobId(assignment.job_id)
    entries = [entry for _, entry in CommitLog(open_store(assignment.store_url), Layout(job)).read()]
    opened_ms = next(entry.opened_at_ms for entry in entries if isinstance(entry, AttemptOpened))
    committed = [entry for entry in entries if isinstance(entry, BatchCommitted) and entry.input_records]
    published_seconds = max(path.stat().st_ctime for path in task.output.glob("batch=*"))  # the rename into place
    progress = Progress()
    records = 0
    for entry in committed:
        records += entry.input_records
        progress.processed(records, (entry.committed_at_ms - opened_ms) / 1000)
    storage = Path(_store_folder(assignment.store_url), job)
    checkpoints = list(storage.glob("chk-*"))
    state_bytes = sum(folder_bytes(folder) for folder in (storage / "changelog", storage / "shared", *checkpoints))
    return progress.answer(
        task.events,
        state_bytes,
        ended_seconds=published_seconds - opened_ms / 1000,
        batches=len(committed),
        checkpoints=len(checkpoints),
        output_rows=sum(entry.output_records for entry in committed),
        restore_seconds=((last.restored_at_ms or opened_ms) - opened_ms) / 1000,
    )


def _store_folder(store_url: str) -> str:
    return urlsplit(store_url).path
