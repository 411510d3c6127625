"""Keyscale's deduplication from a topic into files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers.driver import Driver
from bench.peers.latency_task import POLL_SECONDS, LatencyTask, produce, wait_for_all
from keyscale.vocabulary import DriverState

if TYPE_CHECKING:
    from collections.abc import Mapping

ARTIFACT = Path(__file__).with_name("latency_job.py")
CHECKPOINT_INTERVAL_MS = 10_000


def run(**options: Any) -> Mapping[str, Any]:
    """Runs the driver and the producer, and observes each row's visibility."""
    task = LatencyTask(**options)
    with Driver(
        Path(task.work),
        ARTIFACT,
        {
            "output": str(task.output),
            "batch_interval_ms": str(task.batch_interval_ms),
            **task.source_parameters(),
        },
        cores=task.cores,
        checkpoint_interval_ms=CHECKPOINT_INTERVAL_MS,
        jars=task.connector_jars,
    ) as driver:
        while (heartbeat := driver.heartbeat()) is None or heartbeat.state is not DriverState.RUNNING:
            time.sleep(POLL_SECONDS)
        produce(task)
        answer = wait_for_all(task, lambda: _visible(task.output))
        driver.cancel()
    return {**answer, "batches": len(list(task.output.glob("batch=*")))}


def _visible(output: Path) -> dict[Path, float]:
    """Returns the visible files with their times.

    A batch's files are visible once its folder has been renamed into place.
    """
    folders = list(output.glob("batch=*"))
    return {file: folder.stat().st_ctime for folder in folders for file in folder.glob("part-*.parquet")}
