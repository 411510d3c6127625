"""Deletes one checkpoint or savepoint whose owner wants it gone, with the files that nothing else names.

The caller makes sure that no job starts from it, that no running batch can be rebuilt from it, and that it is not the
newest checkpoint of its job: a driver that takes the next one only shares files with the newest. A file that an older
checkpoint alone names was compacted away, and no later checkpoint names it again.

A claimed snapshot is left alone, also if its own job has claimed it: checkpoints name its files as they are. The job
that has claimed it deletes it once it needs it no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..documents.checked_document import DocumentCorruptError, FormatTooNewError
from ..documents.claim import claim_path, read_claim
from ..documents.manifest import read_manifest
from ..layout import MANIFEST_NAME, Layout
from ..objects.errors import ObjectNotFoundError
from ..syncpoint import reach
from .deletion_plan import RetentionError, directory_of

if TYPE_CHECKING:
    from ..documents.manifest import FileHandle
    from ..identifiers import JobId
    from ..objects.object_store import ObjectStore

_DELETES_AT_A_TIME = 500
_LISTINGS = 5


@dataclass(frozen=True, slots=True)
class SnapshotObjects:
    """The objects of one snapshot: their sizes by path.

    Attributes:
        own: Those that nothing else needs.
        shared: Those that other checkpoints name.
    """

    own: dict[str, int]
    shared: dict[str, int]


def snapshot_objects(store: ObjectStore, job_id: JobId, path: str) -> SnapshotObjects:
    """Returns the objects of a snapshot, as they are now.

    Args:
        store: The object store.
        job_id: The job that took it.
        path: Where its manifest is; it may be gone already.

    Raises:
        RetentionError: A job has claimed it, or it is unknown which files another checkpoint needs.
        StoreUnavailableError: The store is unavailable.
    """
    claim = read_claim(store, claim_path(path))
    if claim is not None:
        raise RetentionError(f"job {claim.job_id!r} has claimed {path}, and deletes it once it needs it no more")
    inside = {info.path: info.size_bytes for info in store.list(directory_of(path))}
    layout = Layout(job_id)
    shared = {file.path: file.size_bytes for file in _files(store, path) if file.path.startswith(layout.shared)}
    needed = _named_by_others(store, layout, path) if shared else set()
    own = {each: size for each, size in shared.items() if each not in needed}
    return SnapshotObjects(inside | own, {each: size for each, size in shared.items() if each in needed})


def delete_snapshot(store: ObjectStore, job_id: JobId, path: str) -> SnapshotObjects:
    """Deletes a snapshot. It may die at any step; another call deletes the rest of its directory.

    Shared files whose manifest is gone by then are collected by the job's own clean-up.

    Returns:
        What was deleted, and what stays.

    Raises:
        RetentionError, StoreUnavailableError: As `snapshot_objects`; nothing was deleted.
    """
    objects = snapshot_objects(store, job_id, path)
    store.delete([path])  # first: if a manifest is there, so are its files
    reach("snapshot_deletion.manifest_deleted")
    rest = [each for each in objects.own if each != path]
    for start in range(0, len(rest), _DELETES_AT_A_TIME):
        store.delete(rest[start : start + _DELETES_AT_A_TIME])
    return objects


def _files(store: ObjectStore, path: str) -> tuple[FileHandle, ...]:
    try:
        return tuple(read_manifest(store, path).files())
    except (ObjectNotFoundError, DocumentCorruptError, FormatTooNewError):
        return ()


def _named_by_others(store: ObjectStore, layout: Layout, path: str) -> set[str]:
    """Returns the files that the job's other checkpoints name; savepoints have copies of their own."""
    for _ in range(_LISTINGS):
        listed = [info.path for info in store.list(layout.checkpoints) if info.path.endswith(f"/{MANIFEST_NAME}")]
        try:
            return {file.path for each in listed if each != path for file in read_manifest(store, each).files()}
        except ObjectNotFoundError:
            continue  # deleted since: a newer one, which was not listed yet, may name its files
        except (DocumentCorruptError, FormatTooNewError) as error:
            raise RetentionError(f"a manifest cannot be read, nor which files it needs: {error}") from error
    raise RetentionError("a listed manifest is never found, so it is unknown which files it needs")
