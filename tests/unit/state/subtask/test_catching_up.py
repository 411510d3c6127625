"""A store that is behind on its plan, open or in local files, gets only the changelogs that it lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale.errors import KeyscaleError
from keyscale.identifiers import BatchId, CheckpointId
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ListStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.operator_state.operator_files import OperatorStatePlan
from keyscale.state.restore.opened_shards import StateSource
from keyscale.state.restore.plan import history_of, plan_operator, version_of
from keyscale.state.subtask.open_store_cache import OpenStoreCache
from keyscale.state.subtask.store import LineageError
from tests.support.short_form import short_form
from tests.support.state.state_job import MAX_PARALLELISM, StateJob, add, entries, random_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.state.subtask.store import SubtaskStore

PLACES = ListStateDescriptor("places", pa.int64())
OTHER = ValueStateDescriptor("other", pa.int64())
BRIEF = ValueStateDescriptor("brief", pa.int64(), ttl=Ttl(1000))


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    job.run_batch(random_batch(1))
    return job


@pytest.fixture
def cache() -> Iterator[OpenStoreCache]:
    stores = OpenStoreCache()
    yield stores
    stores.close()


def prepare(job: StateJob, cache: OpenStoreCache, parallelism: int) -> list[SubtaskStore]:
    """Opens the stores that the next attempt will have, at the present version, beside the job's own."""
    ahead = job.ahead(parallelism)
    stores = [take(ahead, cache, index) for index in range(parallelism)]
    for store in stores:
        cache.give_back(store)
    return stores


def take(job: StateJob, cache: OpenStoreCache, index: int, **more: Any) -> SubtaskStore:
    return cache.take(job.spec(index), job.version(index), job.plans[index], job.local_root, job.store, **more)


@pytest.mark.parametrize("parallelism", short_form([1, 3, 4], [3]))
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_stores_that_are_prepared_beside_the_batches_catch_up_when_the_job_switches_to_them(
    job: StateJob, cache: OpenStoreCache, parallelism: int, *, has_checkpoint: bool
) -> None:
    if has_checkpoint:
        job.checkpoint()
    prepared = prepare(job, cache, parallelism)
    for seed in (2, 3):
        job.run_batch(random_batch(seed))
    job.rescale_live(parallelism)
    assert [take(job, cache, index) for index in range(parallelism)] == prepared
    assert {store.source for store in prepared} == {StateSource.WARM}
    found: dict[int, int] = {}
    for store in prepared:
        found |= entries(store)
        store.close()
    assert found == job.reference
    job.run_batch(random_batch(4))
    assert job.dump() == job.reference
    job.recover(2)
    assert job.dump() == job.reference, "a driver that knows nothing but the log finds the same"


def test_a_store_that_catches_up_has_the_times_of_its_batch(job: StateJob, cache: OpenStoreCache) -> None:
    first = take(job.ahead(1), cache, 0, clock=BatchClock(processing_time_ms=10, event_time_ms=1))
    cache.give_back(first)
    job.run_batch(random_batch(2))
    job.rescale_live(1)
    caught_up = take(job, cache, 0, clock=BatchClock(processing_time_ms=20, event_time_ms=2))
    assert (caught_up is first, caught_up.source) == (True, StateSource.WARM)
    assert isinstance(caught_up.keyed.clock, BatchClock)
    assert (caught_up.keyed.clock.processing_time_ms, caught_up.keyed.clock.event_time_ms) == (20, 2)
    caught_up.close()


def test_local_files_that_are_behind_are_opened_and_catch_up(job: StateJob, cache: OpenStoreCache) -> None:
    prepare(job, cache, 3)
    cache.close()  # another worker asks for them
    job.run_batch(random_batch(2))
    job.rescale_live(3)
    for index in range(3):
        with job.open(index) as store:
            assert (store.source, store.fetched) == (StateSource.LOCAL, None)
    assert job.dump() == job.reference


def test_a_state_that_later_batches_declared_is_there_after_catching_up(job: StateJob, cache: OpenStoreCache) -> None:
    (prepared,) = prepare(job, cache, 1)
    job.adds = lambda store, increments, _: add(store, increments, OTHER)
    job.run_batch({1: 5, 2: 6})
    job.rescale_live(1)
    job.history = replace(job.history, schema=prepared.spec.schema)  # specifications stay as they were prepared
    assert take(job, cache, 0) is prepared
    assert entries(prepared, OTHER) == {1: 5, 2: 6}
    add(prepared, {1: 1}, OTHER)
    handle = prepared.finish_batch(BatchId(job.batch_id + 1), "next")
    prepared.close()
    job.commit(BatchId(job.batch_id + 1), [handle])
    job.recover(2)
    assert {key: value for index in range(2) for key, value in _entries_of(job, index).items()} == {1: 6, 2: 6}


@pytest.mark.parametrize("is_open", [True, False])
def test_a_checkpoint_after_catching_up_has_the_states_that_later_batches_declared(
    job: StateJob, cache: OpenStoreCache, *, is_open: bool
) -> None:
    (prepared,) = prepare(job, cache, 1)
    if not is_open:
        cache.close()
    job.adds = lambda store, increments, _: add(store, increments, OTHER)
    job.run_batch({1: 5, 2: 6})
    job.rescale_live(1)
    job.history = replace(job.history, schema=prepared.spec.schema)
    store = take(job, cache, 0)
    assert store.source is (StateSource.WARM if is_open else StateSource.LOCAL)
    add(store, {1: 1})
    store.finish_batch(BatchId(job.batch_id + 1), "without the other state")
    schema = store.snapshot(CheckpointId(9)).schema
    store.abandon()
    assert schema is not None
    assert {state.name for state in schema.states} == {"count", "other"}


@pytest.mark.parametrize("is_open", [True, False])
def test_a_state_that_catches_up_keeps_the_ttls_that_this_host_knows(
    job: StateJob, cache: OpenStoreCache, *, is_open: bool
) -> None:
    first = take(job.ahead(1), cache, 0)
    first.keyed.state(BRIEF)
    cache.give_back(first)
    if not is_open:
        cache.close()
    job.run_batch({1: 5})
    job.rescale_live(1)
    caught_up = take(job, cache, 0)
    assert caught_up.source is (StateSource.WARM if is_open else StateSource.LOCAL)
    assert caught_up.snapshot(CheckpointId(9)).ttls.keys() == {"brief"}, "a savepoint omits what has expired"
    caught_up.close()


def _entries_of(job: StateJob, index: int) -> dict[int, int]:
    with job.open(index) as store:
        return entries(store, OTHER)


def test_operator_state_is_read_again(job: StateJob, cache: OpenStoreCache) -> None:
    (prepared,) = prepare(job, cache, 1)
    assert prepared.operator.list_state(PLACES).get() == []
    job.operate = lambda store: store.operator.list_state(PLACES).add_all([int(store.spec.index)])
    job.run_batch({1: 5})
    job.rescale_live(1)
    assert job.plans[0].operator_state.needs_redistribution
    assert take(job, cache, 0) is prepared
    assert (prepared.operator.is_restored, prepared.operator.list_state(PLACES).get()) == (True, [0, 1])
    prepared.close()


def test_operator_state_that_another_host_changed_is_read_again(job: StateJob, cache: OpenStoreCache) -> None:
    job.start(1)
    job.operate = lambda store: store.operator.list_state(PLACES).add(1)
    job.run_batch({1: 5})
    store, here = take(job, cache, 0), job.local_root
    cache.give_back(store)
    job.local_root = here.with_name("another host")
    job.operate = lambda store: store.operator.list_state(PLACES).add(2)
    job.run_batch({1: 5})
    job.local_root = here
    assert not job.plans[0].operator_state.needs_redistribution
    assert take(job, cache, 0) is store
    store.operator.list_state(PLACES).add(3)
    assert store.operator.list_state(PLACES).get() == [1, 2, 3]
    store.close()


def test_operator_state_that_another_subtask_changed_is_read_again(job: StateJob, cache: OpenStoreCache) -> None:
    """The new subtask has the key groups of the unchanged subtask, and so only the changelogs of that subtask."""
    job.operate = lambda store: store.operator.union_list_state(PLACES).add(int(store.spec.index))
    job.run_batch({1: 5})
    prepared = prepare(job, cache, 4)

    def change_first(store: SubtaskStore) -> None:
        if store.spec.index == 0:
            store.operator.union_list_state(PLACES).add(7)

    job.operate = change_first
    job.run_batch({})
    job.rescale_live(4)
    last = take(job, cache, 3)
    assert last is prepared[3]
    assert sorted(last.operator.union_list_state(PLACES).get()) == [0, 1, 7]
    last.close()


def test_a_store_with_a_batch_that_was_never_committed_does_not_catch_up(job: StateJob, cache: OpenStoreCache) -> None:
    (prepared,) = prepare(job, cache, 1)
    add(prepared, {1: 1_000})
    prepared.finish_batch(BatchId(job.batch_id + 1), "lost")
    job.run_batch({1: 5})
    job.rescale_live(1)
    assert not prepared.catch_up(job.version(0), job.plans[0], job.store)
    again = take(job, cache, 0)
    assert again is not prepared
    assert entries(again) == job.reference
    again.close()


def test_a_store_that_cannot_read_a_changelog_is_rebuilt(job: StateJob, cache: OpenStoreCache) -> None:
    (prepared,) = prepare(job, cache, 1)
    job.run_batch({1: 5})
    job.rescale_live(1)
    empty = LocalObjectStore(job.local_root / "empty")
    with pytest.raises(KeyscaleError):
        prepared.catch_up(job.version(0), job.plans[0], empty)
    assert not prepared.catch_up(job.version(0), job.plans[0], job.store), "half of it may have been applied"
    again = take(job, cache, 0)
    assert (again is prepared, entries(again)) == (False, job.reference)
    again.close()


def test_a_plan_that_leads_elsewhere_is_refused(job: StateJob, cache: OpenStoreCache) -> None:
    (prepared,) = prepare(job, cache, 1)
    before = version_of(
        plan_operator(history_of(job.plans), KeyGroupRanges.of_count(MAX_PARALLELISM, 1))[0],
        job.spec(0).key_group_range,
        0,
    )  # type: ignore[arg-type]
    job.run_batch({1: 5})
    job.rescale_live(1)
    with pytest.raises(LineageError):
        prepared.catch_up(before, job.plans[0], job.store)
    prepared.abandon()


def test_plans_of_one_history_are_joined_again(job: StateJob) -> None:
    job.checkpoint()
    job.run_batch(random_batch(2))
    for parallelism in (3, 1, 4):
        job.rescale_live(parallelism)
        joined = plan_operator(history_of(job.plans), KeyGroupRanges.of_count(MAX_PARALLELISM, parallelism))
        parts = [[(plan.snapshots, plan.changelogs) for plan in plans] for plans in (joined, job.plans)]
        assert parts[0] == parts[1]
        job.run_batch(random_batch(parallelism))
    assert job.dump() == job.reference


def test_changelogs_of_joined_plans_are_in_the_order_of_their_batches(job: StateJob) -> None:
    for parallelism in (2, 1, 3, 1):
        job.rescale_live(parallelism)
        job.run_batch(random_batch(parallelism))
    batches = [changelog.batch_id for changelog in history_of(job.plans).changelogs]
    assert batches == sorted(batches)
    assert job.dump() == job.reference


def test_operator_state_of_subtasks_that_have_written_some_is_joined() -> None:
    file = object()
    states = [OperatorStatePlan((None, None), inherited=True), OperatorStatePlan((file,))]  # type: ignore[arg-type]
    plans = [
        replace(plan_operator(history_of([]), KeyGroupRanges.of_count(4, 1))[0], operator_state=state)
        for state in states
    ]
    assert history_of(plans).operator_state == (None, file)
