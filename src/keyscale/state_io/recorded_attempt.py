"""Finds a job and its attempts by the objects in its store."""

from __future__ import annotations

from keyscale.identifiers import JobId
from keyscale.state.doors.objects import open_store
from keyscale.state.doors.paths import job_of_manifest, split_location
from keyscale.state.doors.reading import RecordedBatch


def job_at(location: str) -> tuple[str, str]:
    """Returns the store's URL and the job of a location.

    Raises:
        LocationError: The location does not lead to a manifest.
    """
    root, path = split_location(location)
    return root, job_of_manifest(path)


def recorded_attempt(store_url: str, job_id: str, batch_id: int | None = None) -> int:
    """Returns the attempt that has committed a batch.

    Args:
        store_url: The job's object store.
        job_id: The job.
        batch_id: The batch; None, or the batch after the last commit: the attempt that would run it now.

    Raises:
        BatchNotStoredError: The job has no such batch, or the state before it was cleaned up.
        KeyscaleError: The store does not answer, or its content cannot be read.
    """
    return RecordedBatch.of_job(open_store(store_url), JobId(job_id), batch_id).attempt
