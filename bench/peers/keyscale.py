"""Keyscale's contenders: a real driver process without a control plane.

It runs on the same files with the same Spark as its peers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers.driver import Driver
from bench.peers.task import DedupTask, Progress, folder_bytes
from keyscale.jobs.runtime.executor.worker import WARM_IDLE_VARIABLE
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.jobs.protocol.messages import Heartbeat

ARTIFACT = Path(__file__).with_name("dedup_job.py")
POLL_SECONDS = 0.1
LOG_READ_SECONDS = 1.0


def run(
    *,
    form: str,
    restore_from: str | None = None,
    ttl_hours: int | None = None,
    warm_idle_ms: int | None = None,
    **options: Any,
) -> Mapping[str, Any]:
    """Deduplicates with `deduplicate` or with a KeyedProcessFunction.

    Args:
        form: batch, or process_element.
        restore_from: Location of a savepoint to start from; state is then kept in the same object store.
        ttl_hours: How long the batch form remembers an id; None: without limit.
        warm_idle_ms: How long state stays open after a batch; 0 closes it each time. None: the default.
        options: As of DedupTask.
    """
    if warm_idle_ms is not None:
        os.environ[WARM_IDLE_VARIABLE] = str(warm_idle_ms)
    task = DedupTask(**options)
    parameters = {
        "input": task.input,
        "output": str(task.output),
        "files_per_batch": str(task.files_per_batch),
        "form": form,
        **({} if ttl_hours is None else {"ttl_hours": str(ttl_hours)}),
    }
    with Driver(
        Path(task.work),
        ARTIFACT,
        parameters,
        cores=task.cores,
        checkpoint_interval_ms=task.checkpoint_interval_ms,
        restore_from=restore_from,
    ) as driver:
        last = _when_all_is_committed(driver, task.events)
        driver.cancel()
        return _answer(task, driver, last)


def _when_all_is_committed(driver: Driver, events: int) -> Heartbeat:
    read_at = time.monotonic()
    while True:
        heartbeat = driver.heartbeat()
        if heartbeat is not None and heartbeat.metrics.input_records >= events:
            return heartbeat
        if time.monotonic() >= read_at:
            driver.log.read()
            read_at = time.monotonic() + LOG_READ_SECONDS
        time.sleep(POLL_SECONDS)


def _answer(task: DedupTask, driver: Driver, last: Heartbeat) -> Mapping[str, Any]:
    """Returns the measurements from the commit log.

    The time is from the attempt's opening to the publication of the last batch.
    """
    entries = driver.log.read()
    opened_ms = next(entry.opened_at_ms for entry in entries if isinstance(entry, AttemptOpened))
    committed = [entry for entry in entries if isinstance(entry, BatchCommitted) and entry.input_records]
    published_seconds = max(path.stat().st_ctime for path in task.output.glob("batch=*"))  # the rename into place
    progress = Progress()
    records = 0
    for entry in committed:
        records += entry.input_records
        progress.processed(records, (entry.committed_at_ms - opened_ms) / 1000)
    storage = driver.storage
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
