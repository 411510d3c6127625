"""A batch with more changes than fit in memory spills to files; its changelog and a restore work as usual."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from keyscale.identifiers import BatchId
from keyscale.state.engine.rocksdb_settings import MEBIBYTE, RocksDbSettings
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.subtask.store import open_subtask
from tests.support.peak_memory import peak_growth_bytes
from tests.support.state.state_job import COUNT, MAX_PARALLELISM, StateJob, add, entries, group_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyscale.state.subtask.store import SubtaskStore

SMALL = RocksDbSettings(memory_budget_bytes=8 * MEBIBYTE)
ROUNDS = 24
KEYS_A_ROUND = 50_000


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch({1: 1, 2: 2})
    return job


def opened(job: StateJob) -> SubtaskStore:
    spec = replace(job.spec(0), settings=SMALL)
    return open_subtask(spec, job.version(0), job.plans[0], job.local_root, job.store)


def test_a_batch_that_spills_reads_its_own_writes_and_is_restored_as_a_whole(job: StateJob) -> None:
    batch_id = BatchId(1)
    with opened(job) as store:
        for increments in ({1: 10, 3: 1}, {1: 5, 2: 1}, {3: 1, 4: 1}):
            add(store, increments)
            store.spill(batch_id)
            assert store.keyed.pending_count == 0
        add(store, {1: 100})
        handle = store.finish_batch(batch_id, uuid.uuid4().hex)
        found = entries(store)
    assert handle is not None
    assert len(handle.sorted_files) == 4, (
        "three spills, and the rest in a file of its own: their order is that of the writes"
    )
    assert found == {1: 116, 2: 3, 3: 2, 4: 1}
    job.commit(batch_id, [handle])
    job.start(2)
    assert job.dump() == found


def test_a_spilled_file_is_clipped_to_the_very_key_group_on_both_sides(job: StateJob) -> None:
    batch_id, counts = BatchId(1), dict.fromkeys(range(8 * MAX_PARALLELISM), 1)
    assert len({group_of(key) for key in counts}) == MAX_PARALLELISM
    with opened(job) as store:
        add(store, counts)
        store.spill(batch_id)
        handle = store.finish_batch(batch_id, uuid.uuid4().hex)
        found = entries(store)
    job.commit(batch_id, [handle])
    job.start(MAX_PARALLELISM)
    assert job.dump() == found


def test_a_batch_that_changes_nothing_after_its_spill_is_complete(job: StateJob) -> None:
    with opened(job) as store:
        add(store, {1: 10})
        store.spill(BatchId(1))
        handle = store.finish_batch(BatchId(1), uuid.uuid4().hex)
    job.commit(BatchId(1), [handle])
    job.start(1)
    assert job.dump() == {1: 11, 2: 2}


def test_a_batch_that_failed_after_it_spilled_leaves_nothing(job: StateJob) -> None:
    store = opened(job)
    add(store, {1: 10})
    store.spill(BatchId(1))
    assert not store.resume(job.version(0)), "the files on disk are not the committed state"
    store.abandon()
    assert job.dump() == {1: 1, 2: 2}


def test_a_small_batch_does_not_spill(job: StateJob) -> None:
    with opened(job) as store:
        store.begin_batch(BatchId(1))
        add(store, {1: 10})
        store.keyed.make_room()
        assert store.keyed.pending_count == 1
        store.finish_batch(BatchId(1), uuid.uuid4().hex)


def test_a_batch_that_changes_more_entries_than_may_be_in_memory_spills(job: StateJob) -> None:
    spec = replace(job.spec(0), settings=replace(SMALL, batch_entries_max=10))
    with open_subtask(spec, job.version(0), job.plans[0], job.local_root, job.store) as store:
        store.begin_batch(BatchId(1))
        add(store, dict.fromkeys(range(100, 111), 1))
        store.keyed.make_room()
        assert store.keyed.pending_count == 0
        handle = store.finish_batch(BatchId(1), uuid.uuid4().hex)
    assert handle is not None
    assert handle.mutations == 11


@pytest.mark.parametrize("spills", [True, False])
def test_memory_is_bounded_in_a_batch_that_is_much_larger_than_the_budget(tmp_path: Path, spills: bool) -> None:
    grown_bytes = peak_growth_bytes(_large_batch, tmp_path, spills)
    if spills:
        assert grown_bytes < 48 * MEBIBYTE
    else:
        assert grown_bytes > 96 * MEBIBYTE, "the batch is not large enough to show anything"


def _large_batch(home: Path, spills: bool) -> Callable[[], object]:
    job = StateJob(LocalObjectStore(home / "store"), home / "local")
    job.start(1)
    store = opened(job)
    state = store.keyed.state(COUNT)

    def part(number: int) -> None:
        keys = np.arange(number * KEYS_A_ROUND, (number + 1) * KEYS_A_ROUND)
        state.put_many((keys % 16).astype(np.int32), [pa.array(keys)], pa.array(keys))
        store.keyed.make_room(len(keys))

    def batch() -> None:
        for number in range(2, ROUNDS):
            part(number)
        handle = store.finish_batch(BatchId(0), uuid.uuid4().hex)
        assert handle is not None
        assert handle.mutations == ROUNDS * KEYS_A_ROUND

    if spills:
        store.begin_batch(BatchId(0))
    for number in range(2):
        part(number)
    return batch
