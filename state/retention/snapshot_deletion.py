"""Deletes one checkpoint or savepoint with its exclusive files.

The caller makes sure that the snapshot is not in use: jobs do not start from it, running batches do not depend on it,
and it is not its job's newest checkpoint, with which the next checkpoint shares files. A file that only an older
checkpoint names was compacted away, and later checkpoints do not name it again.

A claimed snapshot is left alone, even if its own job has claimed it: checkpoints reference its files. The job that has
claimed it deletes it when it is no longer needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.failpoints import failpoint

from ..documents.checked_document import DocumentCorruptError, FormatTooNewError
from ..documents.claim import claimant_of
from ..documents.manifest import read_manifest
from ..layout import MANIFEST_NAME, Layout
from ..objects.errors import ObjectNotFoundError
from .deletion import DELETES_AT_A_TIME, LISTINGS
from .deletion_plan import RetentionError, directory_of

if TYPE_CHECKING:
    from collections.abc import Container

    from keyscale.identifiers import JobId

    from ..documents.manifest import FileHandle
    from ..objects.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class SnapshotObjects:
    """The objects of one snapshot: their sizes by path.

    Attributes:
        own: The snapshot's exclusive objects.
        shared: Objects that other checkpoints name, too.
    """

    own: dict[str, int]
    shared: dict[str, int]


def snapshot_objects(store: ObjectStore, job_id: JobId, path: str) -> SnapshotObjects:
    """Returns the current objects of a snapshot.

    Args:
        store: The object store.
        job_id: The job that took it.
        path: Its manifest's path; the manifest may be gone already.

    Raises:
        RetentionError: A job has claimed it, or another checkpoint's files are unknown.
        StoreUnavailableError: The store is unavailable.
    """
    owner = claimant_of(store, path)
    if owner is not None:
        raise RetentionError(f"job {owner!r} has claimed {path}, and deletes it when it is no longer needed")
    inside = {info.path: info.size_bytes for info in store.list(directory_of(path))}
    layout = Layout(job_id)
    shared = {file.path: file.size_bytes for file in _files(store, path) if file.path.startswith(layout.shared)}
    needed = _named_by_others(store, layout, path, shared) if shared else set()
    own = {each: size for each, size in shared.items() if each not in needed}
    return SnapshotObjects(inside | own, {each: size for each, size in shared.items() if each in needed})


def delete_snapshot(store: ObjectStore, job_id: JobId, path: str) -> SnapshotObjects:
    """Deletes a snapshot; may die at any step and be repeated.

    Another call deletes the rest of its directory. Shared files without a remaining manifest are collected by the job's
    own clean-up.

    Returns:
        The deleted and the remaining objects.

    Raises:
        RetentionError, StoreUnavailableError: As `snapshot_objects`; nothing was deleted.
    """
    objects = snapshot_objects(store, job_id, path)
    store.delete([path])  # first: if a manifest is there, so are its files
    failpoint("snapshot_deletion.manifest_deleted")
    rest = [each for each in objects.own if each != path]
    for start in range(0, len(rest), DELETES_AT_A_TIME):
        store.delete(rest[start : start + DELETES_AT_A_TIME])
    return objects


def _files(store: ObjectStore, path: str) -> tuple[FileHandle, ...]:
    try:
        return tuple(read_manifest(store, path).files())
    except (ObjectNotFoundError, DocumentCorruptError, FormatTooNewError):
        return ()


def _named_by_others(store: ObjectStore, layout: Layout, path: str, shared: Container[str]) -> set[str]:
    """Returns the shared files that the job's other checkpoints name.

    Savepoints have their own copies.
    """
    for _ in range(LISTINGS):
        listed = [info.path for info in store.list(layout.checkpoints) if info.path.endswith(f"/{MANIFEST_NAME}")]
        try:
            others = (file.path for each in listed if each != path for file in read_manifest(store, each).files())
            return {each for each in others if each in shared}
        except ObjectNotFoundError:
            continue  # deleted since: a newer manifest, not listed yet, may name its files
        except (DocumentCorruptError, FormatTooNewError) as error:
            raise RetentionError(f"a manifest cannot be read, so its files are unknown: {error}") from error
    raise RetentionError("a listed manifest is never found, so its files are unknown")
