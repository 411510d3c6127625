"""Deleting: nothing that can be reached, everything that cannot, and nothing that may be somebody's work in progress."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from state.identifiers import BatchId
from state.log import AttemptOpened, BatchPlanned, FencedError
from state.manifest import read_manifest
from state.objects import LocalObjectStore
from state.recovery import missing_files
from state.retention import (
    AGE_FLOOR_MS,
    DeletionPlan,
    RetentionError,
    RetentionPolicy,
    carry_out,
    gather_facts,
    plan_deletion,
)
from tests.support.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 4_000_000_000_000  # long after anything was written: all is old
KEEP_TWO = RetentionPolicy(retained_count=2)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


def plan(job: StateJob, policy: RetentionPolicy = KEEP_TWO, now_ms: int = NOW_MS) -> DeletionPlan:
    return plan_deletion(gather_facts(job.store, job.job_id, now_ms), policy)


def paths(job: StateJob) -> set[str]:
    return {info.path for info in job.store.list(job.layout.job)}


def run(job: StateJob, checkpoints: int) -> None:
    for number in range(checkpoints):
        job.run_batch({number: 1, 1000: 1})
        job.checkpoint()


def test_only_the_newest_checkpoints_and_what_they_need_remain(job: StateJob, tmp_path: Path) -> None:
    job.start(1)
    run(job, 4)
    job.run_batch({7: 7})
    found = plan(job)
    assert found.subsumed == (1, 2)
    carry_out(job.store, found)
    remaining = {path for path in paths(job) if path.endswith("manifest.json")}
    assert remaining == {job.layout.manifest(number) for number in (3, 4)}
    assert all(missing_files(job.store, read_manifest(job.store, path)) == [] for path in remaining)
    for path in sorted(remaining):
        restored = StateJob(job.store, tmp_path / path.replace("/", "-"), reference=job.reference)
        restored.start(2, path)
        assert restored.dump() == job.reference


def test_orphans_go_to_zero_and_a_second_run_finds_nothing(job: StateJob) -> None:
    job.start(1)
    run(job, 3)
    for orphan in ("shared/abc-1", "chk-9/count/0-x/0/CURRENT", "changelog/count/00000000000000000009-0-1-x"):
        job.store.put(job.layout.job + orphan, b"orphan")
    carry_out(job.store, plan(job))
    assert plan(job) == DeletionPlan((), (), (), 0)
    named = {
        file.path
        for info in paths(job)
        if info.endswith("manifest.json")
        for file in read_manifest(job.store, info).files()
    }
    shared = {path for path in paths(job) if path.startswith((job.layout.shared, job.layout.checkpoints))}
    assert shared == named | {path for path in shared if path.endswith("manifest.json")}


def test_what_no_manifest_names_is_left_alone_while_it_is_young(job: StateJob) -> None:
    job.start(1)
    run(job, 1)
    carry_out(job.store, plan(job))
    job.store.put(f"{job.layout.shared}upload-in-progress", b"x")
    written_ms = next(info.modified_ms for info in job.store.list(job.layout.shared) if "upload" in info.path)
    assert plan(job, now_ms=written_ms + AGE_FLOOR_MS - 1).files == ()
    assert [info.path for info in plan(job, now_ms=written_ms + AGE_FLOOR_MS).files] == [
        f"{job.layout.shared}upload-in-progress"
    ]


def test_files_of_a_subsumed_checkpoint_go_at_once(job: StateJob) -> None:
    job.start(1)
    run(job, 3)
    young_ms = max(info.modified_ms for info in job.store.list(job.layout.job))
    found = plan(job, now_ms=young_ms)
    assert [info.path for info in found.manifests] == [job.layout.manifest(1)]
    assert {info.path.split("/")[1] for info in found.files} >= {"chk-1"}


def test_savepoints_and_protected_manifests_are_never_deleted(job: StateJob) -> None:
    job.start(1)
    savepoint, _ = job.checkpoint("mine")
    run(job, 4)
    first = job.layout.manifest(2)
    carry_out(job.store, plan(job, RetentionPolicy(1, protected=frozenset({first}))))
    for path in (savepoint.path, first, job.layout.manifest(5)):
        assert missing_files(job.store, read_manifest(job.store, path)) == []


def test_a_savepoint_that_its_owner_deletes_goes_whole(job: StateJob) -> None:
    job.start(1)
    run(job, 1)
    savepoint, _ = job.checkpoint("mine")
    carry_out(job.store, plan(job, RetentionPolicy(discarded=frozenset({savepoint.path}))))
    assert list(job.store.list(job.layout.savepoints)) == []
    assert job.dump() == job.reference


def test_changelogs_and_log_entries_go_once_every_retained_checkpoint_contains_them(job: StateJob) -> None:
    job.start(1)
    run(job, 4)
    carry_out(job.store, plan(job))
    assert {path.rpartition("/")[2][:20] for path in paths(job) if path.startswith(job.layout.changelogs)} == {
        f"{3:020}"
    }
    kept = gather_facts(job.store, job.job_id, NOW_MS).entries
    oldest = read_manifest(job.store, job.layout.manifest(3)).log_position
    assert [type(entry) for position, entry in kept.items() if position <= oldest] == [AttemptOpened]


def test_the_end_of_the_log_stays_so_that_an_older_driver_is_fenced_even_after_a_rewind(job: StateJob) -> None:
    job.start(1)
    savepoint, _ = job.checkpoint("mine")
    run(job, 2)
    old_log, old_position, old_attempt = job.log, job.position, job.attempt
    carry_out(job.store, plan(job, RetentionPolicy(1)))
    job.start(1, savepoint.path, rewinds=True)
    with pytest.raises(FencedError):
        old_log.append(old_position, BatchPlanned(old_attempt, BatchId(2), {}))


def test_without_a_checkpoint_the_whole_log_and_every_changelog_stay(job: StateJob) -> None:
    job.start(2)
    for number in range(3):
        job.run_batch({number: 1})
    assert plan(job) == DeletionPlan((), (), (), 0)
    job.start(1)
    assert job.dump() == job.reference


def test_a_savepoint_does_not_stand_in_for_the_base_of_the_attempt_that_runs(job: StateJob, tmp_path: Path) -> None:
    job.start(1)
    job.run_batch({1: 1})
    job.checkpoint("mine")
    carry_out(job.store, plan(job))
    job.local_root = tmp_path / "another host"
    assert job.dump() == job.reference


def test_what_the_running_attempt_was_restored_from_is_kept_although_newer_checkpoints_exist(
    job: StateJob, tmp_path: Path
) -> None:
    job.start(1)
    job.run_batch({1: 1})
    older, _ = job.checkpoint()
    run(job, 2)
    job.start(1, older.path)  # the newer ones were found damaged
    carry_out(job.store, plan(job, RetentionPolicy(1)))
    job.local_root = tmp_path / "another host"
    assert job.dump() == job.reference


def test_a_savepoint_that_the_running_attempt_still_needs_is_deleted_only_later(job: StateJob, tmp_path: Path) -> None:
    job.start(1)
    job.run_batch({1: 1})
    savepoint, _ = job.checkpoint("mine")
    job.start(2, savepoint.path)
    policy = RetentionPolicy(discarded=frozenset({savepoint.path}))
    carry_out(job.store, plan(job, policy))
    job.local_root = tmp_path / "another host"
    assert job.dump() == job.reference
    job.checkpoint()
    carry_out(job.store, plan(job, policy))
    assert list(job.store.list(job.layout.savepoints)) == []
    job.local_root = tmp_path / "a third host"
    assert job.dump() == job.reference


def test_a_manifest_that_cannot_be_read_blocks_deletion(job: StateJob) -> None:
    job.start(1)
    run(job, 4)
    job.store.put(job.layout.manifest(3), b"{}")
    before = paths(job)
    with pytest.raises(RetentionError):
        plan(job)
    assert paths(job) == before
    assert plan(job, RetentionPolicy(2, discarded=frozenset({job.layout.manifest(3)}))).subsumed == (1,)


def test_an_object_that_was_written_again_since_it_was_listed_is_left_alone(job: StateJob) -> None:
    job.start(1)
    run(job, 1)
    orphan = f"{job.layout.shared}orphan"
    job.store.put(orphan, b"old")
    found = plan(job)
    job.store.put(orphan, b"again!")
    carry_out(job.store, found)
    assert job.store.get(orphan) == b"again!"


def test_other_jobs_objects_are_not_touched(job: StateJob) -> None:
    job.start(1)
    job.store.put("job2/shared/x", b"x")
    job.store.put("jobs/chk-1/manifest.json", b"x")
    run(job, 3)
    carry_out(job.store, plan(job))
    assert {info.path for info in job.store.list("job2/")} | {info.path for info in job.store.list("jobs/")} == {
        "job2/shared/x",
        "jobs/chk-1/manifest.json",
    }


def test_a_plan_from_reachability_alone_without_the_age_floor_would_delete_an_upload_in_progress(job: StateJob) -> None:
    job.start(1)
    run(job, 1)
    job.store.put(f"{job.layout.shared}upload-in-progress", b"x")
    now_ms = max(info.modified_ms for info in job.store.list(job.layout.job))
    assert plan(job, RetentionPolicy(age_floor_ms=0), now_ms).files != (), "the negative control of the age floor"


def test_a_link_of_an_old_file_is_a_young_object(tmp_path: Path) -> None:
    store, source = LocalObjectStore(tmp_path / "store"), tmp_path / "source"
    source.write_bytes(b"x")
    os.utime(source, (0, 0))
    store.upload(source, "linked", immutable=True)
    found = store.head("linked")
    assert found is not None
    assert found.modified_ms > 0
