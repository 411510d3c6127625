"""Deletes nothing that can be reached, everything that cannot, and nothing that may be work in progress."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

import keyscale.state.retention.deletion
from keyscale.identifiers import Attempt, BatchId, CheckpointId, SubtaskIndex
from keyscale.state.documents.log_entries import BatchPlanned
from keyscale.state.documents.manifest import read_manifest, write_manifest
from keyscale.state.log.commit_log import CommitLog, FencedError
from keyscale.state.log.recovery import missing_files
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import (
    AGE_FLOOR_MS,
    DeletionPlan,
    RetentionError,
    RetentionPolicy,
    plan_deletion,
)
from keyscale.state.snapshot.snapshot import upload_snapshot
from tests.support.state.state_job import UID, StateJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from keyscale.state.documents.manifest import Manifest
    from keyscale.state.objects.object_store import ObjectInfo

NOW_MS = 4_000_000_000_000  # long after anything was written, so every file is old
KEEP_TWO = RetentionPolicy(retained_count=2)


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    return StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")


class CountingStore(LocalObjectStore):
    """Notes what is read from it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def get(self, path: str) -> bytes:
        self.read.append(path)
        return super().get(path)


def plan(job: StateJob, policy: RetentionPolicy = KEEP_TWO, now_ms: int = NOW_MS) -> DeletionPlan:
    return plan_deletion(gather_facts(job.store, job.job_id, now_ms), policy)


def paths(job: StateJob) -> set[str]:
    return {info.path for info in job.store.list(job.layout.job)}


def run(job: StateJob, checkpoints: int) -> None:
    for number in range(checkpoints):
        job.run_batch({number: 1, 1000: 1})
        job.checkpoint()


def test_only_the_newest_checkpoints_and_the_files_they_need_remain(job: StateJob, tmp_path: Path) -> None:
    job.start(1)
    run(job, 4)
    job.run_batch({7: 7})
    found = plan(job)
    assert found.subsumed == (1, 2)
    delete_planned(job.store, found)
    remaining = {path for path in paths(job) if path.endswith("manifest.json")}
    assert remaining == {job.layout.manifest(number) for number in (3, 4)}
    assert all(missing_files(job.store, read_manifest(job.store, path)) == [] for path in remaining)
    for path in sorted(remaining):
        restored = StateJob(job.store, tmp_path / path.replace("/", "-"), reference=job.reference)
        restored.start(2, path)
        assert restored.dump() == job.reference


def test_all_orphans_are_deleted_and_a_second_run_finds_nothing(job: StateJob) -> None:
    job.start(1)
    run(job, 3)
    for orphan in ("shared/abc-1", "chk-9/count/0-x/0/CURRENT", "changelog/count/00000000000000000001-0-1-x"):
        job.store.put(job.layout.job + orphan, b"orphan")
    delete_planned(job.store, plan(job))
    assert plan(job) == DeletionPlan((), (), ())
    named = {
        file.path
        for info in paths(job)
        if info.endswith("manifest.json")
        for file in read_manifest(job.store, info).files()
    }
    shared = {path for path in paths(job) if path.startswith((job.layout.shared, job.layout.checkpoints))}
    assert shared == named | {path for path in shared if path.endswith("manifest.json")}


def test_a_young_file_that_no_manifest_names_is_not_deleted(job: StateJob) -> None:
    job.start(1)
    run(job, 1)
    delete_planned(job.store, plan(job))
    job.store.put(f"{job.layout.shared}upload-in-progress", b"x")
    written_ms = next(info.modified_ms for info in job.store.list(job.layout.shared) if "upload" in info.path)
    assert plan(job, now_ms=written_ms + AGE_FLOOR_MS - 1).files == ()
    assert [info.path for info in plan(job, now_ms=written_ms + AGE_FLOOR_MS).files] == [
        f"{job.layout.shared}upload-in-progress"
    ]


def test_files_of_a_batch_that_the_open_attempt_has_not_committed_are_never_too_old(job: StateJob) -> None:
    job.start(1)
    run(job, 3)
    last = job.batch_id
    of_next = job.layout.changelog(
        UID, batch_id=BatchId(last + 1), subtask=SubtaskIndex(0), attempt=job.attempt, unique="runs"
    )
    of_settled = job.layout.changelog(
        UID, batch_id=BatchId(last - 1), subtask=SubtaskIndex(0), attempt=job.attempt, unique="failed"
    )
    of_older = job.layout.changelog(
        UID, batch_id=BatchId(last + 1), subtask=SubtaskIndex(0), attempt=Attempt(job.attempt - 1), unique="fenced"
    )
    for path in (of_next, of_settled, of_older):
        job.store.put(path, b"x")
    files = {info.path for info in plan(job).files}
    assert of_next not in files
    assert {of_settled, of_older} <= files


def test_a_pass_reads_few_log_entries_however_many_batches_there_were(job: StateJob, tmp_path: Path) -> None:
    """601 reads for 300 batches were 24,000 an hour at ten batches a second, however short the log was kept."""
    job.start(1)
    run(job, 1)
    for number in range(40):
        job.run_batch({number: 1})
    job.start(2)
    for number in range(20):
        job.run_batch({number: 1})
    store = CountingStore(tmp_path / "store")
    log = CommitLog(store, job.layout)
    facts = gather_facts(store, job.job_id, NOW_MS, log)
    assert [entry.attempt for entry in facts.openings.values()] == [1, 2]
    assert len(store.read) < 25
    store.read.clear()
    job.run_batch({1: 1})
    gather_facts(store, job.job_id, NOW_MS, log)
    assert sum(path.startswith(job.layout.log) for path in store.read) <= 2, "what was read before is known"


def test_a_changelog_of_a_disowned_history_is_deleted_and_one_of_the_history_after_a_rewind_stays(
    job: StateJob, tmp_path: Path
) -> None:
    job.start(1)
    savepoint, _ = job.checkpoint("mine")
    run(job, 3)
    reference = dict(job.reference)
    job.start(1, savepoint.path, rewinds=True)
    job.reference.clear()
    job.run_batch({1: 1})
    job.checkpoint()
    job.run_batch({2: 2})
    delete_planned(job.store, plan(job, RetentionPolicy(1)))
    origins = [job.layout.changelog_origin(path) for path in paths(job) if path.startswith(job.layout.changelogs)]
    assert [(origin.attempt, origin.batch_id) for origin in origins if origin is not None] == [(2, 1)]
    assert reference != job.reference
    job.local_root = tmp_path / "another host"
    assert job.dump() == job.reference


def test_files_of_a_subsumed_checkpoint_are_deleted_at_once(job: StateJob) -> None:
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
    delete_planned(job.store, plan(job, RetentionPolicy(1, protected=frozenset({first}))))
    for path in (savepoint.path, first, job.layout.manifest(5)):
        assert missing_files(job.store, read_manifest(job.store, path)) == []


def test_a_savepoint_that_its_owner_deletes_is_deleted_as_a_whole(job: StateJob) -> None:
    job.start(1)
    run(job, 1)
    savepoint, _ = job.checkpoint("mine")
    delete_planned(job.store, plan(job, RetentionPolicy(discarded=frozenset({savepoint.path}))))
    assert list(job.store.list(job.layout.savepoints)) == []
    assert job.dump() == job.reference


def test_changelogs_and_log_entries_are_deleted_once_every_retained_checkpoint_contains_them(job: StateJob) -> None:
    job.start(1)
    run(job, 4)
    delete_planned(job.store, plan(job))
    assert {path.rpartition("/")[2][:20] for path in paths(job) if path.startswith(job.layout.changelogs)} == {
        f"{3:020}"
    }
    kept = [position for path in paths(job) if (position := job.layout.log_position(path)) is not None]
    oldest = read_manifest(job.store, job.layout.manifest(3)).log_position
    assert [position for position in kept if position <= oldest] == [1], "only the opening is left"


def test_the_end_of_the_log_stays_so_that_an_older_driver_is_fenced_even_after_a_rewind(job: StateJob) -> None:
    job.start(1)
    savepoint, _ = job.checkpoint("mine")
    run(job, 2)
    old_log, old_position, old_attempt = job.log, job.position, job.attempt
    delete_planned(job.store, plan(job, RetentionPolicy(1)))
    job.start(1, savepoint.path, rewinds=True)
    with pytest.raises(FencedError):
        old_log.append(old_position, BatchPlanned(old_attempt, BatchId(2), {}))


def test_a_late_checkpoint_of_an_older_attempt_with_a_higher_number_displaces_no_newer_one(
    job: StateJob, tmp_path: Path
) -> None:
    job.start(1)
    savepoint, _ = job.checkpoint("mine")
    run(job, 1)
    assert job.manifest is not None
    late = msgspec.structs.replace(job.manifest, checkpoint_id=CheckpointId(9))
    job.start(1, savepoint.path, rewinds=True)
    job.reference = {}
    run(job, 1)
    newest = job.manifest
    assert newest is not None
    write_manifest(job.store, late)
    delete_planned(job.store, plan(job, RetentionPolicy(1)))
    assert read_manifest(job.store, newest.path) == newest
    restored = StateJob(job.store, tmp_path / "restored", reference=job.reference)
    restored.recover(1)
    assert restored.dump() == job.reference


def test_without_a_checkpoint_the_whole_log_and_every_changelog_stay(job: StateJob) -> None:
    job.start(2)
    for number in range(3):
        job.run_batch({number: 1})
    assert plan(job) == DeletionPlan((), (), ())
    job.start(1)
    assert job.dump() == job.reference


def test_a_savepoint_does_not_replace_the_base_of_the_running_attempt(job: StateJob, tmp_path: Path) -> None:
    job.start(1)
    job.run_batch({1: 1})
    job.checkpoint("mine")
    delete_planned(job.store, plan(job))
    job.local_root = tmp_path / "another host"
    assert job.dump() == job.reference


def test_a_savepoint_is_not_the_checkpoint_that_replaces_the_base_of_the_running_attempt(
    job: StateJob, tmp_path: Path
) -> None:
    job.start(1)
    job.run_batch({1: 1})
    base, _ = job.checkpoint("base")
    job.start(1, base.path, claims=True)  # the first checkpoint after a claim subsumes the claimed savepoint
    job.checkpoint("mine")
    delete_planned(job.store, plan(job))
    job.local_root = tmp_path / "another host"
    assert job.dump() == job.reference


def test_the_base_of_the_running_attempt_is_kept_although_newer_checkpoints_exist(
    job: StateJob, tmp_path: Path
) -> None:
    job.start(1)
    job.run_batch({1: 1})
    older, _ = job.checkpoint()
    run(job, 2)
    job.start(1, older.path)  # the newer ones were found damaged
    delete_planned(job.store, plan(job, RetentionPolicy(1)))
    job.local_root = tmp_path / "another host"
    assert job.dump() == job.reference


def test_a_savepoint_that_the_running_attempt_still_needs_is_deleted_only_later(job: StateJob, tmp_path: Path) -> None:
    job.start(1)
    job.run_batch({1: 1})
    savepoint, _ = job.checkpoint("mine")
    job.start(2, savepoint.path)
    policy = RetentionPolicy(discarded=frozenset({savepoint.path}))
    delete_planned(job.store, plan(job, policy))
    job.local_root = tmp_path / "another host"
    assert job.dump() == job.reference
    job.checkpoint()
    delete_planned(job.store, plan(job, policy))
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


def test_an_object_that_was_written_again_since_it_was_listed_is_not_deleted(job: StateJob) -> None:
    job.start(1)
    run(job, 1)
    orphan = f"{job.layout.shared}orphan"
    job.store.put(orphan, b"old")
    found = plan(job)
    job.store.put(orphan, b"again!")
    delete_planned(job.store, found)
    assert job.store.get(orphan) == b"again!"


class StoreWithRace(LocalObjectStore):
    """Lets something happen just before objects are deleted."""

    def __init__(self, root: Path, happens: Callable[[], object]) -> None:
        super().__init__(root)
        self._happens = happens

    def delete(self, paths: Iterable[str]) -> None:
        listed = list(paths)
        if listed:
            self._happens()
        super().delete(listed)


def test_a_checkpoint_keeps_files_that_a_failed_one_has_left_and_that_are_deleted_as_it_uploads_them(
    job: StateJob, tmp_path: Path
) -> None:
    job.start(1)
    job.run_batch({1: 1})
    with job.open(0) as store:
        snapshot = store.snapshot(CheckpointId(1))
    failed = upload_snapshot(snapshot, job.store, job.layout, {}).handle
    job.next_checkpoint_id = 2
    found = plan(job)
    assert {file.path for file in failed.files()} <= {info.path for info in found.files}
    taken: list[Manifest] = []
    delete_planned(StoreWithRace(tmp_path / "store", lambda: taken.append(job.checkpoint()[0])), found)
    assert missing_files(job.store, taken[0]) == []


def test_a_driver_that_is_overtaken_while_it_deletes_soon_ends(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyscale.state.retention.deletion, "DELETES_AT_A_TIME", 2)
    job.start(1)
    run(job, 4)
    found = plan(job)
    before, answers = paths(job), iter([False, False])
    deleted = delete_planned(job.store, found, lambda: next(answers, True))
    assert deleted.objects == len(found.manifests) + 2
    assert len(before - paths(job)) == deleted.objects


def test_files_are_not_too_old_as_long_as_their_upload_may_take() -> None:
    day_ms = 24 * 60 * 60 * 1000
    assert RetentionPolicy.for_uploads(day_ms, 3, frozenset()).age_floor_ms == 2 * day_ms
    assert RetentionPolicy.for_uploads(1000, 3, frozenset()).age_floor_ms == AGE_FLOOR_MS


def test_other_jobs_objects_are_not_touched(job: StateJob) -> None:
    job.start(1)
    job.store.put("job2/shared/x", b"x")
    job.store.put("jobs/chk-1/manifest.json", b"x")
    run(job, 3)
    delete_planned(job.store, plan(job))
    assert {info.path for info in job.store.list("job2/")} | {info.path for info in job.store.list("jobs/")} == {
        "job2/shared/x",
        "jobs/chk-1/manifest.json",
    }


def test_a_manifest_that_is_deleted_while_the_facts_are_gathered_hides_no_other_one(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start(1)
    run(job, 2)
    first, second = sorted(gather_facts(job.store, job.job_id, NOW_MS).manifests)
    listed = job.store.list

    def deleting(prefix: str, **options: str) -> Iterator[ObjectInfo]:
        found = list(listed(prefix, **options))
        job.store.delete([first])
        return iter(found)

    monkeypatch.setattr(job.store, "list", deleting)
    assert list(gather_facts(job.store, job.job_id, NOW_MS).manifests) == [second]


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
