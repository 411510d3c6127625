"""Of a deleted job nothing stays but its savepoints, and a driver of it that nobody can reach commits no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.identifiers import Attempt, BatchId, JobId
from keyscale.state.documents.claim import claim_path, read_claim, take_claim
from keyscale.state.documents.log_entries import BatchPlanned
from keyscale.state.layout import JOB_RECORDS, Layout
from keyscale.state.log.commit_log import FencedError
from keyscale.state.log.recovery import missing_files
from keyscale.state.objects.errors import StoreRefusedError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.object_store import TEMPORARY_PREFIX
from keyscale.state.retention.deleted_job import DeletedObjects, delete_job_objects
from keyscale.state.retention.deletion_plan import RetentionError
from keyscale.state.retention.snapshot_deletion import delete_snapshot
from keyscale.state.snapshot.own_copy import own_copy
from tests.support.state.state_job import JOB, StateJob

if TYPE_CHECKING:
    from pathlib import Path

LATER_MS = 4_000_000_000_000


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    for batch in range(3):
        job.run_batch({batch: 1})
        job.checkpoint()
    job.store.put("job2/shared/x", b"of another job")
    return job


def paths(job: StateJob) -> list[str]:
    return [info.path for info in job.store.list(job.layout.job)]


def test_everything_is_deleted_and_counted(job: StateJob) -> None:
    before = list(job.store.list(job.layout.job))
    done = delete_job_objects(job.store, JOB, is_last=True)
    assert (done.objects, done.size_bytes) == (len(before), sum(info.size_bytes for info in before))
    assert paths(job) == []
    assert job.store.get("job2/shared/x") == b"of another job"
    again = delete_job_objects(job.store, JOB, is_last=True)
    assert (again.objects, again.savepoints) == (0, ())


def test_the_records_of_the_job_go_first(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    record, other = job.layout.record(Attempt(1)), Layout(JobId("job2")).record(Attempt(1))
    for path in (record, job.layout.recorded_artifact("ab"), other):
        job.store.put(path, b"x")
    deleted: list[str] = []
    delete = job.store.delete
    monkeypatch.setattr(job.store, "delete", lambda paths: (deleted.extend(paths), delete(paths)))
    before = len(paths(job))
    assert delete_job_objects(job.store, JOB, is_last=True).objects == before + 2
    assert deleted[:2] == [record, job.layout.recorded_artifact("ab")]
    assert [info.path for info in job.store.list(JOB_RECORDS)] == [other]


def test_manifests_are_deleted_before_the_files_that_they_name(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[str] = []
    delete = job.store.delete
    monkeypatch.setattr(job.store, "delete", lambda paths: (deleted.extend(paths), delete(paths)))
    delete_job_objects(job.store, JOB, is_last=True)
    are_manifests = [path.endswith("/manifest.json") for path in deleted]
    assert sum(are_manifests) == 3
    assert are_manifests == sorted(are_manifests, reverse=True)


def test_a_copy_that_the_job_has_made_of_another_jobs_checkpoint_goes_too(job: StateJob, tmp_path: Path) -> None:
    other = StateJob(job.store, tmp_path / "other", job_id=JobId("other"))
    other.start(1)
    other.run_batch({1: 1})
    copy = own_copy(job.store, other.checkpoint()[0], JOB, "from-other-1")
    take_claim(job.store, copy, JOB)
    savepoint, _ = job.checkpoint("mine")
    assert delete_job_objects(job.store, JOB, is_last=True).savepoints == (savepoint.path,)
    assert all(path.startswith(f"{job.layout.savepoints}mine/") for path in paths(job))


def test_savepoints_stay_and_can_be_restored(job: StateJob, tmp_path: Path) -> None:
    savepoint, _ = job.checkpoint("mine")
    job.store.put(f"{job.layout.savepoints}failed/files/abc-1-9", b"a savepoint that was never published")
    done = delete_job_objects(job.store, JOB, is_last=True)
    assert done.savepoints == (savepoint.path,)
    assert {path.rpartition("/savepoints/")[2].partition("/")[0] for path in paths(job)} == {"mine"}
    restored = StateJob(job.store, tmp_path / "elsewhere", job_id=JobId("restored"))
    restored.start(3, savepoint.path)
    assert restored.dump() == job.reference


def test_a_savepoint_that_another_job_has_claimed_is_left_to_that_job(job: StateJob, tmp_path: Path) -> None:
    savepoint, _ = job.checkpoint("mine")
    owner = StateJob(job.store, tmp_path / "elsewhere", job_id=JobId("owner"))
    owner.start(2, savepoint.path, claims=True)
    job.store.delete([savepoint.path])  # as its new owner does before it deletes the files
    delete_job_objects(job.store, JOB, is_last=True)
    assert any(path.endswith("/claim.json") for path in paths(job))


def test_a_savepoint_that_its_user_has_deleted_does_not_stay_unless_another_job_has_claimed_it(
    job: StateJob, tmp_path: Path
) -> None:
    gone, stays, claimed = (job.checkpoint(name)[0] for name in ("gone", "stays", "claimed"))
    claiming(job, tmp_path, claimed.path)
    done = delete_job_objects(job.store, JOB, is_last=True, discarded=[gone.path, claimed.path])
    assert {path.rpartition("/savepoints/")[2].partition("/")[0] for path in paths(job)} == {"stays", "claimed"}
    assert stays.path in done.savepoints
    assert not missing_files(job.store, claimed)


def claiming(job: StateJob, tmp_path: Path, path: str) -> StateJob:
    """Returns a job that has claimed a savepoint, and has used what is in it."""
    owner = StateJob(job.store, tmp_path / "elsewhere", job_id=JobId("owner"), reference=dict(job.reference))
    owner.start(2, path, claims=True)
    owner.run_batch({1: 1})
    owner.checkpoint()
    return owner


def test_a_deleted_jobs_claim_of_another_jobs_savepoint_ends(job: StateJob, tmp_path: Path) -> None:
    savepoint, _ = job.checkpoint("mine")
    claiming(job, tmp_path, savepoint.path)
    with pytest.raises(RetentionError, match="has claimed"):
        delete_snapshot(job.store, JOB, savepoint.path)
    delete_job_objects(job.store, JobId("owner"), is_last=False)
    assert read_claim(job.store, claim_path(savepoint.path)) is None
    assert not missing_files(job.store, savepoint)
    assert job.store.get("job2/shared/x") == b"of another job"
    delete_snapshot(job.store, JOB, savepoint.path)
    assert not [path for path in paths(job) if path.startswith(job.layout.savepoints)]


def test_the_rest_of_a_savepoint_that_the_deleted_job_no_longer_needed_goes_with_its_claim(
    job: StateJob, tmp_path: Path
) -> None:
    savepoint, _ = job.checkpoint("mine")
    claiming(job, tmp_path, savepoint.path)
    job.store.delete([savepoint.path])  # as its new owner does before it deletes the files
    delete_job_objects(job.store, JOB, is_last=True)
    assert paths(job), "they are another job's"
    delete_job_objects(job.store, JobId("owner"), is_last=False)
    assert paths(job) == []


def test_a_claim_ends_that_no_entry_of_the_log_names(job: StateJob, tmp_path: Path) -> None:
    """The driver was killed between the two, or the log is damaged or closed already."""
    savepoint, _ = job.checkpoint("mine")
    owner = claiming(job, tmp_path, savepoint.path)
    for info in list(job.store.list(owner.layout.log)):
        job.store.put(info.path, b"damaged")
    delete_job_objects(job.store, owner.job_id, is_last=False)
    assert read_claim(job.store, claim_path(savepoint.path)) is not None
    delete_job_objects(job.store, owner.job_id, is_last=True, claimed=[savepoint.path])
    assert read_claim(job.store, claim_path(savepoint.path)) is None
    assert not missing_files(job.store, savepoint)


def test_the_claims_that_are_told_end_and_also_those_that_only_the_log_names(job: StateJob, tmp_path: Path) -> None:
    told, logged = (job.checkpoint(name)[0] for name in ("told", "logged"))
    owner = claiming(job, tmp_path, logged.path)
    take_claim(job.store, told, owner.job_id)
    delete_job_objects(job.store, owner.job_id, is_last=True, claimed=[told.path])
    assert [read_claim(job.store, claim_path(each.path)) for each in (told, logged)] == [None, None]


def test_a_claim_of_its_own_savepoint_ends_too(job: StateJob, tmp_path: Path) -> None:
    savepoint, _ = job.checkpoint("mine")
    take_claim(job.store, savepoint, JOB)
    delete_job_objects(job.store, JOB, is_last=True, claimed=[savepoint.path])
    restored = StateJob(job.store, tmp_path / "elsewhere", job_id=JobId("restored"), reference=dict(job.reference))
    restored.start(3, savepoint.path)
    assert restored.dump() == job.reference


@pytest.mark.parametrize("path", ["job2/shared/x", "job2/shared/../x", "", "job/savepoints/mine/claim.json"])
def test_no_other_jobs_claim_ends_whatever_is_named(job: StateJob, tmp_path: Path, path: str) -> None:
    savepoint, _ = job.checkpoint("mine")
    owner = claiming(job, tmp_path, savepoint.path)
    delete_job_objects(job.store, JobId("third"), is_last=True, claimed=[savepoint.path, path])
    claim = read_claim(job.store, claim_path(savepoint.path))
    assert claim is not None
    assert claim.job_id == owner.job_id
    assert job.store.get("job2/shared/x") == b"of another job"


def test_an_unreachable_driver_is_fenced(job: StateJob) -> None:
    delete_job_objects(job.store, JOB, is_last=False)
    assert len(paths(job)) == 1, "the log's closing entry"
    with pytest.raises(FencedError):
        job.log.append(job.position, BatchPlanned(job.attempt, BatchId(3), {}))
    assert delete_job_objects(job.store, JOB, is_last=False).objects == 0
    assert delete_job_objects(job.store, JOB, is_last=True).objects == 0
    assert paths(job) == []


def test_a_driver_that_appends_at_the_same_moment_is_fenced_with_its_next_entry(job: StateJob) -> None:
    create, batch = job.store.create, BatchId(job.batch_id + 1)

    def append_first(path: str, data: bytes) -> None:
        job.store.create = create  # type: ignore[method-assign]
        job.log.append(job.position, BatchPlanned(job.attempt, batch, {}))
        create(path, data)

    job.store.create = append_first  # type: ignore[method-assign]
    delete_job_objects(job.store, JOB, is_last=False)
    with pytest.raises(FencedError):
        job.log.append(job.position + 1, BatchPlanned(job.attempt, batch, {}))


def test_a_log_entry_of_any_size_is_not_read_to_close_the_log(job: StateJob, tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store", get_bytes_max=100_000)
    store.put(job.layout.log_entry(job.position), b"x" * 100_001)
    delete_job_objects(store, JOB, is_last=True)
    assert paths(job) == []


def test_unfinished_writes_of_killed_processes_are_removed_when_they_are_old(job: StateJob, tmp_path: Path) -> None:
    (tmp_path / "store" / JOB / "shared" / f"{TEMPORARY_PREFIX}x").write_bytes(b"x")
    assert delete_job_objects(job.store, JOB, is_last=True).unfinished_writes == 0
    assert delete_job_objects(job.store, JOB, is_last=True, writes_before_ms=LATER_MS).unfinished_writes == 1
    assert not (tmp_path / "store" / JOB).exists()


def small_job(tmp_path: Path) -> LocalObjectStore:
    """The objects of a job without Spark: two records, two files and two unfinished writes."""
    store = LocalObjectStore(tmp_path / "small")
    layout = Layout(JOB)
    store.put(layout.record(Attempt(1)), b"1")
    store.put(layout.recorded_artifact("ab"), b"22")
    store.put(f"{layout.shared}a", b"333")
    store.put(f"{layout.checkpoints}1/b", b"4444")
    for path in (layout.record(Attempt(1)), f"{layout.shared}a"):
        (tmp_path / "small" / path).with_name(f"{TEMPORARY_PREFIX}x").write_bytes(b"x")
    return store


def test_records_files_and_unfinished_writes_of_both_are_counted(tmp_path: Path) -> None:
    done = delete_job_objects(small_job(tmp_path), JOB, is_last=True, writes_before_ms=LATER_MS)
    assert done == DeletedObjects(objects=4, size_bytes=10, unfinished_writes=2, savepoints=())


def test_a_store_that_does_not_show_unfinished_writes_deletes_the_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise StoreRefusedError("no right to list uploads")

    store = small_job(tmp_path)
    monkeypatch.setattr(store, "remove_unfinished", refuse)
    done = delete_job_objects(store, JOB, is_last=True, writes_before_ms=LATER_MS)
    assert done == DeletedObjects(objects=4, size_bytes=10, unfinished_writes=0, savepoints=())


@pytest.mark.parametrize("content", [b"", b"the job was deleteX", b"the job was deleted!"])
def test_only_the_end_of_a_log_counts_as_its_end(tmp_path: Path, content: bytes) -> None:
    store, layout = LocalObjectStore(tmp_path / "small"), Layout(JOB)
    store.put(layout.log_entry(3), content)
    delete_job_objects(store, JOB, is_last=False)
    assert {info.path: store.get(info.path) for info in store.list(layout.job)} == {
        layout.log_entry(4): b"the job was deleted"
    }
    delete_job_objects(store, JOB, is_last=False)
    assert [info.path for info in store.list(layout.job)] == [layout.log_entry(4)]
