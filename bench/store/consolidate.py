"""Merges a scale-in's two shards in a process, beside the batches."""

from __future__ import annotations

import os
import resource
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.store.filled import SEEN, checkpoint, fill
from bench.store.keys import key_column
from bench.store.lone_subtask import INT64_KEY, local_root, object_store, spec_of
from keyscale.identifiers import BatchId, CheckpointId
from keyscale.state.consolidation.consolidator import start_consolidator
from keyscale.state.log.resolution import OperatorHistory
from keyscale.state.restore.plan import plan_subtask, version_of
from keyscale.state.subtask.open_store_cache import OpenStoreCache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.state.subtask.store import SubtaskStore

BATCH_KEYS = 10_000
BATCHES_BEFORE = 40
BATCH_SECONDS = 0.25  # the best of real jobs; without a pause the result would never catch up with the last few batches
BATCHES_PER_CHECKPOINT = 20
BATCHES_MAX = 1_000
SEED = 7


class NeverMergedError(AssertionError):
    """The merge has not ended."""


def run(*, work: str, keys: int) -> Mapping[str, Any]:
    """Measures batches before, beside and after the merge of two subtasks.

    It fills two subtasks, restores both as one, and changes random keys in each batch.

    Returns:
        `merge_seconds`: from its start to the batch that has taken over the result; `merge_cpu_seconds` of its process;
        `before_batch_seconds`, `beside_batch_seconds`: medians per batch; `take_over_seconds`: of the batch that takes
        the result over.
    """
    stores = fill(work, keys, 2)
    for subtask in stores:
        subtask.engine.flush()
    manifest, _, _ = checkpoint(work, stores, 1, {})
    for subtask in stores:
        subtask.close()
    batches = _Batches(work, keys, OperatorHistory(manifest.operators[0].subtasks, ()))
    before = [batches.run()[1] for _ in range(BATCHES_BEFORE)]
    with batches.taken() as store:
        consolidation = store.snapshot(CheckpointId(2)).consolidation
    assert consolidation is not None  # noqa: S101 (there are two shards)
    began, used = time.perf_counter(), _children_cpu_seconds()
    beside: list[float] = []
    for number in range(BATCHES_MAX):
        if number % BATCHES_PER_CHECKPOINT == 0:  # as each checkpoint does: an old result must catch up
            start_consolidator(Path(consolidation), os.getpid())
        shards, seconds = batches.run()
        if shards == 1:
            break
        beside.append(seconds)
        time.sleep(max(0.0, BATCH_SECONDS - seconds))
    else:
        raise NeverMergedError
    merge_seconds = time.perf_counter() - began
    batches.warm.close()
    return {
        "merge_seconds": merge_seconds,
        "merge_cpu_seconds": _children_cpu_seconds() - used,
        "before_batch_seconds": statistics.median(before),
        "beside_batch_seconds": statistics.median(beside),
        "beside_worst_seconds": max(beside),
        "before_worst_seconds": max(before),
        "take_over_seconds": seconds,
        "state_bytes": manifest.state_size_bytes,
    }


class _Batches:
    """One subtask's batches, on an open store as in a worker."""

    def __init__(self, work: str, keys: int, history: OperatorHistory) -> None:
        self.warm = OpenStoreCache()
        self._work = work
        self._keys = keys
        self._spec = spec_of(INT64_KEY, attempt=2)
        self._plan = plan_subtask(history, self._spec.key_group_range)
        self._batch = max(snapshot.batch_id for snapshot in history.snapshots)
        self._random = np.random.default_rng(SEED)
        self._store = object_store(work)

    def taken(self) -> SubtaskStore:
        """Returns the store at the newest version."""
        version = version_of(self._plan, self._spec.key_group_range, self._batch)
        return self.warm.take(self._spec, version, self._plan, local_root(self._work), self._store)

    def run(self) -> tuple[int, float]:
        """Runs a batch; returns its number of shards and its seconds.

        The seconds include opening.
        """
        numbers = np.unique(self._random.integers(0, self._keys, BATCH_KEYS, dtype=np.uint64))
        column = key_column(numbers)
        began = time.perf_counter()
        store = self.taken()
        state = store.keyed.state(SEEN)
        values = pa.array(np.full(len(numbers), self._batch, dtype=np.int64))
        state.put_many(column.key_groups, [column.keys], values)
        self._batch = BatchId(self._batch + 1)
        handle = store.finish_batch(self._batch, "bench")
        shards = store.shard_count
        self.warm.give_back(store)
        seconds = time.perf_counter() - began
        self._plan = self._plan.followed_by(handle)
        return shards, seconds


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
