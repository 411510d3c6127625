"""One subtask's store without a job, opened as in a task.

Its directory and object store are local.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bench.store.keys import MAX_PARALLELISM
from keyscale.identifiers import Attempt, JobId, OperatorUid, SubtaskIndex
from keyscale.state.engine.rocksdb_settings import RocksDbSettings
from keyscale.state.keys.hashing import HashId
from keyscale.state.local.subtask_spec import SubtaskSpec
from keyscale.state.objects.opening import open_store
from keyscale.state.restore.plan import RestorePlan
from keyscale.state.subtask.store import SubtaskStore, open_subtask

if TYPE_CHECKING:
    from keyscale.state.objects.object_store import ObjectStore

JOB = JobId("bench-state")
OPERATOR = OperatorUid("operator")
INT64_KEY = pa.schema([("key", pa.int64())])
SETTLE_SECONDS = 0.02
STRING_KEY = pa.schema([("key", pa.string())])


def spec_of(
    key_schema: pa.Schema,
    *,
    index: int = 0,
    parallelism: int = 1,
    attempt: int = 1,
    operator_uid: OperatorUid = OPERATOR,
) -> SubtaskSpec:
    """Returns a subtask of the benchmark's one operator."""
    return SubtaskSpec(
        job_id=JOB,
        operator_uid=operator_uid,
        index=SubtaskIndex(index),
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        hash_id=HashId.SPARK,
        key_schema=key_schema,
        attempt=Attempt(attempt),
    )


def object_store(work: str) -> ObjectStore:
    """Returns a local object store."""
    return open_store(Path(work, "objects").as_uri())


def local_root(work: str) -> Path:
    """Returns the root of local state."""
    return Path(work, "local")


def fresh_subtask(work: str, key_schema: pa.Schema, settings: RocksDbSettings | None = None) -> SubtaskStore:
    """Opens an empty subtask."""
    spec = replace(spec_of(key_schema), settings=settings or RocksDbSettings())
    return open_subtask(spec, None, RestorePlan(), local_root(work), object_store(work))


def settle(subtask: SubtaskStore) -> None:
    """Flushes, and waits for the last of successive compactions."""
    subtask.engine.flush()
    idle = 0
    while idle < 2:  # between two of them the store is idle for a moment
        time.sleep(SETTLE_SECONDS)
        idle = 0 if subtask.engine.is_busy() else idle + 1
