"""The records of a recorded batch, read again from the sources."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from keyscale.jobs.errors import SourceRecordsLostError
from keyscale.jobs.operators.failures import typed_failure
from keyscale.jobs.runtime.batch.job_sources import JobSources
from keyscale.jobs.runtime.batch.source_order import order_of, recorded_order
from keyscale.jobs.runtime.driver.resume_plan import manifest_positions, resume_positions
from keyscale.jobs.runtime.errors import BatchOrderError
from keyscale.jobs.spark_internals.checkpoint_directory import PositionsDirectory, planned_files
from keyscale.jobs.spark_internals.hadoop_files import missing_files
from keyscale.units import counted

from .errors import ReplayRecordsGoneError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from keyscale.jobs.graph.topology import Topology
    from keyscale.state.doors.reading import RecordedBatch

_POLL_SECONDS = 0.1


def read_records(
    spark: SparkSession, topology: Topology, batch: RecordedBatch, directory: Path
) -> tuple[JobSources, DataFrame | None]:
    """Returns the sources, and the records of a batch.

    A batch of time alone has None instead of records.

    Spark gets the positions that the batch was planned with, as at a restart of the job. So it reads exactly the
    records of the batch.

    Args:
        spark: The session.
        topology: The program.
        batch: The batch.
        directory: An existing directory for Spark's checkpoint directory.

    Raises:
        ReplayRecordsGoneError: The records are gone.
        RestoreRefusedError: The program has other sources than the job.
        KeyscaleError: A source does not answer.
    """
    point = batch.before
    recorded = resume_positions(manifest_positions(point.store, point.manifest), point.resume)
    sources = sources_of(topology, batch)
    if point.resume.planned is None:
        return sources, None
    _check_files(spark, batch)
    positions = PositionsDirectory(directory / "positions")
    positions.write(sources.positions(recorded))
    number = batch.batch_id - point.resume.time.time_batches
    found: list[DataFrame] = []
    done = threading.Event()

    def keep(frame: DataFrame, batch_id: int) -> None:
        if done.is_set():
            return
        if batch_id != number:
            raise BatchOrderError(f"Spark's batch {batch_id} came in the place of its batch {number}")
        found.append(frame.localCheckpoint())
        done.set()

    query = sources.stream().writeStream.foreachBatch(keep).option("checkpointLocation", positions.location).start()
    try:
        while not done.wait(_POLL_SECONDS):
            _check(query, batch.batch_id)
    finally:
        query.stop()
    return sources, found[0]


def sources_of(topology: Topology, batch: RecordedBatch) -> JobSources:
    """Returns a program's sources in the order of the batch's inputs."""
    point = batch.before
    recorded = resume_positions(manifest_positions(point.store, point.manifest), point.resume)
    uids = [node.uid for node in topology.sources]
    return JobSources.ordered(topology.sources, order_of(uids, recorded_order(recorded)))


def _check_files(spark: SparkSession, batch: RecordedBatch) -> None:
    """Checks that the files of a batch exist.

    Spark leaves missing files out.
    """
    plan = batch.before.resume.planned
    files = [] if plan is None else planned_files(plan.positions)
    gone = missing_files(spark, files)
    if gone:
        raise ReplayRecordsGoneError(
            f"the records of batch {batch.batch_id} are gone: {len(gone)} of its {counted(len(files), 'file')},"
            f" such as {gone[0]}"
        )


def _check(query: StreamingQuery, batch_id: int) -> None:
    """Raises the failure of a query that has ended."""
    failure = query.exception()
    if failure is None:
        return
    error = typed_failure(failure)
    if isinstance(error, SourceRecordsLostError):
        raise ReplayRecordsGoneError(f"the records of batch {batch_id} are gone: {error}") from failure
    raise error from failure
