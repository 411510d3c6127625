"""A batch whose changes are larger than memory goes to files as it runs; the changelog, and what is restored, are as ever."""

from __future__ import annotations

import multiprocessing
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from state.identifiers import BatchId
from state.objects import LocalObjectStore
from state.settings import MEBIBYTE, RocksDbSettings
from state.subtask import open_subtask
from tests.support.state_job import COUNT, StateJob, add, entries

if TYPE_CHECKING:
    from state.subtask import SubtaskStore

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


def test_a_batch_that_spills_reads_what_it_has_written_and_is_restored_as_a_whole(job: StateJob) -> None:
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


def test_a_batch_that_spills_and_changes_nothing_more_is_whole(job: StateJob) -> None:
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
    assert not store.resume(job.version(0)), "what is on disk is not what was committed"
    store.abandon()
    assert job.dump() == {1: 1, 2: 2}


def test_a_small_batch_does_not_spill(job: StateJob) -> None:
    with opened(job) as store:
        add(store, {1: 10})
        store.spill_if_large(BatchId(1))
        assert store.keyed.pending_count == 1
        store.finish_batch(BatchId(1), uuid.uuid4().hex)


@pytest.mark.parametrize("spills", [True, False])
def test_memory_is_bounded_in_a_batch_that_is_much_larger_than_the_budget(tmp_path: Path, spills: bool) -> None:
    context = multiprocessing.get_context("spawn")
    grown: multiprocessing.Queue[tuple[int, int]] = context.Queue()
    process = context.Process(target=_large_batch, args=(tmp_path, spills, grown))
    process.start()
    grown_bytes, mutations = grown.get(timeout=300)
    process.join()
    assert mutations == ROUNDS * KEYS_A_ROUND
    if spills:
        assert grown_bytes < 48 * MEBIBYTE
    else:
        assert grown_bytes > 96 * MEBIBYTE, "the batch is not large enough to show anything"


def _large_batch(home: Path, spills: bool, grown: multiprocessing.Queue[tuple[int, int]]) -> None:
    """Peak memory of a process beyond what it had after a first part of the batch."""
    job = StateJob(LocalObjectStore(home / "store"), home / "local")
    job.start(1)
    with opened(job) as store:
        state = store.keyed.value_state(COUNT)
        before = 0
        for number in range(ROUNDS):
            keys = np.arange(number * KEYS_A_ROUND, (number + 1) * KEYS_A_ROUND)
            groups = (keys % 16).astype(np.int32)
            state.put_many(groups, [pa.array(keys)], pa.array(keys))
            if spills:
                store.spill_if_large(BatchId(0))
            if number == 1:
                before = _peak_bytes()
        peak = _peak_bytes()
        handle = store.finish_batch(BatchId(0), uuid.uuid4().hex)
    assert handle is not None
    grown.put((peak - before, handle.mutations))


def _peak_bytes() -> int:
    # Not ru_maxrss, which a child begins with that of the process that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
