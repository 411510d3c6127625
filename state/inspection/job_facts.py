"""Facts about a job that its commit log and snapshots show.

Its driver may have ended without reporting them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.units import counted

from ..documents.checked_document import DocumentCorruptError, FormatTooNewError
from ..documents.manifest import read_manifest
from ..layout import Layout
from ..log.commit_log import CommitLog, LogGapError
from ..log.output_history import keeps_output_of, output_history
from ..log.recovery import missing_files
from ..objects.errors import ObjectNotFoundError
from .foreign_files import foreign_files

if TYPE_CHECKING:
    from keyscale.identifiers import Attempt, CheckpointId, JobId

    from ..documents.job_counters import JobCounters
    from ..documents.manifest import Manifest
    from ..objects.object_store import ObjectStore

_UNREADABLE = (DocumentCorruptError, FormatTooNewError, LogGapError)


def newest_attempt(store: ObjectStore, job_id: JobId) -> int:
    """Returns the highest attempt in a job's log.

    It is 0 if the log is empty or cannot be read.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    try:
        last = CommitLog(store, Layout(job_id)).last()
    except _UNREADABLE:  # the driver says what is wrong with the log
        return 0
    return 0 if last is None else last[1].attempt


def newest_counters(store: ObjectStore, job_id: JobId) -> JobCounters:
    """Returns a job's counters after the last commit in its log.

    Raises:
        KeyscaleError: The store is unavailable, or the log cannot be read.
    """
    return CommitLog(store, Layout(job_id)).newest_counters()


def find_snapshot(
    store: ObjectStore, job_id: JobId, checkpoint_id: CheckpointId, savepoint_id: str | None
) -> Manifest | None:
    """Returns the manifest of a job's checkpoint, or of its savepoint.

    None: it is not published, or cannot be read.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    try:
        return read_manifest(store, Layout(job_id).manifest(checkpoint_id, savepoint_id))
    except (ObjectNotFoundError, DocumentCorruptError, FormatTooNewError):
        return None


def has_committed(store: ObjectStore, manifest: Manifest, attempt: Attempt) -> bool:
    """Returns whether an attempt committed the last batch of a snapshot.

    A snapshot without batches counts as committed.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    position = manifest.log_position
    try:
        last = CommitLog(store, Layout(manifest.job_id)).between(position - 1, position) if position else []
    except (ObjectNotFoundError, *_UNREADABLE):
        return False
    return all(entry.attempt == attempt for entry in last)


def first_commit_after(store: ObjectStore, job_id: JobId, path: str, newer_than: Attempt) -> int | None:
    """Returns when later attempts first committed after a snapshot.

    Args:
        store: The job's object store.
        job_id: The job.
        path: The snapshot's manifest.
        newer_than: The attempt that later attempts follow.

    Returns:
        Milliseconds since the epoch; None without such a commit, or if the log or the manifest cannot be read.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    try:
        manifest = read_manifest(store, path)
        first = CommitLog(store, Layout(job_id)).first_commit(manifest, newer_than=newer_than)
    except (ObjectNotFoundError, *_UNREADABLE):
        return None
    return None if first is None else first.committed_at_ms


def keeps_output(store: ObjectStore, manifest: Manifest) -> bool:
    """Returns whether the sinks of a snapshot's job keep the snapshot's output.

    They have taken some of it back if the job has left the snapshot's history. True if the log cannot be read.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    try:
        history = output_history(CommitLog(store, Layout(manifest.job_id)))
    except _UNREADABLE:  # the driver says what is wrong with the log
        return True
    return keeps_output_of(history, manifest)


def files_problem(store: ObjectStore, manifest: Manifest) -> str | None:
    """Returns why a job cannot start from a snapshot's files, or None.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    if foreign := foreign_files(store, manifest):  # before checking whether the files exist
        return f"it has {counted(len(foreign), 'file')} of another job: {foreign[0]}"
    if missing := missing_files(store, manifest):
        return f"it has {counted(len(missing), 'file')} missing, such as {missing[0]}"
    return None
