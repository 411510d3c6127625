"""A job's own copy of another job's checkpoint, made as a savepoint.

Retention may delete the checkpoint while another job restores from it. So that job first makes a copy inside the store
and claims it. Its first checkpoint then references the copied files, and its retention deletes what is no longer
needed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from keyscale.identifiers import Attempt

from ..documents.manifest import SnapshotKind, write_manifest
from ..layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyscale.identifiers import CheckpointId, JobId

    from ..documents.manifest import FileHandle, Manifest, OperatorSnapshot, SnapshotHandle
    from ..objects.object_store import ObjectStore

_COPIERS = 16


@dataclass(frozen=True, slots=True)
class FileCopies:
    """Copies of snapshots' files for a savepoint, made inside the store.

    Attributes:
        store: The object store.
        layout: Paths of the savepoint's job.
        savepoint_id: The savepoint.
        checkpoint_id: The number in the savepoint's manifest.
    """

    store: ObjectStore
    layout: Layout
    savepoint_id: str
    checkpoint_id: CheckpointId

    def file(self, file: FileHandle) -> FileHandle:
        """Copies a file; raises as `make`."""
        self.make([file])
        return self.moved(file)

    def operator(self, operator: OperatorSnapshot) -> OperatorSnapshot:
        """Copies the files of an operator; raises as `make`."""
        self.make(file for subtask in operator.subtasks for file in subtask.files())
        return msgspec.structs.replace(operator, subtasks=tuple(map(self.moved_subtask, operator.subtasks)))

    def make(self, files: Iterable[FileHandle]) -> None:
        """Copies files, several at a time.

        Raises:
            ObjectNotFoundError: A file is gone.
            StoreUnavailableError: The store is unavailable.
        """
        sources = {self._target(file): file.path for file in files}
        with ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy") as copiers:
            list(copiers.map(lambda target: self.store.copy(sources[target], target), sources))

    def moved_subtask(self, handle: SnapshotHandle) -> SnapshotHandle:
        """Returns a subtask's snapshot with the copies as its files."""
        shards = tuple(
            msgspec.structs.replace(shard, files=tuple(map(self.moved, shard.files))) for shard in handle.shards
        )
        state = msgspec.UNSET if handle.operator_state_file is None else self.moved(handle.operator_state_file)
        return msgspec.structs.replace(handle, shards=shards, operator_state=state)

    def _target(self, file: FileHandle) -> str:
        return self.layout.savepoint_file(self.savepoint_id, file.sha256, Attempt(0), self.checkpoint_id)

    def moved(self, file: FileHandle) -> FileHandle:
        """Returns the handle of a file's copy."""
        return msgspec.structs.replace(file, path=self._target(file))


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
    copies = FileCopies(store, Layout(job_id), savepoint_id, manifest.checkpoint_id)
    copies.make(manifest.files())
    copy = msgspec.structs.replace(
        manifest,
        job_id=job_id,
        kind=SnapshotKind.SAVEPOINT,
        savepoint_id=savepoint_id,
        attempt=Attempt(0),
        log_position=0,
        operators=tuple(
            msgspec.structs.replace(operator, subtasks=tuple(map(copies.moved_subtask, operator.subtasks)))
            for operator in manifest.operators
        ),
        positions=None if manifest.positions is None else copies.moved(manifest.positions),
        sinks={},
        forked_from=manifest.job_id,
        counters=msgspec.UNSET,
        rewinds=msgspec.UNSET,
    )
    write_manifest(store, copy)
    return copy
