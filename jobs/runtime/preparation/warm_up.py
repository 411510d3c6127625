"""Warms up a waiting driver, so that its first batch is fast.

A JVM takes seconds for its first streaming batch: classes are loaded, code is generated and compiled, Python workers
start and import Arrow. A tiny job of the same shape does all that beforehand. In a driver with immediate work, only the
workers are started, beside the job's script.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from ...spark_internals.affinity import SUBTASK_COLUMN, PlacementDataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_ROWS = '{"key": "a", "value": 1}\n{"key": "b", "value": 2}\n'


class WarmUp:
    """A thread that runs a tiny streaming job twice.

    Then it deletes the job's files.
    """

    def __init__(self, spark: SparkSession, directory: Path, parallelism: int) -> None:
        self._spark = spark
        self._directory = directory
        self._parallelism = parallelism
        self._thread = threading.Thread(target=self._run, name="warm-up", daemon=True)
        self._cancelled = threading.Event()
        self._done = threading.Event()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def start(self) -> None:
        """Starts, unless it has started."""
        if self._thread.ident is None:
            self._thread.start()

    def wait(self) -> None:
        """Waits for the end of the whole warm-up."""
        self._done.wait()

    def finish(self) -> None:
        """Waits for a running step, and skips the rest."""
        self._cancelled.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        started = time.perf_counter()
        try:
            for turn in range(2):
                if not self._cancelled.is_set():
                    self.run_job(turn)
        except Exception:
            logger.warning("the warm-up failed", exc_info=True)
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._done.set()
        logger.info("warm after %.1f s", time.perf_counter() - started)

    def run_job(self, turn: int) -> None:
        """Runs the tiny job, for the first or the second time."""
        directory = self._directory / str(turn)
        source = directory / "in"
        source.mkdir(parents=True)
        (source / "rows.json").write_text(_ROWS, encoding="utf-8")
        placement = PlacementDataset.create(self._spark, self._parallelism)
        stream = self._spark.readStream.schema("key string, value bigint").json(str(source))
        subtask = F.pmod(F.hash("key"), F.lit(self._parallelism)).cast("int").alias(SUBTASK_COLUMN)

        def run_batch(frame: DataFrame, _batch_id: int) -> None:
            frame.mapInArrow(_pass_on, frame.schema).write.parquet(str(directory / "out"))

        query = (
            placement.route(stream.select("*", subtask))
            .writeStream.foreachBatch(run_batch)
            .option("checkpointLocation", f"file://{directory / 'positions'}")
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()
            placement.release()


def start_workers(spark: SparkSession, count: int) -> threading.Thread:
    """Starts the Python workers of `count` tasks in a thread.

    Returns the thread. Without it, the first batch or restore would wait for the workers, while the steps before use
    only one core.
    """

    def start() -> None:
        try:
            spark.sparkContext.setJobDescription("start workers")
            spark.sparkContext.parallelize(range(count), count).foreach(_import_task)
        except Exception:
            logger.info("no workers were started ahead", exc_info=True)

    thread = threading.Thread(target=start, name="start-workers", daemon=True)
    thread.start()
    return thread


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _import_task(None)
    yield from batches


def _import_task(_: object) -> None:
    """Imports, in the worker, the modules that a batch's task needs."""
    from ..executor import task  # noqa: F401, PLC0415
