"""Upgrades of a running deduplication job with a large state.

A real control plane carries them out while records come in.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.store.keys import MAX_PARALLELISM, key_column
from keyscale.api.cli.job_wait import wait_until
from keyscale.api.cli.operations import follow
from keyscale.api.cli.process import ControlPlaneProcess, free_port
from keyscale.client.keyscale import Keyscale
from keyscale.client.request_paths import job_path
from keyscale.deploy.demo.home_processes import end_processes, processes_of
from keyscale.state.layout import split_location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PROGRAM = Path(__file__).with_name("dedup_job.py")
NEW_PER_FILE = 500
OLD_PER_FILE = 100
FILE_SECONDS = 0.25
FILES_PER_BATCH = 100
CHECKPOINT_INTERVAL_MS = 10_000
START_SECONDS = 300.0
POLL_SECONDS = 0.2


class UpgradeFailedError(AssertionError):
    """An upgrade failed, or its conditions were not met."""


def run(*, work: str, keys: int, restore_from: str, ttl_hours: int, cores: int, changes: int) -> Mapping[str, Any]:
    """Starts a job from a savepoint and changes its program several times.

    Args:
        work: A fresh folder.
        keys: UUIDs number 0 to `keys` are in the savepoint.
        restore_from: The savepoint's location; the job keeps its objects in the same object store.
        ttl_hours: How long the job remembers an id.
        cores: The job's parallelism.
        changes: The number of program changes.

    Returns:
        Medians over the changes: `downtime_ms`, and `<phase>_ms` of each phase; and `output_rows` with the right
        number, `expected_rows`.

    Raises:
        UpgradeFailedError: A change did not complete, or the job stopped making progress.
    """
    store_url, _ = split_location(restore_from)
    source, output = Path(work, "input"), Path(work, "output")
    source.mkdir()
    parameters = {
        "input": str(source),
        "output": str(output),
        "files_per_batch": str(FILES_PER_BATCH),
        "form": "batch",
        "ttl_hours": str(ttl_hours),
    }
    with _control_plane(Path(work, "home"), store_url) as api, _Input(source, keys) as records:
        body = {
            "name": "upgraded",
            "restore_from": {"location": restore_from},
            "spec": {
                "artifact_id": _program(api, 0),
                "parallelism": cores,
                "max_parallelism": MAX_PARALLELISM,
                "parameters": parameters,
                "checkpoints": {"interval_ms": CHECKPOINT_INTERVAL_MS},
            },
        }
        job = api.post("/v1/jobs", body)["id"]
        try:
            api.post(job_path(job, "start"))
            wait_until(api, job, {"RUNNING"}, START_SECONDS)
            made = [_upgraded(api, job, number) for number in range(1, changes + 1)]
            expected = records.end() * NEW_PER_FILE
            _wait_for("all rows", lambda: _rows(output) >= expected)
            api.post(job_path(job, "cancel"))
            wait_until(api, job, {"STOPPED"}, START_SECONDS)
        finally:
            shutil.rmtree(Path(urlsplit(store_url).path, job), ignore_errors=True)  # the store is the savepoint's own
    phases = [{phase["phase"]: phase["duration_ms"] for phase in change["phases"]} for change in made]
    return {
        "downtime_ms": statistics.median(change["downtime_ms"] for change in made),
        **{f"{name.lower()}_ms": statistics.median(each[name] for each in phases) for name in phases[0]},
        "output_rows": _rows(output),
        "expected_rows": expected,
    }


class _Input:
    """Files of new ids and savepoint ids, at an even pace."""

    def __init__(self, folder: Path, keys: int) -> None:
        self._folder = folder
        self._keys = keys
        self._files = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_until_ended, name="input", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> int:
        """Ends the input; returns the number of files."""
        self._ended.set()
        self._thread.join()
        return self._files

    def _write_until_ended(self) -> None:
        random = np.random.default_rng(self._keys)
        while not self._ended.wait(FILE_SECONDS):
            first = self._keys + self._files * NEW_PER_FILE
            new = np.arange(first, first + NEW_PER_FILE, dtype=np.uint64)
            old = random.integers(0, self._keys, OLD_PER_FILE, dtype=np.uint64)
            ids = key_column(np.concatenate([new, old]), uuids=True).keys
            now_ms = pa.array(np.full(len(ids), time.time() * 1000, dtype=np.int64))
            name = f"{self._files:06d}.parquet"
            staged = self._folder / f".{name}"
            pq.write_table(pa.table({"id": ids, "ts_ms": now_ms, "payload": ids}), staged)
            staged.rename(self._folder / name)
            self._files += 1


@contextmanager
def _control_plane(home: Path, store_url: str) -> Iterator[Keyscale]:
    settings = {"KEYSCALE_JOB_USERS": "off", "KEYSCALE_STORE_URL": store_url}  # the job is trusted
    process = ControlPlaneProcess(home, free_port(), settings)
    try:
        process.start()
        with Keyscale(connection=process.connection) as api:
            yield api
    finally:
        process.stop()
        end_processes(processes_of(home))


def _program(api: Keyscale, version: int) -> str:
    """Uploads a version of the program; versions differ by a comment."""
    content = PROGRAM.read_bytes() + f"\n# version {version}\n".encode()
    return str(api.upload("/v1/artifacts", filename=PROGRAM.name, content=content)["id"])


def _upgraded(api: Keyscale, job: str, version: int) -> Mapping[str, Any]:
    """Changes the program after a checkpoint of the present attempt."""
    shown = api.get(job_path(job))
    attempt = shown["status"]["attempt"]["number"]
    _wait_for("a checkpoint", lambda: _has_checkpoint(api, job, attempt))
    body = {"spec": {"artifact_id": _program(api, version)}}
    accepted = api.patch(job_path(job), body, if_match=f'"{shown["revision"]}"')
    change: Mapping[str, Any] = follow(api, accepted["id"])
    if change["status"] != "COMPLETED" or change["downtime_ms"] is None:
        raise UpgradeFailedError(f"the change ended as {change['status']}: {change['failure']}")
    return change


def _has_checkpoint(api: Keyscale, job: str, attempt: int) -> bool:
    newest = api.get(job_path(job, "checkpoints"))["latest"]["completed"]
    return newest is not None and newest["attempt"] == attempt


def _rows(output: Path) -> int:
    return sum(int(pq.ParquetFile(file).metadata.num_rows) for file in output.glob("batch=*/part-*.parquet"))


def _wait_for(what: str, is_there: Callable[[], bool]) -> None:
    give_up = time.monotonic() + START_SECONDS
    while not is_there():
        if time.monotonic() > give_up:
            raise UpgradeFailedError(f"waited {START_SECONDS:.0f} s for {what}")
        time.sleep(POLL_SECONDS)
