"""A job's own copy of another job's checkpoint, made as a savepoint.

Retention may delete the checkpoint while another job restores from it. So that job first makes a copy inside the store
and claims it. Its first checkpoint then references the copied files, and its retention deletes what is no longer
needed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from keyscale.identifiers import Attempt

from ..documents.manifest import SnapshotKind, write_manifest
from ..layout import Layout

if TYPE_CHECKING:
    from keyscale.identifiers import JobId

    from ..documents.manifest import FileHandle, Manifest, SnapshotHandle
    from ..objects.object_store import ObjectStore

_COPIERS = 16


def own_copy(store: ObjectStore, manifest: Manifest, job_id: JobId, savepoint_id: str) -> Manifest:
    """Copies a checkpoint with all its files, and publishes the copy's manifest.

    The copy contains no part of the job's log, so it counts only for an attempt that restores from it by name.

    Args:
        store: The object store.
        manifest: The other job's checkpoint.
        job_id: The job that gets the copy.
        savepoint_id: The copy's id, unique among the job's savepoints.

    Raises:
        ObjectNotFoundError: A file is gone.
        StoreUnavailableError: The store is unavailable.
    """
    layout = Layout(job_id)
    targets = {
        file.path: layout.savepoint_file(savepoint_id, file.sha256, Attempt(0), manifest.checkpoint_id)
        for file in manifest.files()
    }
    sources = {target: source for source, target in targets.items()}
    with ThreadPoolExecutor(_COPIERS, thread_name_prefix="own-copy") as copiers:
        list(copiers.map(lambda target: store.copy(sources[target], target), sources))

    def moved(file: FileHandle) -> FileHandle:
        return msgspec.structs.replace(file, path=targets[file.path])

    def of_subtask(handle: SnapshotHandle) -> SnapshotHandle:
        shards = tuple(msgspec.structs.replace(shard, files=tuple(map(moved, shard.files))) for shard in handle.shards)
        state = msgspec.UNSET if handle.operator_state_file is None else moved(handle.operator_state_file)
        return msgspec.structs.replace(handle, shards=shards, operator_state=state)

    copy = msgspec.structs.replace(
        manifest,
        job_id=job_id,
        kind=SnapshotKind.SAVEPOINT,
        savepoint_id=savepoint_id,
        attempt=Attempt(0),
        log_position=0,
        operators=tuple(
            msgspec.structs.replace(operator, subtasks=tuple(map(of_subtask, operator.subtasks)))
            for operator in manifest.operators
        ),
        positions=None if manifest.positions is None else moved(manifest.positions),
        sinks={},
        forked_from=manifest.job_id,
        counters=msgspec.UNSET,
        rewinds=msgspec.UNSET,
    )
    write_manifest(store, copy)
    return copy
