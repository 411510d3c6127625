"""Shared by the Flink contenders: configuration, tables and progress.

It runs in the Flink environment (see bench/environments.py), which has only this folder's modules that need nothing but
the standard library.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflink.common import Configuration  # type: ignore[import-not-found] # lives in the Flink environment
from pyflink.datastream import StreamExecutionEnvironment  # type: ignore[import-not-found]
from pyflink.table import EnvironmentSettings, StreamTableEnvironment  # type: ignore[import-not-found]

from bench.peers.task import DedupTask, Progress, folder_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflink.table import TableResult

COLUMNS = "id STRING, ts_ms BIGINT, payload STRING"
POLL_SECONDS = 0.5


def table_environment(
    task: DedupTask, jars: Sequence[str], more_settings: Mapping[str, str] | None = None
) -> tuple[StreamTableEnvironment, str]:
    """Returns a tuned streaming environment with tables, and its REST address.

    The tables are `events` and `kept`.
    """
    port = _free_port()
    configuration = Configuration()
    settings = {
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in jars),
        "parallelism.default": str(task.cores),
        "taskmanager.numberOfTaskSlots": str(task.cores),
        "taskmanager.memory.managed.size": "1gb",
        "state.backend.type": "rocksdb",
        "state.backend.rocksdb.localdir": f"{task.work}/rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.interval": f"{task.checkpoint_interval_ms} ms",
        "execution.checkpointing.dir": Path(task.work, "checkpoints").as_uri(),
        "python.executable": sys.executable,
        "rest.port": str(port),
        "metrics.fetcher.update-interval": "250",
        "restart-strategy.type": "none",
        **(more_settings or {}),
    }
    for name, value in settings.items():
        configuration.set_string(name, value)
    streams = StreamExecutionEnvironment.get_execution_environment(configuration)
    return file_tables(streams, task.input, task.output), f"http://127.0.0.1:{port}"


def file_tables(
    streams: StreamExecutionEnvironment, source: str, output: Path, *, monitor_interval: str = ""
) -> StreamTableEnvironment:
    """Returns an environment with the tables `events` and `kept`.

    Args:
        streams: The streaming environment.
        source: The folder of the files of `events`.
        output: The folder of the files of `kept`.
        monitor_interval: How often new files of `events` are looked for; never, if empty.
    """
    tables = StreamTableEnvironment.create(streams, EnvironmentSettings.in_streaming_mode())
    endless = f", 'source.monitor-interval' = '{monitor_interval}'" if monitor_interval else ""
    for name, folder, column, option in (
        ("events", Path(source), ", seen_at AS PROCTIME()", endless),
        ("kept", output, "", ""),
    ):
        connector = f"'connector' = 'filesystem', 'path' = '{folder.as_uri()}', 'format' = 'parquet'{option}"
        tables.execute_sql(f"CREATE TABLE {name} ({COLUMNS}{column}) WITH ({connector})")
    return tables


def run(task: DedupTask, rest: str, submit: Callable[[], TableResult]) -> Mapping[str, Any]:
    """Submits the job and watches it to its end.

    The last checkpoint commits the last files.
    """
    progress = Progress()
    result = submit()
    job = f"{rest}/jobs/{result.get_job_client().get_job_id()}"
    watch = _Watch(job, progress, Path(task.work, "checkpoints"))
    watch.start()
    result.wait()
    progress.processed(task.events)
    return progress.answer(task.events, watch.state_bytes, checkpoints=watch.checkpoints)


class _Watch(threading.Thread):
    """Polls Flink's REST API for the source's records, and the checkpoints' size.

    The size must be polled, because Flink empties the storage when a job has finished.
    """

    def __init__(self, job: str, progress: Progress, storage: Path) -> None:
        super().__init__(name="flink-progress", daemon=True)
        self._job = job
        self._progress = progress
        self._storage = storage
        self.state_bytes: int | None = None
        self.checkpoints = 0

    def run(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            try:
                source = _get(self._job)["vertices"][0]["metrics"]
                checkpoints = _get(f"{self._job}/checkpoints")
            except OSError:
                return  # the cluster has ended
            self._progress.processed(int(source["write-records"]))
            self.checkpoints = checkpoints["counts"]["completed"]
            self.state_bytes = folder_bytes(self._storage) or self.state_bytes


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - loopback http, built above
        return json.load(response)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
