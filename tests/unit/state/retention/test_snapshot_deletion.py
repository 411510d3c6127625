"""A checkpoint or savepoint is deleted with the files that nothing else needs, and never with one that is needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyscale.identifiers import CheckpointId, JobId
from keyscale.state.documents.claim import take_claim
from keyscale.state.documents.manifest import read_manifest
from keyscale.state.layout import Layout
from keyscale.state.log.recovery import missing_files
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.object_store import ObjectInfo
from keyscale.state.retention.deletion import gather_facts
from keyscale.state.retention.deletion_plan import RetentionError, RetentionPolicy, plan_deletion
from keyscale.state.retention.snapshot_deletion import delete_snapshot, snapshot_objects
from tests.support.state.state_job import JOB, StateJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LATER_MS = 4_000_000_000_000
PHANTOM = Layout(JOB).manifest(CheckpointId(99))


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    for number in range(4):
        take(job, number)
    return job


def take(job: StateJob, number: int) -> None:
    job.run_batch({number: 1, 1000: 1})
    job.checkpoint()


def path_of(job: StateJob, number: int) -> str:
    return job.layout.manifest(CheckpointId(number))


def paths(job: StateJob) -> set[str]:
    return {info.path for info in job.store.list(job.layout.job)}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_all_other_checkpoints_can_still_be_restored(job: StateJob, tmp_path: Path, number: int) -> None:
    files = {file.path for file in read_manifest(job.store, path_of(job, number)).files()}
    done = delete_snapshot(job.store, JOB, path_of(job, number))
    others = [path_of(job, each) for each in (1, 2, 3, 4) if each != number]
    assert done.own.keys() | done.shared.keys() == files | {path_of(job, number)}
    assert done.shared, "the checkpoints share files, or this shows nothing"
    assert not done.own.keys() & paths(job)
    assert [missing_files(job.store, read_manifest(job.store, path)) for path in others] == [[], [], []]
    restored = StateJob(job.store, tmp_path / "restored", reference=job.reference)
    restored.start(3, path_of(job, 4))
    assert restored.dump() == job.reference


def test_a_claimed_savepoint_stays_as_checkpoints_of_its_own_job_name_its_files(job: StateJob) -> None:
    savepoint, _ = job.checkpoint("kept")
    job.start(2, savepoint.path, claims=True)
    take(job, 9)
    newest = read_manifest(job.store, path_of(job, job.next_checkpoint_id - 1))
    assert any(file.path.startswith(job.layout.savepoints) for file in newest.files()), "or this shows nothing"
    before = paths(job)
    with pytest.raises(RetentionError, match="claimed"):
        delete_snapshot(job.store, JOB, savepoint.path)
    assert paths(job) == before
    delete_snapshot(job.store, JOB, newest.path)
    assert missing_files(job.store, savepoint) == [], "a checkpoint goes without the savepoint's files that it names"


def test_a_savepoint_goes_with_all_of_its_files_and_no_others(job: StateJob) -> None:
    before = paths(job)
    savepoint, _ = job.checkpoint("kept")
    done = delete_snapshot(job.store, JOB, savepoint.path)
    assert done.shared == {}
    assert paths(job) == before


def test_another_jobs_claim_is_respected(job: StateJob) -> None:
    savepoint, _ = job.checkpoint("kept")
    take_claim(job.store, savepoint, JobId("another"))
    with pytest.raises(RetentionError, match="another"):
        snapshot_objects(job.store, JOB, savepoint.path)


def test_nothing_is_deleted_while_it_is_unknown_what_another_checkpoint_needs(job: StateJob) -> None:
    job.store.put(path_of(job, 3), b"damaged")
    before = paths(job)
    with pytest.raises(RetentionError):
        delete_snapshot(job.store, JOB, path_of(job, 2))
    assert paths(job) == before


def test_an_interrupted_deletion_is_finished_by_the_next_one(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = job.layout.checkpoint(CheckpointId(2))
    delete = job.store.delete

    def dies(paths: list[str]) -> None:
        delete(paths)
        raise ConnectionError

    monkeypatch.setattr(job.store, "delete", dies)
    with pytest.raises(ConnectionError):
        delete_snapshot(job.store, JOB, path_of(job, 2))
    monkeypatch.undo()
    assert path_of(job, 2) not in paths(job), "the manifest goes first: if it is there, so are its files"
    assert any(path.startswith(directory) for path in paths(job))
    delete_snapshot(job.store, JOB, path_of(job, 2))
    assert not any(path.startswith(directory) for path in paths(job))


def test_a_newer_checkpoint_that_is_published_while_an_older_one_goes_keeps_its_files(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up may delete the only checkpoint that was listed and names a file that the newest one names, too."""
    for number in (1, 2):
        delete_snapshot(job.store, JOB, path_of(job, number))
    listed = job.store.list
    overtaken = []

    def overtaking(prefix: str, **options: str) -> Iterator[ObjectInfo]:
        found = list(listed(prefix, **options))
        if prefix == job.layout.checkpoints and not overtaken:
            overtaken.append(prefix)
            take(job, 5)
            job.store.delete([path_of(job, 4)])
        return iter(found)

    monkeypatch.setattr(job.store, "list", overtaking)
    delete_snapshot(job.store, JOB, path_of(job, 3))
    assert overtaken
    assert missing_files(job.store, read_manifest(job.store, path_of(job, 5))) == []


def test_the_jobs_own_clean_up_keeps_what_a_newer_checkpoint_needs_while_a_user_deletes_an_older_one(
    job: StateJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = job.store.list
    overtaken = []

    def overtaking(prefix: str, **options: str) -> Iterator[ObjectInfo]:
        found = list(listed(prefix, **options))
        if prefix == job.layout.job and not overtaken:
            overtaken.append(prefix)
            take(job, 5)
            delete_snapshot(job.store, JOB, path_of(job, 4))
        return iter(found)

    monkeypatch.setattr(job.store, "list", overtaking)
    plan = plan_deletion(gather_facts(job.store, JOB, 4_000_000_000_000), RetentionPolicy(retained_count=1))
    assert overtaken
    needed = {file.path for file in read_manifest(job.store, path_of(job, 5)).files()}
    assert not needed & {info.path for info in plan.files}


class ListsOneThatIsNeverFound(LocalObjectStore):
    """Lists a manifest that nobody can read: of a checkpoint that no longer exists, or never did."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = [*super().list(prefix, start_after=start_after)]
        return iter([*found, ObjectInfo(PHANTOM, 1, 0)] if PHANTOM.startswith(prefix) else found)


def test_a_manifest_that_is_listed_and_never_found_fails_the_deletion(job: StateJob, tmp_path: Path) -> None:
    store = ListsOneThatIsNeverFound(tmp_path / "store")
    with pytest.raises(RetentionError, match="never found"):
        delete_snapshot(store, JOB, path_of(job, 2))
    facts = gather_facts(store, JOB, LATER_MS)
    assert facts.unreadable == {PHANTOM}
    with pytest.raises(RetentionError, match=r"chk-99/.* cannot be read"):
        plan_deletion(facts, RetentionPolicy(1))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: Path(path).symlink_to("none")])
def test_what_is_no_file_and_named_as_a_manifest_or_an_entry_keeps_no_other_from_being_deleted(
    job: StateJob, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    for name in ("chk-0/manifest.json", "savepoints/mine/manifest.json", "savepoints/mine/claim.json"):
        path = tmp_path / "store" / JOB / name
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
    make(tmp_path / "store" / job.layout.log_entry(99))
    plan = plan_deletion(gather_facts(job.store, JOB, LATER_MS), RetentionPolicy(1))
    assert [info.path for info in plan.manifests] == [path_of(job, number) for number in (1, 2, 3)]
    assert delete_snapshot(job.store, JOB, path_of(job, 2)).own
