"""A task is sent the version of its state alone; the plan to rebuild it is loaded only if it is needed."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from keyscale.identifiers import SubtaskIndex
from keyscale.jobs.runtime.executor.subtask_starts import SubtaskStart
from keyscale.jobs.spark_internals.function_copies import pickled
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.restore.opened_shards import StateSource
from keyscale.state.subtask.open_store_cache import OpenStoreCache
from keyscale.state.subtask.store import LineageError
from tests.support.drivers.shipped_starts import shipped
from tests.support.state.state_job import UID, StateJob, entries

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.jobs.runtime.executor.subtask_starts import ShippedStarts
    from keyscale.state.subtask.store import SubtaskStore


@pytest.fixture
def cache() -> Iterator[OpenStoreCache]:
    stores = OpenStoreCache()
    yield stores
    stores.close()


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    job.run_batch(dict.fromkeys(range(10), 1))
    return job


def starts_of(job: StateJob) -> list[SubtaskStart]:
    return [SubtaskStart(job.version(index), job.plans[index]) for index in range(job.parallelism)]


def shipped_now(job: StateJob, base: ShippedStarts) -> ShippedStarts:
    """Returns the starts after the batches that the job has committed since those of the base."""
    now = shipped(UID, starts_of(job))
    return replace(now, base=base.base, base_position=base.position, position=job.position - 1)


def taken(job: StateJob, cache: OpenStoreCache, starts: ShippedStarts, index: SubtaskIndex) -> SubtaskStore:
    plan = starts.plan(index, job.store, job.layout)
    return cache.take(job.spec(index), starts.versions[index], plan, job.local_root, job.store)


def test_a_task_finds_its_plan_from_the_base_and_the_log(job: StateJob) -> None:
    base = replace(shipped(UID, starts_of(job)), position=job.position - 1)
    for batch in range(3):
        job.run_batch({batch: 1})
    now = pickle.loads(pickled(shipped_now(job, base)))  # noqa: S301 - pickled here
    for index in range(2):
        assert now.plan(SubtaskIndex(index), job.store, job.layout).load() == job.plans[index]


def test_a_lost_state_is_rebuilt_from_the_plan_that_was_found(
    job: StateJob, cache: OpenStoreCache, tmp_path: Path
) -> None:
    base = replace(shipped(UID, starts_of(job)), position=job.position - 1)
    job.run_batch({3: 10})
    job.local_root = tmp_path / "another host"
    found: dict[int, int] = {}
    for index in (SubtaskIndex(0), SubtaskIndex(1)):
        store = taken(job, cache, shipped_now(job, base), index)
        assert store.source is StateSource.REBUILT
        found |= entries(store)
        cache.give_back(store)
    assert found == job.reference


def test_a_plan_is_not_looked_for_while_the_state_is_there(job: StateJob, cache: OpenStoreCache) -> None:
    base = shipped(UID, starts_of(job))
    unreachable = replace(base, base_position=10**6, position=10**6 + 1)
    index = SubtaskIndex(0)
    store = taken(job, cache, unreachable, index)
    assert store.source is StateSource.LOCAL
    cache.give_back(store)
    assert taken(job, cache, unreachable, index) is store
    assert store.source is StateSource.WARM
    store.abandon()


def test_a_plan_that_does_not_lead_to_the_version_is_refused(
    job: StateJob, cache: OpenStoreCache, tmp_path: Path
) -> None:
    base = replace(shipped(UID, starts_of(job)), position=job.position - 1)
    job.run_batch({3: 10})
    job.local_root = tmp_path / "another host"
    late = replace(shipped_now(job, base), base_position=job.position - 1)  # as if the batch had not been
    index = next(index for index in (0, 1) if starts_of(job)[index].plan.last_batch_id == job.batch_id)
    with pytest.raises(LineageError):
        taken(job, cache, late, SubtaskIndex(index))


def test_starts_of_many_subtasks_with_long_plans_stay_small(job: StateJob) -> None:
    [start, *_] = starts_of(job)
    [changelog] = start.plan.changelogs
    long = replace(
        start.plan,
        changelogs=tuple(structs.replace(changelog, path=f"{changelog.path}-{number}") for number in range(300)),
    )
    many = shipped(UID, [SubtaskStart(start.version, long)] * 64)
    assert many.base.size_bytes > 1 << 20
    assert len(pickled(replace(many, base=replace(many.base, _content=b"")))) < 10_000
