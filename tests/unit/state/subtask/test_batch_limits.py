"""A batch that changes more state than is allowed fails with a clear error and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.identifiers import BatchId
from keyscale.state.engine.rocksdb_settings import RocksDbSettings
from keyscale.state.errors import BatchTooLargeError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.subtask.store import SORTED_FILE_MUTATIONS_MIN
from tests.support.state.state_job import StateJob, add

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.local.subtask_spec import SubtaskSpec


class LimitedJob(StateJob):
    """A job whose settings limit its batches."""

    settings = RocksDbSettings()

    def spec(self, index: int) -> SubtaskSpec:
        return replace(super().spec(index), settings=self.settings)


@pytest.fixture
def job(tmp_path: Path) -> LimitedJob:
    job = LimitedJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(1)
    job.run_batch({1: 1})
    return job


@pytest.mark.parametrize(
    ("limits", "keys"),
    [
        ({"batch_entries_max": 10}, 11),
        ({"batch_bytes_max": 100}, 11),
        ({"batch_bytes_max": 1000}, SORTED_FILE_MUTATIONS_MIN),
    ],
)
def test_a_batch_over_a_limit_is_refused_as_a_whole(job: LimitedJob, limits: dict[str, Any], keys: int) -> None:
    job.settings = replace(RocksDbSettings(), **limits)
    changelogs = list(job.store.list(job.layout.changelogs))
    store = job.open(0)
    add(store, dict.fromkeys(range(keys), 1))
    with pytest.raises(BatchTooLargeError):
        store.finish_batch(BatchId(1), "unique")
    store.close()
    assert list(job.store.list(job.layout.changelogs)) == changelogs
    assert job.dump() == {1: 1}


def test_a_batch_at_the_limit_is_accepted(job: LimitedJob) -> None:
    job.settings = RocksDbSettings(batch_entries_max=10)
    job.run_batch(dict.fromkeys(range(10), 1))
    assert job.dump() == job.reference


def test_a_batch_far_over_the_limit_is_stopped_before_it_ends(job: LimitedJob) -> None:
    job.settings = RocksDbSettings(batch_entries_max=1000)
    store = job.open(0)
    with pytest.raises(BatchTooLargeError):
        add(store, dict.fromkeys(range(3000), 1))
    store.abandon()
    assert job.dump() == {1: 1}


def test_the_limit_counts_the_changes_of_one_batch_only(job: LimitedJob) -> None:
    job.settings = RocksDbSettings(batch_entries_max=600)
    for start in range(0, 3000, 600):
        job.run_batch(dict.fromkeys(range(start, start + 600), 1))
    assert job.dump() == job.reference
