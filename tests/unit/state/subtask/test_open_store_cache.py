"""Stores that stay open between batches keep the same state and never block another process."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import keyscale.state.subtask.store
from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.state.consolidation.consolidation_directory import consolidations
from keyscale.state.errors import DiskFullError
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ListStateDescriptor
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.operator_state.operator_files import OperatorStatePlan
from keyscale.state.restore.opened_shards import StateSource
from keyscale.state.subtask import open_store_cache
from keyscale.state.subtask.open_store_cache import OpenStoreCache
from tests.support.state.state_job import StateJob, add, entries
from tests.support.state.two_shards import leftovers, two_shards
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
def cache() -> Iterator[OpenStoreCache]:
    stores = OpenStoreCache()
    yield stores
    stores.close()


def take(cache: OpenStoreCache, job: StateJob) -> SubtaskStore:
    return cache.take(job.spec(0), job.version(0), job.plans[0], job.local_root, job.store)


def run_batch(cache: OpenStoreCache, job: StateJob, increments: Mapping[int, int]) -> SubtaskStore:
    store = take(cache, job)
    add(store, increments)
    handle = store.finish_batch(BatchId(job.batch_id + 1), "unique")
    cache.give_back(store)
    job.commit(BatchId(job.batch_id + 1), [handle])
    return store


def test_the_same_open_store_serves_batch_after_batch(job: StateJob, cache: OpenStoreCache) -> None:
    first = run_batch(cache, job, {1: 10})
    assert run_batch(cache, job, {1: 100, 2: 2}) is first
    assert entries(take(cache, job)) == {1: 111, 2: 2}


def test_a_store_with_operator_state_is_not_reused_when_that_is_redistributed(
    job: StateJob, cache: OpenStoreCache
) -> None:
    """An attempt that begins again in the same process: other subtasks may now have these elements."""
    places = ListStateDescriptor("places", pa.int64())
    store = take(cache, job)
    store.operator.list_state(places).add_all([1, 2])
    handle = store.finish_batch(BatchId(job.batch_id + 1), "unique")
    cache.give_back(store)
    job.commit(BatchId(job.batch_id + 1), [handle])
    assert take(cache, job) is store
    cache.give_back(store)
    dealt = OperatorStatePlan(job.plans[0].operator_state.files, inherited=True)
    job.plans = [replace(job.plans[0], operator_state=dealt)]
    again = take(cache, job)
    assert again is not store
    assert (again.operator.is_restored, again.operator.list_state(places).get()) == (True, [1, 2])
    again.close()


def test_a_store_with_a_batch_that_was_never_committed_is_not_reused(job: StateJob, cache: OpenStoreCache) -> None:
    store = take(cache, job)
    add(store, {1: 10})
    store.finish_batch(BatchId(1), "unique")
    cache.give_back(store)
    again = take(cache, job)
    assert again is not store
    assert entries(again) == {1: 1}
    again.close()


def test_changes_of_an_unfinished_batch_are_gone_when_the_store_is_taken_again(
    job: StateJob, cache: OpenStoreCache
) -> None:
    store = take(cache, job)
    add(store, {1: 10})
    cache.give_back(store)
    again = take(cache, job)
    assert again is store
    assert again.finish_batch(BatchId(1), "unique") is None
    again.close()


def test_another_process_gets_a_warm_store_at_once_and_without_a_rebuild(job: StateJob, cache: OpenStoreCache) -> None:
    run_batch(cache, job, {1: 10})
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    other = context.Process(target=_open_elsewhere, args=(job.store, job.local_root, job, results))
    other.start()
    rebuilt, state, seconds = results.get(timeout=60)
    other.join()
    assert (rebuilt, state) == (False, {1: 11})
    assert seconds < 3, "the bounded wait for a lock that is never released is longer"


def test_a_store_that_another_process_asks_for_during_a_batch_is_handed_over_after_it(
    job: StateJob, cache: OpenStoreCache
) -> None:
    store = take(cache, job)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    other = context.Process(target=_open_elsewhere, args=(job.store, job.local_root, job, results))
    other.start()
    wait_until(lambda: store.hand_over_signal.is_requested, what="the other process to ask")
    cache.give_back(store)
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
    cache = OpenStoreCache(idle_seconds_max=0.0)
    run_batch(cache, job, {1: 10})
    wait_until(lambda: list(job.local_root.rglob("CLEAN")), what="the idle store to be closed")
    with job.open(0) as store:
        assert store.fetched is None


def test_a_store_that_is_taken_again_has_the_times_of_its_batch_even_if_they_are_earlier(
    job: StateJob, cache: OpenStoreCache
) -> None:
    """A repeated batch must expire the same entries, also after a try that only moved the clock forward."""
    spec, version, plan = job.spec(0), job.version(0), job.plans[0]
    first = cache.take(
        spec, version, plan, job.local_root, job.store, clock=BatchClock(processing_time_ms=50, event_time_ms=5)
    )
    assert isinstance(first.keyed.clock, BatchClock)
    first.keyed.clock.advance(event_time_ms=9)
    first.finish_batch(BatchId(1), "unique")
    cache.give_back(first)
    again = cache.take(
        spec, version, plan, job.local_root, job.store, clock=BatchClock(processing_time_ms=40, event_time_ms=5)
    )
    assert again is first
    assert (again.keyed.clock.processing_time_ms, again.keyed.clock.event_time_ms) == (40, 5)
    again.close()


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_store_that_is_taken_again_writes_to_the_object_store_of_its_batch(
    job: StateJob, cache: OpenStoreCache, tmp_path: Path, *, is_behind: bool
) -> None:
    """Each batch brings an object store, since the rights to it may end."""
    written: list[str] = []

    class Noted(LocalObjectStore):
        def put(self, path: str, data: bytes) -> None:
            written.append(path)
            super().put(path, data)

    store = run_batch(cache, job, {1: 10})
    if is_behind:
        here, job.local_root = job.local_root, tmp_path / "elsewhere"
        job.run_batch({1: 100})
        job.local_root = here
    again = cache.take(job.spec(0), job.version(0), job.plans[0], job.local_root, Noted(tmp_path / "store"))
    assert (again is store, written) == (True, [])
    add(again, {2: 1})
    handle = again.finish_batch(BatchId(job.batch_id + 1), "unique")
    assert handle is not None
    assert written == [handle.path]
    again.close()


def test_a_store_that_was_idle_for_its_time_is_closed_cleanly_by_itself(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_store_cache, "_IDLE_POLL_SECONDS", 0.005)
    cache = OpenStoreCache(idle_seconds_max=0.01)
    store = run_batch(cache, job, {1: 10})
    wait_until(lambda: list(job.local_root.rglob("CLEAN")), what="the idle store to be closed")
    again = take(cache, job)
    assert (again is store, again.source, again.fetched) == (False, StateSource.LOCAL, None)
    again.close()


def test_above_the_limit_the_store_that_has_been_idle_longest_is_closed_cleanly(job: StateJob) -> None:
    cache = OpenStoreCache(stores_max=1)
    job.start(2)
    stores = [cache.take(job.spec(i), job.version(i), job.plans[i], job.local_root, job.store) for i in range(2)]
    for store in stores:
        cache.give_back(store)
    with job.open(0) as reopened:
        assert reopened.fetched is None
        assert reopened is not stores[0]
    assert cache.take(job.spec(1), job.version(1), job.plans[1], job.local_root, job.store) is stores[1]
    stores[1].close()


def test_a_new_attempt_abandons_the_stores_of_its_own_jobs_earlier_attempts(
    job: StateJob, cache: OpenStoreCache
) -> None:
    store = run_batch(cache, job, {1: 2})
    newer = replace(job.spec(0), attempt=Attempt(job.attempt + 1))
    cache.abandon_older(replace(newer, job_id=JobId("another")))
    cache.abandon_older(job.spec(0))
    assert take(cache, job) is store
    cache.give_back(store)
    cache.abandon_older(newer)
    again = take(cache, job)
    assert again is not store
    again.close()


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_store_whose_files_were_removed_with_its_attempt_is_no_damage(
    job: StateJob, caplog: pytest.LogCaptureFixture, *, is_idle: bool
) -> None:
    cache = OpenStoreCache()
    store = run_batch(cache, job, {1: 10})
    shutil.rmtree(store.local_directory)
    if is_idle:
        cache.close()
    else:
        store.abandon()
    assert caplog.text == ""


def test_a_store_that_failed_is_not_kept(job: StateJob, cache: OpenStoreCache) -> None:
    held = cache.held(job.spec(0), job.version(0), job.plans[0], job.local_root, job.store)
    with contextlib.suppress(ZeroDivisionError), held as failed:
        add(failed, {1: 1})
        _ = 1 / 0
    again = take(cache, job)
    assert again is not failed
    assert entries(again) == {1: 1}, "as committed"
    again.close()


def test_a_store_that_cannot_be_kept_is_abandoned_and_says_why(
    job: StateJob, cache: OpenStoreCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = take(cache, job)

    def full() -> None:
        raise DiskFullError("full")

    monkeypatch.setattr(store, "flush_if_large", full)
    with pytest.raises(DiskFullError):
        cache.give_back(store)
    again = take(cache, job)
    assert (again is store, again.source) == (False, StateSource.REBUILT), "its files are not used again"
    again.close()


def test_a_cache_that_keeps_nothing_closes_each_store_cleanly(job: StateJob) -> None:
    cache = OpenStoreCache(idle_seconds_max=0)
    store = take(cache, job)
    cache.give_back(store)
    again = take(cache, job)
    assert (again is store, again.source, again.fetched) == (False, StateSource.LOCAL, None)
    again.close()


def test_a_store_is_flushed_between_two_batches_once_many_mutations_are_in_memory(
    job: StateJob, cache: OpenStoreCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[int] = []
    monkeypatch.setattr(keyscale.state.subtask.store, "UNFLUSHED_MUTATIONS_MAX", 4)
    store = take(cache, job)
    monkeypatch.setattr(store.engine, "begin_flush", lambda: flushes.append(job.batch_id))
    cache.give_back(store)
    for size in (3, 1, 3, 4):
        assert run_batch(cache, job, dict.fromkeys(range(size), 1)) is store
    assert flushes == [1, 3], "before the batch of this number was committed"


def test_a_store_that_catches_up_gives_up_a_merge_that_lacks_the_changelogs(tmp_path: Path) -> None:
    job, cache = two_shards(tmp_path), OpenStoreCache()
    job.checkpoint()
    assert leftovers(job)
    store = take(cache, job)
    cache.give_back(store)
    here, job.local_root = job.local_root, tmp_path / "elsewhere"
    job.run_batch({1: 1})
    job.local_root = here
    again = take(cache, job)
    assert again is store
    assert entries(again) == job.reference
    add(again, {2: 1})
    job.commit(BatchId(job.batch_id + 1), [again.finish_batch(BatchId(job.batch_id + 1), "unique")])
    cache.give_back(again)
    cache.close()
    assert not job.consolidate()
    assert [each for each in consolidations(job.spec(0).local_directory(here)) if each.is_wanted] == []
