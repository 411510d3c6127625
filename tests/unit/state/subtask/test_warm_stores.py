"""Stores that stay open between batches keep the same state and never block another process."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale.identifiers import BatchId
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ListStateDescriptor
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.operator_state.operator_files import OperatorStatePlan
from keyscale.state.subtask.warm_stores import WarmStores
from tests.support.state.state_job import StateJob, add, entries
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from keyscale.state.subtask.store import SubtaskStore


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch({1: 1})
    return job


@pytest.fixture
def warm() -> Iterator[WarmStores]:
    stores = WarmStores()
    yield stores
    stores.close()


def take(warm: WarmStores, job: StateJob) -> SubtaskStore:
    return warm.take(job.spec(0), job.version(0), job.plans[0], job.local_root, job.store)


def run_batch(warm: WarmStores, job: StateJob, increments: Mapping[int, int]) -> SubtaskStore:
    store = take(warm, job)
    add(store, increments)
    handle = store.finish_batch(BatchId(job.batch_id + 1), "unique")
    warm.give_back(store)
    job.commit(BatchId(job.batch_id + 1), [handle])
    return store


def test_the_same_open_store_serves_batch_after_batch(job: StateJob, warm: WarmStores) -> None:
    first = run_batch(warm, job, {1: 10})
    assert run_batch(warm, job, {1: 100, 2: 2}) is first
    assert entries(take(warm, job)) == {1: 111, 2: 2}


def test_a_store_with_operator_state_is_not_reused_when_that_is_redistributed(job: StateJob, warm: WarmStores) -> None:
    """An attempt that begins again in the same process: other subtasks may now have these elements."""
    places = ListStateDescriptor("places", pa.int64())
    store = take(warm, job)
    store.operator.list_state(places).add_all([1, 2])
    handle = store.finish_batch(BatchId(job.batch_id + 1), "unique")
    warm.give_back(store)
    job.commit(BatchId(job.batch_id + 1), [handle])
    assert take(warm, job) is store
    warm.give_back(store)
    dealt = OperatorStatePlan(job.plans[0].operator_state.files, inherited=True)
    job.plans = [replace(job.plans[0], operator_state=dealt)]
    again = take(warm, job)
    assert again is not store
    assert (again.operator.is_restored, again.operator.list_state(places).get()) == (True, [1, 2])
    again.close()


def test_a_store_with_a_batch_that_was_never_committed_is_not_reused(job: StateJob, warm: WarmStores) -> None:
    store = take(warm, job)
    add(store, {1: 10})
    store.finish_batch(BatchId(1), "unique")
    warm.give_back(store)
    again = take(warm, job)
    assert again is not store
    assert entries(again) == {1: 1}
    again.close()


def test_changes_of_an_unfinished_batch_are_gone_when_the_store_is_taken_again(job: StateJob, warm: WarmStores) -> None:
    store = take(warm, job)
    add(store, {1: 10})
    warm.give_back(store)
    again = take(warm, job)
    assert again is store
    assert again.finish_batch(BatchId(1), "unique") is None
    again.close()


def test_another_process_gets_a_warm_store_at_once_and_without_a_rebuild(job: StateJob, warm: WarmStores) -> None:
    run_batch(warm, job, {1: 10})
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    other = context.Process(target=_open_elsewhere, args=(job.store, job.local_root, job, results))
    other.start()
    rebuilt, state, seconds = results.get(timeout=60)
    other.join()
    assert (rebuilt, state) == (False, {1: 11})
    assert seconds < 3, "the bounded wait for a lock that is never released is longer"


def test_a_store_that_another_process_asks_for_during_a_batch_is_handed_over_after_it(
    job: StateJob, warm: WarmStores
) -> None:
    store = take(warm, job)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    other = context.Process(target=_open_elsewhere, args=(job.store, job.local_root, job, results))
    other.start()
    wait_until(lambda: store.hand_over_signal.is_requested, what="the other process to ask")
    warm.give_back(store)
    rebuilt, state, _seconds = results.get(timeout=60)
    other.join()
    assert (rebuilt, state) == (False, {1: 1})


def _open_elsewhere(
    store: LocalObjectStore,
    local_root: Path,
    job: StateJob,
    results: multiprocessing.Queue,  # type: ignore[type-arg]  # generic in stubs only
) -> None:
    del store, local_root
    began = time.monotonic()
    with job.open(0) as opened:
        results.put((opened.fetched is not None, entries(opened), time.monotonic() - began))


def test_an_idle_store_is_closed_cleanly(job: StateJob) -> None:
    warm = WarmStores(idle_seconds_max=0.0)
    run_batch(warm, job, {1: 10})
    wait_until(lambda: list(job.local_root.rglob("CLEAN")), what="the idle store to be closed")
    with job.open(0) as store:
        assert store.fetched is None


def test_a_store_that_is_taken_again_has_the_times_of_its_batch_even_if_they_are_earlier(
    job: StateJob, warm: WarmStores
) -> None:
    """A repeated batch must expire the same entries, also after a try that only moved the clock forward."""
    spec, version, plan = job.spec(0), job.version(0), job.plans[0]
    first = warm.take(
        spec, version, plan, job.local_root, job.store, clock=BatchClock(processing_time_ms=50, event_time_ms=5)
    )
    assert isinstance(first.keyed.clock, BatchClock)
    first.keyed.clock.advance(event_time_ms=9)
    first.finish_batch(BatchId(1), "unique")
    warm.give_back(first)
    again = warm.take(
        spec, version, plan, job.local_root, job.store, clock=BatchClock(processing_time_ms=40, event_time_ms=5)
    )
    assert again is first
    assert (again.keyed.clock.processing_time_ms, again.keyed.clock.event_time_ms) == (40, 5)
    again.close()


def test_above_the_limit_the_store_that_has_been_idle_longest_is_closed_cleanly(job: StateJob) -> None:
    warm = WarmStores(stores_max=1)
    job.start(2)
    stores = [warm.take(job.spec(i), job.version(i), job.plans[i], job.local_root, job.store) for i in range(2)]
    for store in stores:
        warm.give_back(store)
    with job.open(0) as reopened:
        assert reopened.fetched is None
        assert reopened is not stores[0]
    assert warm.take(job.spec(1), job.version(1), job.plans[1], job.local_root, job.store) is stores[1]
    stores[1].close()


def test_a_store_that_failed_is_not_kept(job: StateJob, warm: WarmStores) -> None:
    held = warm.held(job.spec(0), job.version(0), job.plans[0], job.local_root, job.store)
    with contextlib.suppress(ZeroDivisionError), held as failed:
        add(failed, {1: 1})
        _ = 1 / 0
    again = take(warm, job)
    assert again is not failed
    assert entries(again) == {1: 1}, "as committed"
    again.close()
