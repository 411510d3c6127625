"""Deletes the objects of a deleted job, except its savepoints.

The job's records go first, so that no job is rebuilt from a record whose state is half deleted.

Savepoints belong to the user and depend on no other object. A savepoint that another job has claimed is that job's. The
job's own copy of another job's checkpoint is not a user's savepoint.

The job's own claims end: a savepoint that it has claimed is its user's again. If the job has already deleted the
manifest of a claimed savepoint, the remaining files are deleted.

An unreachable driver may still write. So the log is closed first: an entry that drivers do not write takes the next
position, and fences such a driver at its next entry. The closing entry stays until the last pass.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import UnsetType

from keyscale.failpoints import failpoint

from ..documents.checked_document import DocumentCorruptError, FormatTooNewError
from ..documents.claim import CLAIM_NAME, claim_path, read_claim
from ..documents.manifest import read_manifest
from ..layout import MANIFEST_NAME, Layout, LocationError, job_of_manifest
from ..log.commit_log import CLOSED, CommitLog
from ..objects.errors import ObjectExistsError, ObjectNotFoundError, StoreRefusedError
from .deletion import DELETES_AT_A_TIME
from .deletion_plan import claimed_by, directory_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from keyscale.identifiers import JobId

    from ..objects.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class DeletedObjects:
    """The result of a pass.

    Attributes:
        objects: How many objects were deleted, without the log's closing entry.
        size_bytes: Their size.
        unfinished_writes: How many unfinished writes of killed processes were removed.
        savepoints: Paths of the manifests of the savepoints that stay.
    """

    objects: int
    size_bytes: int
    unfinished_writes: int
    savepoints: tuple[str, ...]


def delete_job_objects(
    store: ObjectStore,
    job_id: JobId,
    *,
    is_last: bool,
    writes_before_ms: int | None = None,
    claimed: Collection[str] = (),
    discarded: Collection[str] = (),
) -> DeletedObjects:
    """Runs a pass, which may die at any step and be repeated.

    Args:
        store: The object store.
        job_id: A job that drivers may no longer run.
        is_last: Whether all drivers are certainly dead, so that the log need not stay closed.
        writes_before_ms: Also removes unfinished writes that began before this time; None: keeps them.
        claimed: Paths of manifests that the job may have claimed, besides the claims in its log.
        discarded: Paths of manifests of the job's savepoints that their user has deleted: these do not stay.

    Raises:
        StoreUnavailableError: The store is unavailable.
        StoreRefusedError: The credentials do not allow it.
    """
    layout = Layout(job_id)
    records = list(store.list(layout.records))
    store.delete([info.path for info in records])
    objects = list(store.list(layout.job))
    last = max(filter(None, (layout.log_position(info.path) for info in objects)), default=None)
    closing = None
    if last is not None:
        closing = _closed(store, layout, last)
        objects = list(store.list(layout.job))
    paths = {*claimed, *_claimed_by_log(store, layout, [info.path for info in objects if info.path != closing])}
    if [path for path in sorted(paths) if _end_claim(store, job_id, path)]:
        objects = list(store.list(layout.job))
    savepoints = {
        directory_of(info.path): info.path
        for info in objects
        if info.path.startswith(layout.savepoints) and info.path.rpartition("/")[2] in {MANIFEST_NAME, CLAIM_NAME}
    }
    claims = {info.path for info in objects if info.path.endswith(f"/{CLAIM_NAME}")}
    savepoints = {
        directory: path
        for directory, path in savepoints.items()
        if not _is_own_copy(store, f"{directory}{MANIFEST_NAME}")
        and (f"{directory}{MANIFEST_NAME}" not in discarded or f"{directory}{CLAIM_NAME}" in claims)
    }
    doomed = sorted(
        (info for info in objects if info.path != closing and not info.path.startswith(tuple(savepoints))),
        key=lambda info: info.path.rpartition("/")[2] != MANIFEST_NAME,  # if a manifest is there, so are its files
    )
    for start in range(0, len(doomed), DELETES_AT_A_TIME):
        store.delete([info.path for info in doomed[start : start + DELETES_AT_A_TIME]])
        failpoint("deleted_job.objects_deleted")
    if is_last and closing is not None:
        store.delete([closing])
    return DeletedObjects(
        len(records) + len(doomed),
        sum(info.size_bytes for info in (*records, *doomed)),
        0
        if writes_before_ms is None
        else sum(_remove_unfinished(store, prefix, writes_before_ms) for prefix in (layout.records, layout.job)),
        tuple(sorted(path for path in savepoints.values() if path.endswith(f"/{MANIFEST_NAME}"))),
    )


def _claimed_by_log(store: ObjectStore, layout: Layout, paths: Sequence[str]) -> frozenset[str]:
    positions = [position for path in paths if (position := layout.log_position(path)) is not None]
    try:
        return claimed_by(CommitLog(store, layout).openings(positions))
    except (DocumentCorruptError, FormatTooNewError):  # then only the claims that the caller knows
        return frozenset()


def _end_claim(store: ObjectStore, job_id: JobId, path: str) -> bool:
    """Ends a job's claim of a savepoint; returns whether there was one."""
    try:
        job_of_manifest(path)  # the job has written its log, and may name any path
        claim = read_claim(store, claim_path(path))
    except (LocationError, DocumentCorruptError, FormatTooNewError):
        return False
    if claim is None or claim.job_id != job_id:
        return False
    if store.head(path) is None:
        store.delete([info.path for info in store.list(directory_of(path)) if info.path != claim_path(path)])
    store.delete([claim_path(path)])
    return True


def _is_own_copy(store: ObjectStore, path: str) -> bool:
    try:
        return not isinstance(read_manifest(store, path).forked_from, UnsetType)
    except (DocumentCorruptError, FormatTooNewError, ObjectNotFoundError):
        return False


def _closed(store: ObjectStore, layout: Layout, last: int) -> str:
    """Returns the path of the log's closing entry, creating it if missing."""
    while not _is_closing(store, layout.log_entry(last)):
        last += 1
        with contextlib.suppress(ObjectExistsError):  # a driver has just appended, or an earlier call has created it
            store.create(layout.log_entry(last), CLOSED)
    failpoint("deleted_job.log_closed")
    return layout.log_entry(last)


def _is_closing(store: ObjectStore, path: str) -> bool:
    found = store.head(path)  # the job has written the log, and may have made an entry of any size
    return found is not None and found.size_bytes == len(CLOSED) and store.get(path) == CLOSED


def _remove_unfinished(store: ObjectStore, prefix: str, before_ms: int) -> int:
    try:
        return store.remove_unfinished(prefix, before_ms)
    except StoreRefusedError:
        return 0
