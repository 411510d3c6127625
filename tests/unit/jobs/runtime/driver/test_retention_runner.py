from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.clock import now_ms
from keyscale.identifiers import CheckpointId
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver import retention_runner
from keyscale.jobs.runtime.driver.retention_runner import FIRST_SECONDS, INTERVAL_SECONDS, RetentionRunner
from keyscale.state.objects.errors import StoreRefusedError
from keyscale.state.objects.object_store import TEMPORARY_PREFIX
from keyscale.state.objects.opening import open_store
from keyscale.state.retention.deletion_plan import AGE_FLOOR_MS, RetentionPolicy
from tests.support.state.state_job import JOB, StateJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale.state.objects.object_store import ObjectInfo


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(open_store((tmp_path / "store").as_uri()), tmp_path / "local")
    job.start(2)
    for batch in range(3):
        job.run_batch({batch: 1})
        job.checkpoint()
    return job


def run_retention(job: StateJob, *, overtaken: bool = False, status: DriverStatus | None = None) -> set[str]:
    before = {info.path for info in job.store.list("")}
    policy = RetentionPolicy(1)
    waits = []
    runner = RetentionRunner(
        job.store,
        JOB,
        policy,
        allowed=lambda: True,
        wait_until_rebased=lambda: waits.append(len(list(job.store.list("")))),
        is_overtaken=lambda: overtaken,
        status=status or DriverStatus(),
    )
    runner.run()
    assert waits == [len(before)], "it looked or deleted before the running batch had ended"
    return before - {info.path for info in job.store.list("")}


def test_checkpoints_beyond_the_retained_ones_are_deleted_and_the_job_continues(job: StateJob) -> None:
    removed = run_retention(job, overtaken=False)
    assert {path.split("/")[1] for path in removed if path.endswith("manifest.json")} == {"chk-1", "chk-2"}
    job.recover(3)
    assert job.dump() == job.reference


def test_an_overtaken_driver_deletes_nothing(job: StateJob) -> None:
    assert run_retention(job, overtaken=True) == set()


def test_a_manifest_that_cannot_be_read_is_told_until_it_is_removed(job: StateJob) -> None:
    status = DriverStatus()
    job.store.put(job.layout.manifest(CheckpointId(2)), b"{}")
    assert run_retention(job, status=status) == set()
    clean_up = status.heartbeat().metrics.clean_up
    assert clean_up.failure is not None
    assert clean_up.failure.code == "STATE_RETENTION_BLOCKED"
    assert clean_up.failure.advice
    assert job.layout.manifest(CheckpointId(2)) in clean_up.failure.message
    since = clean_up.failing_since_ms
    assert since is not None
    assert run_retention(job, status=status) == set()
    assert status.heartbeat().metrics.clean_up.failing_since_ms == since, "it has failed all the while"
    job.store.delete([job.layout.manifest(CheckpointId(2))])
    removed = run_retention(job, status=status)
    clean_up = status.heartbeat().metrics.clean_up
    assert (clean_up.failing_since_ms, clean_up.failure) == (None, None)
    assert (clean_up.passes, clean_up.deleted_objects) == (1, len(removed))
    assert clean_up.deleted_bytes > 0


def test_unfinished_writes_are_removed_once_no_upload_can_take_so_long(
    job: StateJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "store" / JOB / "shared" / f"{TEMPORARY_PREFIX}of-a-killed-writer"
    left.write_bytes(b"x")
    young_s = (now_ms() - AGE_FLOOR_MS / 2) / 1000
    os.utime(left, (young_s, young_s))
    status = DriverStatus()
    run_retention(job, status=status)
    assert left.exists(), "its writer may be alive"
    later_ms = now_ms() + AGE_FLOOR_MS + 1000
    monkeypatch.setattr(retention_runner, "now_ms", lambda: later_ms)
    run_retention(job, status=status)
    assert left.exists(), "this host's clock is ahead of the store's"
    listed = type(job.store).list

    def list_later(*given: Any, **options: Any) -> Iterator[ObjectInfo]:
        return (replace(info, modified_ms=later_ms) for info in listed(*given, **options))

    monkeypatch.setattr(type(job.store), "list", list_later)
    run_retention(job, status=status, overtaken=True)
    assert left.exists(), "an overtaken driver removes nothing"
    run_retention(job, status=status)
    assert not left.exists()
    assert status.heartbeat().metrics.clean_up.removed_writes == 1


def test_a_store_that_refuses_to_list_unfinished_writes_fails_no_pass(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise StoreRefusedError("not allowed")

    monkeypatch.setattr(type(job.store), "remove_unfinished", refuse)
    status = DriverStatus()
    assert run_retention(job, status=status)
    assert (status.heartbeat().metrics.clean_up.passes, status.heartbeat().metrics.clean_up.failure) == (1, None)


def test_a_pass_runs_when_it_is_due_and_allowed_and_soon_again_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = now = 1000.0
    is_allowed = True
    passes: list[float] = []
    monkeypatch.setattr(retention_runner, "time", SimpleNamespace(monotonic=lambda: now))
    runner = RetentionRunner(
        open_store((tmp_path / "store").as_uri()),
        JOB,
        RetentionPolicy(1),
        allowed=lambda: is_allowed,
        wait_until_rebased=lambda: passes.append(now - began),
        is_overtaken=lambda: False,
        status=DriverStatus(),
    )

    def look(at: float) -> None:
        nonlocal now
        now = began + at
        runner.run_if_due()
        if runner._thread is not None:
            runner._thread.join(60)

    def refuse(*_: object) -> None:
        raise StoreRefusedError("not allowed")

    look(FIRST_SECONDS - 1)
    is_allowed = False
    look(FIRST_SECONDS)
    is_allowed = True
    look(FIRST_SECONDS)
    look(INTERVAL_SECONDS)
    second = FIRST_SECONDS + INTERVAL_SECONDS
    monkeypatch.setattr(retention_runner, "delete_planned", refuse)
    look(second)
    look(second + FIRST_SECONDS - 1)
    look(second + FIRST_SECONDS)
    assert passes == [FIRST_SECONDS, second, second + FIRST_SECONDS]
