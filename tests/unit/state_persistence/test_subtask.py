"""A subtask's store: exactly the wanted version, whatever happened to local files, tasks and parallelism before."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from state.objects import LocalObjectStore
from tests.support.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def random_batch(seed: int, keys: int = 200, size: int = 50) -> dict[int, int]:
    rng = random.Random(seed)
    return {rng.randrange(keys): rng.randrange(1, 100) for _ in range(size)}


def test_batches_build_up_state_in_the_subtask_that_owns_each_key(job: StateJob) -> None:
    job.start(2)
    for seed in range(5):
        job.run_batch(random_batch(seed))
    assert job.dump() == job.reference


def test_state_rescales_by_assigning_shards_and_rewrites_no_record(job: StateJob) -> None:
    job.start(2)
    for seed in range(4):
        job.run_batch(random_batch(seed))
    for number, parallelism in enumerate([3, 5, 1], 1):
        before, _ = job.checkpoint(f"savepoint-{number}")
        job.start(parallelism, before.path)
        assert job.dump() == job.reference
        after, _ = job.checkpoint(f"check-{number}")
        shared = [{file.sha256 for file in manifest.files() if file.shared} for manifest in (before, after)]
        assert shared[0] <= shared[1]
        new_bytes = sum(file.size_bytes for file in after.files() if file.shared and file.sha256 not in shared[0])
        assert new_bytes < 2000 * parallelism, "only the range deletes are new"
        job.run_batch(random_batch(100 + number))
        assert job.dump() == job.reference
