"""A job on a real control plane that reads steady input."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.store.keys import key_column
from keyscale.api.cli.job_wait import wait_until
from keyscale.api.cli.process import ControlPlaneProcess, free_port
from keyscale.client.keyscale import Keyscale
from keyscale.client.request_paths import job_path
from keyscale.deploy.demo.home_processes import end_processes, processes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

PROGRAM = Path(__file__).with_name("dedup_job.py")
NEW_PER_FILE = 500
OLD_PER_FILE = 100
FILE_SECONDS = 0.25
FILES_PER_BATCH = 100
CHECKPOINT_INTERVAL_MS = 10_000
START_SECONDS = 300.0
POLL_SECONDS = 0.2
FILL_SECONDS = 1500.0
FILL_FILE_KEYS = 500_000
COMMITS_BEFORE = 10
"""A job's commits before it is disturbed (again)."""


class ChangeFailedError(AssertionError):
    """A change of the job failed, or its conditions were not met."""


class PacedInput:
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


def fill(folder: Path, keys: int) -> None:
    """Writes input files with the UUIDs number 0 to `keys`."""
    for number, first in enumerate(range(0, keys, FILL_FILE_KEYS)):
        ids = key_column(np.arange(first, min(first + FILL_FILE_KEYS, keys), dtype=np.uint64), uuids=True).keys
        now_ms = pa.array(np.full(len(ids), time.time() * 1000, dtype=np.int64))
        pq.write_table(pa.table({"id": ids, "ts_ms": now_ms, "payload": ids}), folder / f"state-{number:06d}.parquet")


@contextmanager
def control_plane(home: Path, store_url: str, settings: Mapping[str, str] | None = None) -> Iterator[Keyscale]:
    """Runs a control plane, and ends it with its processes."""
    own = {"KEYSCALE_JOB_USERS": "off", "KEYSCALE_STORE_URL": store_url}  # the job is trusted
    process = ControlPlaneProcess(home, free_port(), {**own, **(settings or {})})
    try:
        process.start()
        with Keyscale(connection=process.connection) as api:
            yield api
    finally:
        process.stop()
        end_processes(processes_of(home))


def program(api: Keyscale, version: int) -> str:
    """Uploads a version of the program; versions differ by a comment."""
    content = PROGRAM.read_bytes() + f"\n# version {version}\n".encode()
    return str(api.upload("/v1/artifacts", filename=PROGRAM.name, content=content)["id"])


def job_settings(source: Path, output: Path, *, ttl_hours: int) -> dict[str, Any]:
    """Returns the part of the specification that all paced jobs share."""
    parameters = {
        "input": str(source),
        "output": str(output),
        "files_per_batch": str(FILES_PER_BATCH),
        "form": "batch",
        "ttl_hours": str(ttl_hours),
    }
    return {"parameters": parameters, "checkpoints": {"interval_ms": CHECKPOINT_INTERVAL_MS}}


def start(api: Keyscale, job: str) -> None:
    """Starts a job, and waits until it runs."""
    api.post(job_path(job, "start"))
    wait_until(api, job, {"RUNNING"}, START_SECONDS)


def wait_for_checkpoint(api: Keyscale, job: str) -> None:
    """Waits until the newest checkpoint is of the present attempt."""
    attempt = api.get(job_path(job))["status"]["attempt"]["number"]

    def has_checkpoint() -> bool:
        newest = api.get(job_path(job, "checkpoints"))["latest"]["completed"]
        return newest is not None and newest["attempt"] == attempt

    _wait_for("a checkpoint", has_checkpoint)


def end(api: Keyscale, job: str, output: Path, expected_rows: int) -> None:
    """Waits for all rows of a job's output, and ends the job."""
    _wait_for("all rows", lambda: rows(output) >= expected_rows)
    api.post(job_path(job, "cancel"))
    wait_until(api, job, {"STOPPED"}, START_SECONDS)


def rows(output: Path) -> int:
    """Returns the number of rows in a job's output."""
    return rows_in(output.glob("batch=*/part-*.parquet"))


def names_in(folder: Path) -> list[str]:
    """Returns the names in a folder, if it exists."""
    return os.listdir(folder) if folder.exists() else []  # noqa: PTH208 - it makes no paths


def rows_in(files: Iterable[Path]) -> int:
    """Returns the number of rows in files."""
    return sum(int(pq.ParquetFile(file).metadata.num_rows) for file in files)


def wait_for_rows(files: Callable[[], Iterable[Path]], count: int) -> None:
    """Waits until a job's files have so many rows."""
    _wait_for(f"{count} rows", lambda: rows_in(files()) >= count, FILL_SECONDS)


def _wait_for(what: str, is_there: Callable[[], bool], limit_seconds: float = START_SECONDS) -> None:
    give_up = time.monotonic() + limit_seconds
    while not is_there():
        if time.monotonic() > give_up:
            raise ChangeFailedError(f"waited {limit_seconds:.0f} s for {what}")
        time.sleep(POLL_SECONDS)
