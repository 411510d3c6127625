"""A savepoint with any number of UUID keys, written without a job.

The deduplication job of bench/peers restores it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from bench.store.keys import BATCH_KEYS, MAX_PARALLELISM, key_column
from bench.store.lone_subtask import JOB, local_root, object_store, spec_of
from keyscale.clock import now_ms
from keyscale.identifiers import Attempt, BatchId, CheckpointId, OperatorUid
from keyscale.state.documents.manifest import (
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    SnapshotKind,
    write_manifest,
)
from keyscale.state.documents.state_version import NO_BATCH
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import location_of
from keyscale.state.restore.plan import RestorePlan
from keyscale.state.snapshot.snapshot import upload_snapshot
from keyscale.state.subtask.store import open_subtask

if TYPE_CHECKING:
    from collections.abc import Mapping

SAVEPOINT = "filled"
KEY = pa.schema([("id", pa.string())])


def run(*, work: str, target: str, keys: int, parallelism: int, operator_uid: str, ttl_hours: int) -> Mapping[str, Any]:
    """Writes a savepoint with UUIDs number 0 to `keys` in state.

    The state is `deduplicate`'s; the savepoint is in the folder `target`.

    Returns:
        `location` to restore from, `state_bytes`, and the `rate` of inserted keys.
    """
    store = object_store(work)
    stores = [
        open_subtask(
            spec_of(KEY, index=index, parallelism=parallelism, operator_uid=OperatorUid(operator_uid)),
            None,
            RestorePlan(),
            local_root(work),
            store,
        )
        for index in range(parallelism)
    ]
    seen = [
        subtask.keyed.state(ValueStateDescriptor("seen", pa.bool_(), ttl=Ttl.hours(ttl_hours))) for subtask in stores
    ]
    started = time.perf_counter()
    for number, first in enumerate(range(0, keys, BATCH_KEYS)):
        column = key_column(np.arange(first, min(first + BATCH_KEYS, keys), dtype=np.uint64), uuids=True)
        owners = column.key_groups * parallelism // MAX_PARALLELISM
        for index, (subtask, state) in enumerate(zip(stores, seen, strict=True)):
            own = np.flatnonzero(owners == index)
            state.insert_if_absent_many(column.key_groups[own], [column.keys.take(pa.array(own))], True)
            subtask.finish_batch(BatchId(number), "bench")
    seconds = time.perf_counter() - started
    shutil.rmtree(Path(work, "objects"))  # the changelogs: the savepoint needs none
    target_store = object_store(target)
    handles = []
    for subtask in stores:
        subtask.engine.flush()
        local = subtask.snapshot(CheckpointId(1))
        uploaded = upload_snapshot(local, target_store, subtask.spec.layout, {}, SAVEPOINT)
        # As if it were from before any batch: the job that starts from it reads its source from the beginning.
        handles.append(msgspec.structs.replace(uploaded.handle, batch_id=NO_BATCH))
        subtask.abandon()
    declaration = OperatorDeclaration(tuple((field.name, str(field.type)) for field in KEY))
    manifest = Manifest(
        job_id=JOB,
        checkpoint_id=CheckpointId(1),
        kind=SnapshotKind.SAVEPOINT,
        attempt=Attempt(1),
        batch_id=NO_BATCH,
        log_position=0,
        max_parallelism=MAX_PARALLELISM,
        hash_id=HashId.SPARK,
        created_at_ms=now_ms(),
        operators=(OperatorSnapshot(OperatorUid(operator_uid), parallelism, declaration, tuple(handles)),),
        savepoint_id=SAVEPOINT,
    )
    write_manifest(target_store, manifest)
    location = location_of(target_store.url, manifest.path)
    return {"location": location, "state_bytes": manifest.state_size_bytes, "rate": keys / seconds}
