"""A savepoint that a job is restored from stays with its owner (NO_CLAIM) or becomes the job's (CLAIM)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.identifiers import JobId
from keyscale.state.documents.checked_document import encode_document
from keyscale.state.documents.claim import (
    FORMAT_VERSION,
    KIND,
    Claim,
    ClaimRefusedError,
    claim_path,
    read_claim,
    take_claim,
)
from keyscale.state.log.recovery import missing_files
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.retention import deletion as retention
from keyscale.state.retention.deletion import delete_planned, gather_facts
from keyscale.state.retention.deletion_plan import RetentionPolicy, plan_deletion
from tests.support.repository import GOLDEN
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.state.documents.manifest import Manifest

VECTORS_FILE = GOLDEN / "claim-v1.json"
FAR_FUTURE_MS = 4_000_000_000_000
KEYS = dict.fromkeys(range(300), 1)
CHANGED = dict.fromkeys(range(20), 5)


@pytest.fixture
def owner(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    job.run_batch(KEYS)
    return job


@pytest.fixture
def savepoint(owner: StateJob) -> Manifest:
    manifest, _ = owner.checkpoint("given")
    owner.run_batch(CHANGED)
    owner.checkpoint()
    return manifest


def another(owner: StateJob, tmp_path: Path, name: str = "other") -> StateJob:
    return StateJob(owner.store, tmp_path / name, job_id=JobId(name), reference=dict(KEYS))


def files_of(manifest: Manifest) -> set[str]:
    return {file.path for file in manifest.files()}


def collect(job: StateJob) -> None:
    """Deletes all that may be deleted, whatever its age."""
    facts = gather_facts(job.store, job.job_id, FAR_FUTURE_MS)
    delete_planned(job.store, plan_deletion(facts, RetentionPolicy(retained_count=1)))


def objects_of(job: StateJob, manifest: Manifest) -> set[str]:
    return {info.path for info in job.store.list(manifest.path.rpartition("/")[0] + "/")}


def rewrite_all(job: StateJob) -> None:
    """Changes and compacts all state, so that the next checkpoint references no earlier file."""
    job.run_batch(KEYS)
    for index in range(job.parallelism):
        with job.open(index) as store:
            store.engine.compact()


def test_a_claimed_savepoints_files_are_referenced_without_a_copy(
    owner: StateJob, savepoint: Manifest, tmp_path: Path
) -> None:
    job = another(owner, tmp_path)
    job.start(2, savepoint.path, claims=True)
    job.run_batch({1: 1})
    own, uploaded_bytes = job.checkpoint()
    immutable = {file.path for file in savepoint.files() if file.shared}
    assert immutable < files_of(own)
    assert uploaded_bytes < own.state_size_bytes
    again, _ = job.checkpoint()
    assert immutable < files_of(again), "they stay the job's own"


def test_without_a_claim_the_first_checkpoint_takes_copies(
    owner: StateJob, savepoint: Manifest, tmp_path: Path
) -> None:
    job = another(owner, tmp_path)
    job.start(2, savepoint.path)
    job.run_batch({1: 1})
    own, _ = job.checkpoint()
    assert not files_of(own) & files_of(savepoint)


@pytest.mark.parametrize("by", ["another", "itself"])
def test_a_claimed_savepoint_is_deleted_once_it_is_subsumed_and_its_needed_files_stay(
    owner: StateJob, savepoint: Manifest, tmp_path: Path, by: str
) -> None:
    job = another(owner, tmp_path) if by == "another" else owner
    job.start(3, savepoint.path, claims=True, rewinds=by == "itself")
    job.reference = dict(KEYS)
    collect(job)
    assert missing_files(job.store, savepoint) == [], "the attempt has no checkpoint of its own yet"
    job.run_batch({1: 1})
    own, _ = job.checkpoint()
    collect(job)
    assert job.store.head(savepoint.path) is None
    assert missing_files(job.store, own) == []
    job.local_root = tmp_path / "a host without files"
    job.recover(2)
    assert job.dump() == {**KEYS, 1: 2}


def test_a_claimed_savepoint_leaves_nothing_behind(owner: StateJob, savepoint: Manifest, tmp_path: Path) -> None:
    job = another(owner, tmp_path)
    job.start(2, savepoint.path, claims=True)
    job.run_batch({1: 1})
    job.checkpoint()
    rewrite_all(job)
    job.checkpoint()
    collect(job)
    collect(job)
    assert objects_of(job, savepoint) == set()


def test_the_job_that_took_a_claimed_savepoint_keeps_its_files(
    owner: StateJob, savepoint: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = another(owner, tmp_path)
    job.start(2, savepoint.path, claims=True)
    job.run_batch({1: 1})
    own, _ = job.checkpoint()
    collect(job)
    collect(owner)
    assert missing_files(job.store, own) == []
    monkeypatch.setattr(retention, "read_claim", lambda *_: None)  # the negative control
    collect(owner)
    assert missing_files(job.store, own) != []


def test_without_a_claim_no_original_file_is_needed_or_deleted(
    owner: StateJob, savepoint: Manifest, tmp_path: Path
) -> None:
    job = another(owner, tmp_path)
    job.start(2, savepoint.path)
    job.run_batch({1: 1})
    job.checkpoint()
    rewrite_all(job)
    job.checkpoint()
    collect(job)
    assert missing_files(job.store, savepoint) == []
    job.store.delete([info.path for info in job.store.list(owner.layout.job)])
    job.local_root = tmp_path / "a host without files"
    job.recover(3)
    assert job.dump() == {key: count + 1 + (key == 1) for key, count in KEYS.items()}


def test_of_two_jobs_that_claim_a_savepoint_one_is_refused(
    owner: StateJob, savepoint: Manifest, tmp_path: Path
) -> None:
    first, second = another(owner, tmp_path, "first"), another(owner, tmp_path, "second")
    first.start(2, savepoint.path, claims=True)
    with pytest.raises(ClaimRefusedError, match="'first' has claimed"):
        second.start(2, savepoint.path, claims=True)
    with pytest.raises(ClaimRefusedError, match="'first' has claimed"):
        second.start(2, savepoint.path)
    first.start(1, savepoint.path, claims=True)
    assert first.dump() == KEYS


def test_another_jobs_checkpoint_cannot_be_claimed_and_ones_own_needs_no_claim(owner: StateJob, tmp_path: Path) -> None:
    checkpoint, _ = owner.checkpoint()
    take_claim(owner.store, checkpoint, checkpoint.job_id)
    assert read_claim(owner.store, claim_path(checkpoint.path)) is None
    with pytest.raises(ClaimRefusedError, match="shares files"):
        another(owner, tmp_path).start(2, checkpoint.path, claims=True)


def test_todays_reader_reads_last_years_claim(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")
    store.put("job/savepoints/s/claim.json", VECTORS_FILE.read_bytes())
    assert read_claim(store, "job/savepoints/s/claim.json") == Claim(JobId("other"))
    assert encode_document(KIND, FORMAT_VERSION, Claim(JobId("other"))) == VECTORS_FILE.read_bytes()
