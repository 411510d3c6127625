"""A batch takes no more memory than its budget, whatever the size of the values that it reads and changes."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from keyscale.identifiers import BatchId
from keyscale.state.engine.rocksdb_options import shared_memory
from keyscale.state.engine.rocksdb_settings import MEBIBYTE, RocksDbSettings
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.subtask.store import open_subtask
from tests.support.peak_memory import peak_growth_bytes
from tests.support.short_form import short_form
from tests.support.state.state_job import StateJob, group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from keyscale.state.local.subtask_spec import SubtaskSpec
    from keyscale.state.subtask.store import SubtaskStore

BUDGET_BYTES = 16 * MEBIBYTE
BUDGET = RocksDbSettings(memory_budget_bytes=BUDGET_BYTES, background_consolidation=False)
BUDGETS = 12  # that a batch takes without its limit
BLOB = ValueStateDescriptor("blob", pa.binary())
RANDOM = np.random.default_rng(1).bytes(2 * MEBIBYTE)


class BlobJob(StateJob):
    """A job with values of any size."""

    settings = BUDGET

    def spec(self, index: int) -> SubtaskSpec:
        return replace(super().spec(index), settings=self.settings)


def job_in(home: Path, parallelism: int = 1) -> BlobJob:
    job = BlobJob(LocalObjectStore(home / "store"), home / "local")
    job.start(parallelism)
    return job


def blob(key: int, size: int) -> bytes:
    return RANDOM[key % MEBIBYTE :][:size]


def update(store: SubtaskStore, keys: Iterable[int], size: int) -> None:
    state = store.keyed.state(BLOB)
    for key in keys:
        store.keyed.set_current_key(group_of(key), (key,))
        state.update(blob(key, size))


def walk(store: SubtaskStore, keys: list[int], size: int) -> int:
    """Reads each key's value as a process function does; returns how many are as they were written."""
    state, column = store.keyed.state(BLOB), pa.array(keys)
    groups = np.array([group_of(key) for key in keys], np.int32)
    each = store.keyed.each_key(groups, [column], ((key,) for key in keys))
    return sum(state.value() == blob(key, size) for (key,) in each)


def read_in_columns(store: SubtaskStore, keys: list[int], size: int) -> int:
    state, right, first = store.keyed.state(BLOB), 0, 0
    while first < len(keys):
        part = keys[first : first + store.keyed.rows_at_once]
        found = state.get_many(np.array([group_of(key) for key in part], np.int32), [pa.array(part)])
        right += sum(each.as_py() == blob(key, size) for key, each in zip(part, found, strict=True))
        store.keyed.make_room(len(part))
        first += len(part)
    return right


def prepare(home: Path, form: str, size: int, budget_bytes: int, is_limited: bool) -> Callable[[], object]:
    """Returns a batch over many times the budget; `is_limited` False: with a budget that it does not reach."""
    job = job_in(home)
    total_bytes = BUDGETS * budget_bytes
    job.settings = replace(BUDGET, memory_budget_bytes=budget_bytes if is_limited else 16 * total_bytes)
    keys = list(range(total_bytes // size))
    if form != "write":
        per_batch = max(1, 4 * MEBIBYTE // size)
        for first in range(0, len(keys), per_batch):
            job.adds = lambda store, _, __, part=keys[first : first + per_batch]: update(store, part, size)
            job.run_batch({})
    if form == "replay":
        job.local_root = home / "elsewhere"
        return lambda: job.open(0).close()
    store = job.open(0)
    batch_id = BatchId(job.batch_id + 1)
    store.begin_batch(batch_id)

    def write() -> None:
        update(store, keys, size)
        handle = store.finish_batch(batch_id, "unique")
        assert handle is not None
        assert handle.mutations == len(keys)
        assert is_limited == (len(handle.sorted_files) > 10)

    def read() -> None:
        assert (walk if form == "read" else read_in_columns)(store, keys, size) == len(keys)

    return write if form == "write" else read


@pytest.mark.parametrize("form", ["write", "read"])
def test_a_batch_of_many_times_the_budget_keeps_to_it(tmp_path: Path, form: str) -> None:
    # On a quiet host it is four to six budgets, as some buffers do not follow the budget. On a busy one, buffers that
    # wait to be written come on top.
    budget_bytes = BUDGET_BYTES // 2
    assert peak_growth_bytes(prepare, tmp_path, form, MEBIBYTE, budget_bytes, True) < 3 * BUDGETS * budget_bytes / 4


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [10 * 1024, MEBIBYTE])
@pytest.mark.parametrize("form", ["write", "read", "columns", "replay"])
def test_a_batch_of_values_of_any_size_keeps_to_its_budget(tmp_path: Path, form: str, size: int) -> None:
    # On a quiet host it is three to five budgets.
    assert peak_growth_bytes(prepare, tmp_path, form, size, BUDGET_BYTES, True) < 2 * BUDGETS * BUDGET_BYTES / 3


@pytest.mark.parametrize("form", ["write", "read"])
def test_without_its_limit_such_a_batch_takes_as_much_as_its_values(tmp_path: Path, form: str) -> None:
    budget_bytes = BUDGET_BYTES // 2
    assert peak_growth_bytes(prepare, tmp_path, form, MEBIBYTE, budget_bytes, False) > BUDGETS * budget_bytes


@pytest.mark.parametrize("parallelism", short_form([1, 2], [2]))
def test_a_batch_that_spills_with_several_shards_is_restored_as_a_whole(tmp_path: Path, parallelism: int) -> None:
    job, size = job_in(tmp_path, 3), MEBIBYTE // 2
    job.settings = replace(BUDGET, memory_budget_bytes=BUDGET_BYTES // 2)
    job.run_batch(dict.fromkeys(range(30), 1))
    job.checkpoint()
    job.start(parallelism, job.manifest.path if job.manifest else None)
    handles = []
    for index in range(parallelism):
        with job.open(index) as store:
            assert store.shard_count > 1
            store.begin_batch(BatchId(1))
            keys = list(job.own(index, dict.fromkeys(range(24), 1)))
            for _ in range(3):
                update(store, keys, size)
            handle = store.finish_batch(BatchId(1), uuid.uuid4().hex)
            assert handle is not None
            assert len(handle.sorted_files) > store.shard_count, "it spilled"
            assert walk(store, keys, size) == len(keys)
            handles.append(handle)
    job.commit(BatchId(1), handles)
    for restored in (parallelism, 4):
        job.start(restored, job.manifest.path if job.manifest else None)
        job.local_root = tmp_path / f"elsewhere-{restored}"
        for index in range(restored):
            with job.open(index) as store:
                keys = list(job.own(index, dict.fromkeys(range(24), 1)))
                assert walk(store, keys, size) == len(keys)
        assert job.dump() == dict.fromkeys(range(30), 1)


def test_a_large_batch_takes_its_memory_from_the_cache_and_gives_it_back(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    memory = shared_memory(BUDGET)
    for ends in ("finished", "abandoned"):
        store = job.open(0)
        before = memory.charged_bytes
        store.begin_batch(BatchId(0))
        update(store, range(1), 1000)
        store.keyed.make_room()
        assert memory.charged_bytes == before, "a small batch leaves the cache as it is"
        update(store, range(5), MEBIBYTE)
        store.keyed.make_room()
        assert memory.charged_bytes - before >= 4 * MEBIBYTE
        if ends == "finished":
            store.finish_batch(BatchId(0), "unique")
        else:
            store.abandon()
        assert memory.charged_bytes - before < MEBIBYTE
        store.abandon()


def test_a_large_value_is_not_in_a_changelogs_frames(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    with open_subtask(job.spec(0), job.version(0), job.plans[0], job.local_root, job.store) as store:
        update(store, range(5), MEBIBYTE)
        handle = store.finish_batch(BatchId(0), "unique")
    assert handle is not None
    assert (handle.size_bytes < 1000, [file.mutations for file in handle.sorted_files]) == (True, [5])
