"""A ValueState read and updated record by record.

Contenders are Keyscale, the heap, and rocksdict alone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rocksdict import Options, Rdict, WriteOptions

from bench.store.keys import key_column
from bench.store.lone_subtask import INT64_KEY, fresh_subtask
from keyscale.identifiers import BatchId
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BATCH_RECORDS = 50_000


def run(*, work: str, engine: str, keys: int, records: int) -> Mapping[str, Any]:
    """Adds one to the count of each of `records` random keys.

    The `keys` keys are all present.
    """
    column = key_column(np.arange(keys, dtype=np.uint64))
    groups, values = column.key_groups.tolist(), column.keys.to_pylist()
    rows = np.random.default_rng(2).integers(0, keys, records).tolist()
    step = {"plain": _plain, "heap": _heap}.get(engine, _subtask)(work)
    for first in range(0, keys, BATCH_RECORDS):
        step(groups[first : first + BATCH_RECORDS], values[first : first + BATCH_RECORDS])
    batches = [rows[first : first + BATCH_RECORDS] for first in range(0, records, BATCH_RECORDS)]
    started = time.perf_counter()
    for batch in batches:
        step([groups[row] for row in batch], [values[row] for row in batch])
    return {"rate": records / (time.perf_counter() - started)}


def _subtask(work: str) -> Callable[[list[int], list[int]], None]:
    subtask = fresh_subtask(work, INT64_KEY)
    count = _counting(subtask.keyed)
    batch_id = -1

    def step(groups: list[int], keys: list[int]) -> None:
        nonlocal batch_id
        batch_id += 1
        count(groups, keys)
        subtask.finish_batch(BatchId(batch_id), "bench")

    return step


def _heap(work: str) -> Callable[[list[int], list[int]], None]:  # noqa: ARG001 - it needs no folder
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, INT64_KEY, lambda: 0)
    count = _counting(backend)

    def step(groups: list[int], keys: list[int]) -> None:
        count(groups, keys)
        engine.write_runs(backend.drain())

    return step


def _counting(backend: KeyedStateBackend) -> Callable[[list[int], list[int]], None]:
    state = backend.state(ValueStateDescriptor("count", pa.int64()))

    def count(groups: list[int], keys: list[int]) -> None:
        for group, key in zip(groups, keys, strict=True):
            backend.set_current_key(group, (key,))
            state.update((state.value() or 0) + 1)

    return count


def _plain(work: str) -> Callable[[list[int], list[int]], None]:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(Path(work, "plain")), options)
    unlogged = WriteOptions()
    unlogged.disable_wal = True  # type: ignore[assignment,method-assign] # its stub calls the setter a method

    def step(groups: list[int], keys: list[int]) -> None:
        for group, key in zip(groups, keys, strict=True):
            stored = group.to_bytes(2, "big") + key.to_bytes(8, "big", signed=True)
            raw = database.get(stored)
            counted = int.from_bytes(raw, "big") if raw is not None else 0
            database.put(stored, (counted + 1).to_bytes(8, "big"), unlogged)

    return step
