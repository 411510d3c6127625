from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobs.runtime.collection import Collector
from state.objects import open_store
from state.retention import RetentionPolicy
from tests.support.state_job import JOB, StateJob

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(open_store((tmp_path / "store").as_uri()), tmp_path / "local")
    job.start(2)
    for batch in range(3):
        job.run_batch({batch: 1})
        job.checkpoint()
    return job


def collect(job: StateJob, *, overtaken: bool) -> set[str]:
    before = {info.path for info in job.store.list("")}
    policy = RetentionPolicy(1)
    Collector(job.store, JOB, policy, allowed=lambda: True, is_overtaken=lambda: overtaken).collect()
    return before - {info.path for info in job.store.list("")}


def test_checkpoints_beyond_those_that_are_kept_are_removed_and_the_job_goes_on(job: StateJob) -> None:
    removed = collect(job, overtaken=False)
    assert {path.split("/")[1] for path in removed if path.endswith("manifest.json")} == {"chk-1", "chk-2"}
    job.recover(3)
    assert job.dump() == job.reference


def test_an_overtaken_driver_removes_nothing(job: StateJob) -> None:
    assert collect(job, overtaken=True) == set()
