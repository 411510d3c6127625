"""Faults of a running deduplication, and the time to its next commit.

A real control plane carries the recoveries out while records come in.
"""

from __future__ import annotations

import shutil
import statistics
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil

from bench.peers.commits import longest_wait_ms
from bench.peers.paced_job import (
    NEW_PER_FILE,
    ChangeFailedError,
    PacedInput,
    control_plane,
    end,
    job_settings,
    program,
    rows,
    wait_for_checkpoint,
)
from bench.peers.recovery_cluster import cluster_for, kill_executor
from bench.store.keys import MAX_PARALLELISM
from keyscale.client.request_paths import job_path
from keyscale.state.layout import split_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.client.keyscale import Keyscale

SPARE_SECONDS = 300.0
_POLL_SECONDS = 0.01
_WORKER = "pyspark.worker"


def run(
    *, work: str, keys: int, restore_from: str, ttl_hours: int, cores: int, fault: str, faults: int, spares: int
) -> Mapping[str, Any]:
    """Starts a job from a savepoint; a fault befalls it several times.

    Args:
        work: A fresh folder.
        keys: UUIDs number 0 to `keys` are in the savepoint.
        restore_from: The savepoint's location; the job keeps its objects in the same object store.
        ttl_hours: How long the job remembers an id.
        cores: The job's parallelism.
        fault: `driver` kills the driver with its JVM, which is the executor of a local master, too; `disk` does so, and
            deletes the local state; `worker` kills a Python worker; `executor` an executor of a cluster.
        faults: The number of faults.
        spares: The number of spare drivers.

    Returns:
        `recovery_ms`, the median of the longest wait for a commit after the fault, as readers see it; `start_ms`, from
        the request to start the job to its first commit; and `output_rows` with the right number, `expected_rows`.

    Raises:
        ChangeFailedError: The job did not commit again.
    """
    store_url, _ = split_location(restore_from)
    home, source, output = Path(work, "home"), Path(work, "input"), Path(work, "output")
    source.mkdir()
    with ExitStack() as stack:
        cluster = stack.enter_context(cluster_for(fault, Path(work), cores))
        settings = {
            "KEYSCALE_SPARE_DRIVERS": str(spares),
            "KEYSCALE_SPARK_MASTER": "local" if cluster is None else cluster.master,
        }
        api = stack.enter_context(control_plane(home, store_url, settings))
        records = stack.enter_context(PacedInput(source, keys))
        _wait_for_spares(home, spares)
        body = {
            "name": "recovered",
            "restore_from": {"location": restore_from},
            "spec": {
                "artifact_id": program(api, 0),
                "parallelism": cores,
                "max_parallelism": MAX_PARALLELISM,
                **job_settings(source, output, ttl_hours=ttl_hours),
            },
        }
        job = api.post("/v1/jobs", body)["id"]
        try:
            commits = partial(_commits, output)
            start_ms = longest_wait_ms(lambda: api.post(job_path(job, "start")), commits, following=1)
            recovery_ms = []
            for _ in range(faults):
                wait_for_checkpoint(api, job)
                _wait_for_spares(home, spares)
                befall = partial(kill_executor, cluster) if cluster else partial(_befall, api, job, home, fault)
                recovery_ms.append(longest_wait_ms(befall, commits))
            expected = records.end() * NEW_PER_FILE
            end(api, job, output, expected)
        finally:
            shutil.rmtree(Path(urlsplit(store_url).path, job), ignore_errors=True)  # the store is the savepoint's own
    return {
        "recovery_ms": statistics.median(recovery_ms),
        "recovery_ms_max": max(recovery_ms),
        "start_ms": start_ms,
        "output_rows": rows(output),
        "expected_rows": expected,
    }


def _befall(api: Keyscale, job: str, home: Path, fault: str) -> None:
    driver = psutil.Process(api.get(job_path(job))["status"]["attempt"]["pid"])
    jvm = driver.parent()
    if jvm is None:
        raise ChangeFailedError("the driver has no JVM")
    if fault == "worker":
        daemon = next(child for child in jvm.children() if _is_worker(child))
        next(child for child in daemon.children() if _is_worker(child)).kill()
        return
    for process in (driver, jvm):
        process.kill()
    if fault == "disk":
        lost = home / "runs" / job / "state"
        shutil.rmtree(lost.rename(lost.with_name("lost-state")))  # a consolidator may still write there


def _is_worker(process: psutil.Process) -> bool:
    """Decides whether a live process is of a Python worker."""
    try:
        return _WORKER in process.cmdline()
    except psutil.Error:  # a worker that was killed before may be a zombie
        return False


def _commits(output: Path) -> int:
    """Returns how many batches readers see."""
    return sum(1 for _ in output.glob("batch=*"))


def _wait_for_spares(home: Path, count: int) -> None:
    """Waits until so many spare drivers are warm and without a run."""
    give_up = time.monotonic() + SPARE_SECONDS
    while _waiting_spares(home) < count:
        if time.monotonic() > give_up:
            raise ChangeFailedError("no spare driver became warm: is there enough memory?")
        time.sleep(_POLL_SECONDS)


def _waiting_spares(home: Path) -> int:
    taken = "".join(file.read_text() for file in home.glob("runs/*/*/process.json"))
    return sum(file.parent.name not in taken for file in home.glob("spares/*/ready"))
