"""Stores the changed state of a subtask of a snapshot."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from typing import TYPE_CHECKING

import msgspec

from keyscale.identifiers import OperatorUid

from ..documents.state_version import StateVersion
from ..local.subtask_directory import snapshots_root
from ..snapshot.snapshot import LocalSnapshot, link_snapshot, upload_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..documents.manifest import SnapshotHandle
    from ..engine.engine import Engine
    from ..keyed.schema import KeyedSchema
    from .new_savepoint import NewSavepoint


def store_changed(
    savepoint: NewSavepoint,
    uid: str,
    snapshot: SnapshotHandle,
    shards: Sequence[Engine],
    *,
    schema: KeyedSchema,
    scratch: Path,
) -> SnapshotHandle:
    """Stores the changed shards of a subtask in a new savepoint.

    Files that the change has left as they are are copied inside the store, and so is the operator state.

    Args:
        savepoint: The new savepoint.
        uid: The operator.
        snapshot: The subtask's snapshot before the change.
        shards: The open shards, in the snapshot's order.
        schema: The schema of the changed entries.
        scratch: An existing directory.

    Raises:
        ObjectNotFoundError: A file of the snapshot is gone.
        StoreUnavailableError: The object store is unavailable.
        DiskFullError, DiskReadOnlyError, StoreIOError: The scratch directory cannot be written.
    """
    root, unique = scratch / uuid.uuid4().hex, uuid.uuid4().hex
    directory = snapshots_root(root) / f"{savepoint.checkpoint_id}-{unique}"
    lineage = hashlib.sha256(f"{snapshot.lineage}\n{savepoint.unique}\n{unique}".encode()).hexdigest()
    store = savepoint.store()
    try:
        link_snapshot(directory, shards)
        local = LocalSnapshot(
            directory=str(directory),
            local_root=str(root),
            job_id=savepoint.job_id,
            operator_uid=OperatorUid(uid),
            subtask=snapshot.subtask,
            attempt=savepoint.attempt,
            checkpoint_id=savepoint.checkpoint_id,
            unique=unique,
            version=StateVersion(snapshot.batch_id, lineage),
            key_groups=snapshot.key_groups,
            shards=tuple(shard.key_groups for shard in snapshot.shards),
            schema=schema,
        )
        known = {file.sha256: file.path for file in snapshot.files() if file.shared}
        uploaded = upload_snapshot(local, store, savepoint.layout, {}, savepoint.savepoint_id, copies=known).handle
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if snapshot.operator_state_file is None:
        return uploaded
    return msgspec.structs.replace(uploaded, operator_state=savepoint.copies().file(snapshot.operator_state_file))
