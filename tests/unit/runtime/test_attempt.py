from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobs.runtime.attempt import OpenAttempt, check_fit, fall_back, open_attempt, reopen_attempt, resume_positions
from jobs.runtime.errors import PositionsCorruptError, RestoreRefusedError
from jobs.wire import Assignment
from state.claim import ClaimRefusedError
from state.hashing import HashId
from state.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from state.layout import Layout, location_of
from state.log import BatchCommitted, BatchPlanned, FencedError, OperatorHistory, ResumePoint
from state.manifest import Manifest, OperatorFacts, SnapshotHandle, SnapshotKind, write_manifest, write_positions
from state.objects import LocalObjectStore, open_store
from state.recovery import NothingUsableError

if TYPE_CHECKING:
    from pathlib import Path

    from state.objects import ObjectStore

UID = OperatorUid("counts")
BY_NAME = OperatorFacts(key_schema=(("name", "string"),))
BY_NUMBER = OperatorFacts(key_schema=(("number", "int64"),))
OPERATORS = {UID: BY_NAME}


def offsets(batch_id: int) -> str:
    return f'v1\n{{"batchWatermarkMs":{batch_id}}}\n{{"logOffset":{batch_id}}}'


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = open_store((tmp_path / "store").as_uri())
    assert isinstance(store, LocalObjectStore)
    return store


def assignment(store: ObjectStore, attempt: int, **changes: object) -> Assignment:
    made = Assignment(
        job_id="job",
        job_name="job",
        attempt=attempt,
        parallelism=2,
        max_parallelism=8,
        artifact_filename="a.py",
        artifact_sha256="0",
        store_url=store.url,
    )
    return made.model_copy(update=changes)


def plan(batch_id: int) -> dict[str, str]:
    return {f"offsets/{batch_id}": offsets(batch_id), f"sources/0/{batch_id}": "v1"}


def commit(attempt: int, batch_id: int) -> BatchCommitted:
    return BatchCommitted(
        attempt=Attempt(attempt),
        batch_id=BatchId(batch_id),
        operators={UID: [None, None]},
        sinks={"files": f"token {batch_id}"},
        committed_at_ms=0,
    )


def resume_point(**changes: object) -> ResumePoint:
    facts: dict[str, object] = {
        "batch_id": BatchId(-1),
        "planned": None,
        "positions": {},
        "operators": {},
        "next_position": 1,
        "attempt": Attempt(0),
        "sinks": {},
        "max_parallelism": None,
        "hash_id": None,
    }
    return ResumePoint(**{**facts, **changes})  # type: ignore[arg-type]  # a test's shorthand


def history(facts: OperatorFacts) -> OperatorHistory:
    snapshot = SnapshotHandle(SubtaskIndex(0), 0, 7, BatchId(0), "lineage", ())
    return OperatorHistory(snapshots=(snapshot,), facts=facts)


def test_a_new_job_begins_with_nothing(store: ObjectStore) -> None:
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    assert opened.resume.batch_id == -1
    assert opened.positions == {}
    assert opened.journal.last_position == 1


def test_a_batch_that_was_planned_and_not_committed_is_to_be_run_again(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    first.journal.append(BatchPlanned(Attempt(1), BatchId(0), {"metadata": "m", **plan(0)}))
    first.journal.append(commit(1, 0))
    first.journal.append(BatchPlanned(Attempt(1), BatchId(1), plan(1)))

    second = open_attempt(store, assignment(store, 2), OPERATORS)
    assert second.resume.batch_id == 0
    assert second.resume.planned is not None
    assert second.positions.keys() == {
        "metadata",
        "offsets/0",
        "offsets/1",
        "sources/0/0",
        "sources/0/1",
        "commits/0",
    }


def test_after_a_commit_the_next_batch_is_planned_anew(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    first.journal.append(BatchPlanned(Attempt(1), BatchId(0), plan(0)))
    first.journal.append(commit(1, 0))

    second = open_attempt(store, assignment(store, 2), OPERATORS)
    assert second.resume.planned is None
    assert second.resume.sinks == {"files": "token 0"}
    assert second.positions == {**plan(0), "commits/0": 'v1\n{"nextBatchWatermarkMs":0}'}


def test_an_older_attempt_cannot_commit_once_a_newer_one_is_open(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    assert not first.journal.is_overtaken()
    open_attempt(store, assignment(store, 2), OPERATORS)
    assert first.journal.is_overtaken()
    with pytest.raises(FencedError):
        first.journal.append(BatchPlanned(Attempt(1), BatchId(0), plan(0)))


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_attempt_that_is_not_newer_than_the_last_one_is_fenced(store: ObjectStore, attempt: int) -> None:
    open_attempt(store, assignment(store, 2), OPERATORS)
    with pytest.raises(FencedError):
        open_attempt(store, assignment(store, attempt), OPERATORS)


def checkpointed(store: ObjectStore, first: OpenAttempt, checkpoint_id: int, batch_id: int) -> Manifest:
    """Commits a batch and publishes a checkpoint after it."""
    first.journal.append(BatchPlanned(Attempt(1), BatchId(batch_id), {"metadata": "m", **plan(batch_id)}))
    first.journal.append(commit(1, batch_id))
    manifest = Manifest(
        job_id=JobId("job"),
        checkpoint_id=CheckpointId(checkpoint_id),
        kind=SnapshotKind.CHECKPOINT,
        attempt=Attempt(1),
        batch_id=BatchId(batch_id),
        log_position=first.journal.last_position,
        max_parallelism=8,
        hash_id=HashId.SPARK,
        created_at_ms=0,
        operators=(),
        positions=write_positions(
            store,
            Layout(JobId("job")),
            {"metadata": "m", **plan(batch_id)},
            checkpoint_id=CheckpointId(checkpoint_id),
            savepoint_id=None,
            unique="u",
        ),
    )
    write_manifest(store, manifest)
    return manifest


def test_a_job_goes_on_from_its_checkpoint_and_the_log_after_it(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    manifest = checkpointed(store, first, 1, 0)
    first.journal.append(BatchPlanned(Attempt(1), BatchId(1), plan(1)))
    first.journal.append(commit(1, 1))

    location = location_of(store.url, manifest.path)
    second = open_attempt(store, assignment(store, 2, restore_from=location), OPERATORS)
    assert second.resume.batch_id == 1
    assert second.manifest == manifest
    assert {"metadata", "offsets/0", "offsets/1", "commits/1"} <= second.positions.keys()


@pytest.mark.parametrize("damaged", ["manifest", "positions"])
def test_a_damaged_checkpoint_is_skipped_for_the_one_before_it_and_nothing_is_lost(
    store: ObjectStore, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    older = checkpointed(store, first, 1, 0)
    newer = checkpointed(store, first, 2, 1)
    assert newer.positions is not None
    path = newer.path if damaged == "manifest" else newer.positions.path
    store.put(path, store.get(path)[:-7])

    second = open_attempt(store, assignment(store, 2, restore_from=location_of(store.url, newer.path)), OPERATORS)
    assert second.manifest == older
    assert second.resume.batch_id == 1
    assert "commits/1" in second.positions
    assert newer.path in caplog.text


def test_an_attempt_whose_files_are_damaged_falls_back_under_its_own_fence(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    older = checkpointed(store, first, 1, 0)
    newer = checkpointed(store, first, 2, 1)
    second = open_attempt(store, assignment(store, 2), OPERATORS)
    assert second.manifest == newer

    fallen = fall_back(store, assignment(store, 2), second)
    assert fallen.manifest == older
    assert fallen.resume.batch_id == 1
    fallen.journal.append(BatchPlanned(Attempt(2), BatchId(2), plan(2)))
    with pytest.raises(NothingUsableError):
        fall_back(store, assignment(store, 2), fallen)


def test_a_checkpoint_that_is_gone_is_an_error_and_opens_nothing(store: ObjectStore) -> None:
    location = location_of(store.url, "job/chk-7/manifest.json")
    with pytest.raises(NothingUsableError, match="chk-7"):
        open_attempt(store, assignment(store, 1, restore_from=location), OPERATORS)
    assert not list(store.list("job/log/"))


def test_a_checkpoint_in_another_store_is_refused(store: ObjectStore) -> None:
    with pytest.raises(RestoreRefusedError, match="another object store"):
        open_attempt(store, assignment(store, 1, restore_from="s3://else/where/job/chk-7/manifest.json"), OPERATORS)


@pytest.mark.parametrize(
    ("resume", "message"),
    [
        (resume_point(max_parallelism=16), "max parallelism 16"),
        (resume_point(hash_id=HashId.JAVA), "hashed by 'java'"),
        (resume_point(operators={OperatorUid("gone"): history(BY_NAME)}), "operator 'gone'"),
        (resume_point(operators={UID: history(BY_NUMBER)}), r"number \(int64\) and is now by name \(string\)"),
    ],
)
def test_state_that_does_not_fit_the_job_is_refused(store: ObjectStore, resume: ResumePoint, message: str) -> None:
    with pytest.raises(RestoreRefusedError, match=message):
        check_fit(assignment(store, 1), resume, OPERATORS)


def test_all_that_does_not_fit_is_said_at_once(store: ObjectStore) -> None:
    resume = resume_point(max_parallelism=16, hash_id=HashId.JAVA)
    with pytest.raises(RestoreRefusedError, match=r"max parallelism 16.*hashed by 'java'"):
        check_fit(assignment(store, 1), resume, OPERATORS)


def test_an_operator_without_state_may_come_and_go(store: ObjectStore) -> None:
    check_fit(assignment(store, 1), resume_point(operators={OperatorUid("gone"): OperatorHistory()}), OPERATORS)


def test_positions_without_the_last_batchs_offsets_are_refused() -> None:
    with pytest.raises(PositionsCorruptError):
        resume_positions({}, resume_point(batch_id=BatchId(3)))


def savepoint_of(store: ObjectStore, job_id: str) -> Manifest:
    layout = Layout(JobId(job_id))
    files = {"metadata": "m", **plan(0)}
    positions = write_positions(store, layout, files, checkpoint_id=CheckpointId(1), savepoint_id="given", unique="1")
    manifest = Manifest(
        job_id=JobId(job_id),
        checkpoint_id=CheckpointId(1),
        kind=SnapshotKind.SAVEPOINT,
        attempt=Attempt(1),
        batch_id=BatchId(0),
        log_position=3,
        max_parallelism=8,
        hash_id=HashId.SPARK,
        created_at_ms=0,
        operators=(),
        positions=positions,
        savepoint_id="given",
    )
    write_manifest(store, manifest)
    return manifest


@pytest.mark.parametrize("mode", ["claim", "no_claim"])
def test_a_savepoint_is_the_jobs_once_it_was_claimed_and_no_other_jobs(store: ObjectStore, mode: str) -> None:
    given = savepoint_of(store, "earlier")
    location = location_of(store.url, given.path)
    opened = open_attempt(store, assignment(store, 1, restore_from=location, claim_mode=mode), OPERATORS)
    assert opened.manifest == given
    assert opened.claims is (mode == "claim")
    further = assignment(store, 1, job_id="further", restore_from=location)
    if mode == "claim":
        with pytest.raises(ClaimRefusedError):
            open_attempt(store, further, OPERATORS)
    else:
        assert not open_attempt(store, further, OPERATORS).claims


def test_an_attempt_that_failed_goes_on_in_its_process_from_what_it_has_committed(store: ObjectStore) -> None:
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    opened.journal.append(BatchPlanned(Attempt(1), BatchId(0), plan(0)))
    opened.journal.append(commit(1, 0))
    opened.journal.append(BatchPlanned(Attempt(1), BatchId(1), plan(1)))
    again = reopen_attempt(store, assignment(store, 1), opened)
    assert (again.attempt, again.resume.batch_id) == (1, 0)
    assert again.resume.planned is not None, "the batch that failed is run again with its own positions"
    again.journal.append(commit(1, 1))
    assert reopen_attempt(store, assignment(store, 1), again).resume.batch_id == 1


def test_what_a_failed_run_writes_late_is_refused_or_refuses_the_run_after_it(store: ObjectStore) -> None:
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    opened.journal.append(BatchPlanned(Attempt(1), BatchId(0), plan(0)))
    again = reopen_attempt(store, assignment(store, 1), opened)
    opened.journal.append(commit(1, 0).__class__(Attempt(1), BatchId(0), {UID: [None, None]}, {"files": "late"}, 0))
    with pytest.raises(FencedError):
        again.journal.append(commit(1, 0))


def test_an_attempt_that_was_overtaken_while_it_had_failed_does_not_go_on(store: ObjectStore) -> None:
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    open_attempt(store, assignment(store, 2), OPERATORS)
    with pytest.raises(FencedError, match="attempt 2"):
        reopen_attempt(store, assignment(store, 1), opened)
