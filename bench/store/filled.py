"""State of a given size, written in columns and checkpointed.

The rescale and checkpoint measurements start from it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bench.store.keys import BATCH_KEYS, MAX_PARALLELISM, key_column
from bench.store.lone_subtask import INT64_KEY, JOB, local_root, object_store, spec_of
from keyscale.identifiers import Attempt, BatchId, CheckpointId
from keyscale.state.documents.manifest import (
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    SnapshotKind,
    write_manifest,
)
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keys.hashing import HashId
from keyscale.state.restore.plan import RestorePlan
from keyscale.state.snapshot.snapshot import upload_snapshot
from keyscale.state.subtask.store import SubtaskStore, open_subtask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyscale.state.documents.manifest import SnapshotHandle
    from keyscale.state.keyed.value import ValueState

SEEN = ValueStateDescriptor("seen", pa.int64())


def fill(work: str, keys: int, parallelism: int) -> list[SubtaskStore]:
    """Opens the subtasks and inserts keys number 0 to `keys`.

    It runs batch by batch, each with its changelog.
    """
    stores = [
        open_subtask(
            spec_of(INT64_KEY, index=index, parallelism=parallelism),
            None,
            RestorePlan(),
            local_root(work),
            object_store(work),
        )
        for index in range(parallelism)
    ]
    states = [store.keyed.state(SEEN) for store in stores]
    for number, first in enumerate(range(0, keys, BATCH_KEYS)):
        put(stores, states, number, np.arange(first, min(first + BATCH_KEYS, keys), dtype=np.uint64), 1)
    return stores


def put(
    stores: Sequence[SubtaskStore],
    states: Sequence[ValueState],
    batch: int,
    numbers: np.ndarray[tuple[int], np.dtype[np.uint64]],
    value: int,
) -> None:
    """Writes one batch of keys by their numbers, each into its subtask."""
    column = key_column(numbers)
    owners = column.key_groups * len(stores) // MAX_PARALLELISM
    for index, (store, state) in enumerate(zip(stores, states, strict=True)):
        own = np.flatnonzero(owners == index)
        keys = column.keys.take(pa.array(own))
        state.put_many(column.key_groups[own], [keys], pa.array(np.full(len(own), value, dtype=np.int64)))
        store.finish_batch(BatchId(batch), "bench")


def checkpoint(
    work: str, stores: Sequence[SubtaskStore], number: int, known: Mapping[str, str]
) -> tuple[Manifest, list[float], int]:
    """Takes a checkpoint and publishes it.

    Returns:
        Its manifest, for each subtask the seconds for which its writer was stopped, and the uploaded bytes.
    """
    store = object_store(work)
    handles: list[SnapshotHandle] = []
    stops: list[float] = []
    uploaded_bytes = 0
    for subtask in stores:
        started = time.perf_counter()
        local = subtask.snapshot(CheckpointId(number))
        stops.append(time.perf_counter() - started)
        uploaded = upload_snapshot(local, store, subtask.spec.layout, known)
        handles.append(uploaded.handle)
        uploaded_bytes += uploaded.uploaded_bytes
    operator_uid, key_schema = stores[0].spec.operator_uid, stores[0].spec.key_schema
    declaration = OperatorDeclaration(tuple((field.name, str(field.type)) for field in key_schema))
    manifest = Manifest(
        job_id=JOB,
        checkpoint_id=CheckpointId(number),
        kind=SnapshotKind.CHECKPOINT,
        attempt=Attempt(1),
        batch_id=handles[0].batch_id,
        log_position=0,
        max_parallelism=MAX_PARALLELISM,
        hash_id=HashId.SPARK,
        created_at_ms=0,
        operators=(OperatorSnapshot(operator_uid, len(stores), declaration, tuple(handles)),),
    )
    write_manifest(store, manifest)
    return manifest, stops, uploaded_bytes
