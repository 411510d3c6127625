"""The oldest batch of a job whose records its sources still have."""

from __future__ import annotations

import json
from bisect import bisect_left
from typing import TYPE_CHECKING

from keyscale.jobs.sources.positions import BatchPositions
from keyscale.jobs.sources.source_reader import source_of
from keyscale.jobs.spark_internals.checkpoint_directory import ends_of, planned_files
from keyscale.jobs.spark_internals.hadoop_files import missing_files
from keyscale.jobs.spark_internals.source_inputs import streams_of
from keyscale.state.doors.reading import RecordedBatch

from .recorded_input import sources_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from keyscale.identifiers import JobId
    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.sources.source import Source
    from keyscale.state.doors.objects import ObjectStore


def oldest_with_records(
    spark: SparkSession, topology: Topology, store: ObjectStore, job_id: JobId, first: int
) -> int | None:
    """Returns the oldest batch whose records exist.

    Sources delete their oldest records first, so each look at a batch halves the batches that are left.

    Args:
        spark: The session.
        topology: The program.
        store: The object store of the job.
        job_id: The job.
        first: The batch to begin with; the state before it is stored.

    Returns:
        The number of the batch; None if the records of all planned batches are gone.

    Raises:
        KeyscaleError: The store or a source does not answer.
    """
    following = RecordedBatch.of_job(store, job_id)
    is_planned = following.before.resume.planned is not None
    numbers = range(first, following.batch_id + is_planned)

    def has_records(number: int) -> bool:
        return _has_records(spark, topology, RecordedBatch.of_job(store, job_id, number))

    found = bisect_left(numbers, True, key=has_records)
    return numbers[found] if found < len(numbers) else None


def _has_records(spark: SparkSession, topology: Topology, batch: RecordedBatch) -> bool:
    planned = batch.before.resume.planned
    if planned is None:
        return True
    if missing_files(spark, planned_files(planned.positions)):
        return False
    frames = [node.frame for node in sources_of(topology, batch).nodes]
    sources = [source_of(stream) for stream in streams_of(frames)]
    number = batch.batch_id - batch.before.resume.time.time_batches
    return not has_losses(sources, ends_of(planned.positions, number, len(sources)))


def has_losses(sources: Sequence[Source | None], ends: Sequence[str | None]) -> bool:
    """Returns whether sources have lost records of a batch.

    Args:
        sources: The source of each input; None: a stream of Spark's own.
        ends: The recorded positions of each input; None: the batch read nothing of it.
    """
    for source, end in zip(sources, ends, strict=True):
        if source is not None and end is not None:
            ranges = BatchPositions.from_json(json.loads(end)).ranges()
            if source.losses({each.split: (each.start, each.end) for each in ranges}):
                return True
    return False
