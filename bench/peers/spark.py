"""Shared by the Spark contenders: session, source, file sink and progress."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from bench.peers.task import DedupTask, Progress, folder_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

DRIVER_MEMORY = "4g"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = "id string, ts_ms long, payload string"


def read_rate(state: DataFrame, keys: int, started: float) -> float:
    """Reads all rows of a frame; returns the keys per second.

    The time counts from `started`, a value of `time.perf_counter`.

    Raises:
        ValueError: The frame has another number of rows.
    """
    rows = Observation()
    state.observe(rows, F.count(F.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    if rows.get["rows"] != keys:
        raise ValueError(f"{rows.get['rows']:,} rows were read instead of {keys:,}")
    return keys / seconds


def session(work: str, cores: int, *, jars: str = "", master: str = "") -> SparkSession:
    """Returns a session tuned for this job; local by default.

    It has as many state partitions as cores, and RocksDB with changelog checkpoints.
    """
    settings = {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.ui.enabled": "false",
        "spark.local.dir": f"{work}/spark",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.shuffle.compress": "false",  # as in Keyscale's drivers: all shuffles are on one host
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        **({"spark.jars": jars} if jars else {}),
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master or f"local[{cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def run(task: DedupTask, transform: Callable[[DataFrame], DataFrame]) -> Mapping[str, Any]:
    """Runs all input through `transform` into files, in committed micro-batches."""
    spark = session(task.work, task.cores)
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", task.files_per_batch).parquet(task.input)
    writer = transform(events).writeStream.format("parquet").option("checkpointLocation", f"{task.work}/checkpoint")
    progress = Progress()
    query = writer.trigger(availableNow=True).start(str(task.output))
    query.awaitTermination()
    batches = _note_batches(query, progress)
    answer = progress.answer(task.events, folder_bytes(Path(task.work, "checkpoint", "state")), batches=batches)
    spark.stop()
    return answer


def _note_batches(query: StreamingQuery, progress: Progress) -> int:
    reports = [report for report in query.recentProgress if report["numInputRows"]]
    begun = [dt.datetime.fromisoformat(report["timestamp"]) for report in reports]
    records = 0
    for report, batch_begun in zip(reports, begun, strict=True):
        records += report["numInputRows"]
        progress.processed(
            records, (batch_begun - begun[0]).total_seconds() + report["durationMs"]["triggerExecution"] / 1000
        )
    return len(reports)
