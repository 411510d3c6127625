"""Writes the records of jobs to the object store."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from keyscale.state.doors.catalogue import DocumentCorruptError, FormatTooNewError, read_job_record, write_job_record
from keyscale.state.doors.objects import ObjectNotFoundError
from keyscale.state.doors.paths import JOB_RECORDS, Layout

from ..store_check import open_to_read, store_failures
from .isolation import local_directory, make_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyscale.state.doors.catalogue import JobRecord
    from keyscale.state.doors.objects import ObjectStore


def keep_record(store_url: str, record: JobRecord, read_artifact: Callable[[str], Iterable[bytes]]) -> None:
    """Stores a record with its artifacts, and deletes the job's outdated ones.

    The artifacts are stored first: a record never names missing bytes.

    Args:
        store_url: The job's store.
        record: The record.
        read_artifact: Yields the bytes of the artifact with a SHA-256.

    Raises:
        StoreUnavailableError: The store does not answer, or refuses.
        JobUserError: Another object has the name of the directory of records.
    """
    if (objects := local_directory(store_url)) is not None:
        if not objects.exists():
            objects.mkdir(parents=True, mode=0o711)
        make_directory(objects / JOB_RECORDS.rstrip("/"))  # the users of jobs may not read the records
    layout = Layout(record.job_id)
    with store_failures():
        store = open_to_read(store_url)
        stored = {info.path: info.size_bytes for info in store.list(layout.records)}
        for artifact in record.artifacts:
            path = layout.recorded_artifact(artifact.sha256)
            if stored.get(path) != artifact.size_bytes:
                _upload(store, path, read_artifact(artifact.sha256))
        write_job_record(store, record)
        _delete_outdated(store, record, stored)


def _upload(store: ObjectStore, path: str, chunks: Iterable[bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="keyscale-artifact-") as directory:
        source = Path(directory) / "content"
        with source.open("wb") as file:
            file.writelines(chunks)
        store.upload(source, path)


def _delete_outdated(store: ObjectStore, record: JobRecord, stored: Iterable[str]) -> None:
    """Deletes outdated records, and artifacts that no record names.

    Records before the attempt that `record` continues are outdated. A newer attempt's record stays, as
    an older leader may write last.
    """
    layout = Layout(record.job_id)
    attempts = {attempt for path in stored if (attempt := layout.recorded_attempt(path)) is not None}
    outdated = {attempt for attempt in attempts if attempt < record.continues}
    try:
        others = [read_job_record(store, record.job_id, each) for each in sorted(attempts - outdated)]
    except (DocumentCorruptError, FormatTooNewError, ObjectNotFoundError):
        return  # the artifacts that it names are unknown
    named = {layout.recorded_artifact(each.sha256) for other in (record, *others) for each in other.artifacts}
    unnamed = [path for path in stored if layout.recorded_attempt(path) is None and path not in named]
    store.delete([*(layout.record(attempt) for attempt in sorted(outdated)), *unnamed])
