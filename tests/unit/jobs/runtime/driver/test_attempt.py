from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.batch.source_order import (
    SourceInputs,
    recorded_order,
    stored_positions,
)
from keyscale.jobs.runtime.driver import attempt as attempt_module
from keyscale.jobs.runtime.driver.attempt import (
    OpenAttempt,
    _counted,
    fall_back,
    open_attempt,
    open_next_attempt,
    reopen_attempt,
)
from keyscale.jobs.runtime.driver.resume_plan import ResumePlan, check_fit, newest_plan, resume_positions
from keyscale.jobs.runtime.errors import OutputWithdrawnError, RestoreRefusedError
from keyscale.jobs.spark_internals.checkpoint_directory import PositionsCorruptError
from keyscale.state.documents.changelog import ChangelogFormat, ChangelogHandle
from keyscale.state.documents.claim import ClaimRefusedError, take_claim
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned
from keyscale.state.documents.manifest import (
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    SnapshotHandle,
    SnapshotKind,
    write_manifest,
)
from keyscale.state.documents.rewind import Rewind
from keyscale.state.documents.source_positions import KINDS_NAME, ORDER_NAME, write_positions
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.layout import Layout, location_of
from keyscale.state.log.commit_log import CommitLog, FencedError
from keyscale.state.log.recovery import NothingUsableError
from keyscale.state.log.resolution import OperatorHistory, ResumePoint
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.objects.opening import open_store
from tests.support.drivers.assignments import assignment as new_assignment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyscale.jobs.protocol.messages import Assignment
    from keyscale.state.objects.object_store import ObjectStore

UID = OperatorUid("counts")
BY_NAME = OperatorDeclaration(key_schema=(("name", "string"),))
BY_NUMBER = OperatorDeclaration(key_schema=(("number", "int64"),))
OPERATORS = {UID: BY_NAME}


def offsets(batch_id: int) -> str:
    return f'v1\n{{"batchWatermarkMs":{batch_id}}}\n{{"logOffset":{batch_id}}}'


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = open_store((tmp_path / "store").as_uri())
    assert isinstance(store, LocalObjectStore)
    return store


def assignment(store: ObjectStore, attempt: int, **changes: object) -> Assignment:
    given = {"job_id": "job", "job_name": "job", "parallelism": 2, "max_parallelism": 8}
    program = {"artifact_filename": "a.py", "artifact_sha256": "0"}
    return new_assignment(**{**given, **program, "attempt": attempt, "store_url": store.url, **changes})


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


def changelog(batch_id: int) -> ChangelogHandle:
    return ChangelogHandle("path", 1, "", ChangelogFormat.FRAMES, BatchId(batch_id), SubtaskIndex(0), 0, 3, 1)


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


def history(facts: OperatorDeclaration) -> OperatorHistory:
    snapshot = SnapshotHandle(SubtaskIndex(0), 0, 7, BatchId(0), "lineage", ())
    return OperatorHistory(snapshots=(snapshot,), declaration=facts)


def test_counters_are_the_largest_that_the_control_plane_the_log_or_a_disowned_log_knows(store: ObjectStore) -> None:
    known = assignment(store, 1, counters={"input_records": 5, "output_records": 1, "late_records": 1})
    resumed = resume_point(counters=JobCounters(input_records=1, output_records=5, late_records=1))
    disowned = SimpleNamespace(newest_counters=lambda: JobCounters(input_records=1, output_records=1, late_records=5))
    counted = _counted(known, resumed, cast("CommitLog", disowned))
    assert (counted.input_records, counted.output_records, counted.late_records) == (5, 5, 5)
    assert _counted(known, resumed, None).late_records == 1


def test_a_new_job_begins_with_nothing(store: ObjectStore) -> None:
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    assert opened.resume.batch_id == -1
    assert opened.positions == {}
    assert opened.journal.last_position == 1
    assert (opened.manifest, opened.claims) == (None, False)


def test_an_attempt_knows_the_stores_time_of_its_opening(store: ObjectStore) -> None:
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    entry = store.head(Layout(JobId("job")).log_entry(opened.journal.last_position))
    assert entry is not None
    assert opened.opened_at_ms == entry.modified_ms


def test_a_program_without_the_sink_of_a_batch_that_may_be_unpublished_is_refused(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS, sinks=[OperatorUid("files")])
    first.journal.append(BatchPlanned(Attempt(1), BatchId(0), {"metadata": "m", **plan(0)}))
    first.journal.append(commit(1, 0))
    renamed = [OperatorUid("output")]
    with pytest.raises(RestoreRefusedError, match=r"batch 0 is committed.* by sink 'files'"):
        open_attempt(store, assignment(store, 2), OPERATORS, sinks=renamed)
    kept = open_attempt(store, assignment(store, 2), OPERATORS, sinks=[OperatorUid("files"), *renamed])
    assert kept.resume.sinks == {"files": "token 0"}
    leave = assignment(store, 3, allow_non_restored_state=True)
    assert open_attempt(store, leave, OPERATORS, sinks=renamed).attempt == 3


def test_a_batch_that_was_planned_but_not_committed_runs_again(store: ObjectStore) -> None:
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


def test_after_a_commit_the_next_batch_is_planned_by_spark(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    first.journal.append(BatchPlanned(Attempt(1), BatchId(0), plan(0)))
    first.journal.append(commit(1, 0))

    second = open_attempt(store, assignment(store, 2), OPERATORS)
    assert second.resume.planned is None
    assert second.resume.sinks == {"files": "token 0"}
    assert second.positions == {**plan(0), "commits/0": 'v1\n{"nextBatchWatermarkMs":0}'}


def test_an_attempts_own_entries_do_not_overtake_it(store: ObjectStore) -> None:
    """The retention pass asks on a thread of its own, while batches append."""
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    before = opened.journal.at(opened.journal.last_position + 1)
    opened.journal.append(BatchPlanned(Attempt(1), BatchId(0), plan(0)))
    assert not before.is_overtaken()


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


def checkpointed(
    store: ObjectStore, first: OpenAttempt, checkpoint_id: int, batch_id: int, files: dict[str, str] | None = None
) -> Manifest:
    """Commits a batch and publishes a checkpoint after it; `files` are the positions."""
    files = files or {"metadata": "m", **plan(batch_id)}
    first.journal.append(BatchPlanned(Attempt(1), BatchId(batch_id), files))
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
            stored_positions(files),
            checkpoint_id=CheckpointId(checkpoint_id),
            savepoint_id=None,
            unique="u",
        ),
    )
    write_manifest(store, manifest)
    return manifest


def test_a_job_continues_from_its_checkpoint_and_the_log_after_it(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    manifest = checkpointed(store, first, 1, 0)
    first.journal.append(BatchPlanned(Attempt(1), BatchId(1), plan(1)))
    first.journal.append(commit(1, 1))

    location = location_of(store.url, manifest.path)
    second = open_attempt(store, assignment(store, 2, restore_from=location), OPERATORS)
    assert second.resume.batch_id == 1
    assert second.manifest == manifest
    assert {"metadata", "offsets/0", "offsets/1", "commits/1"} <= second.positions.keys()


class VanishingStore(LocalObjectStore):
    """An object that was there when somebody looked is deleted just before it is read."""

    doomed: str | None = None

    def get(self, path: str) -> bytes:
        if path == self.doomed:
            self.delete([path])
        return super().get(path)


@pytest.mark.parametrize("damaged", ["manifest", "positions"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "deleted"])
def test_a_damaged_checkpoint_is_skipped_for_the_one_before_it_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: str, damage: str
) -> None:
    store = VanishingStore(tmp_path / "store")
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    older = checkpointed(store, first, 1, 0)
    newer = checkpointed(store, first, 2, 1)
    assert newer.positions is not None
    path = newer.path if damaged == "manifest" else newer.positions.path
    content = store.get(path)
    if damage == "deleted":
        store.doomed = path
    else:
        store.put(path, content[:-7] if damage == "cut" else content[:-7] + bytes([content[-7] ^ 1]) + content[-6:])

    second = open_attempt(store, assignment(store, 2, restore_from=location_of(store.url, newer.path)), OPERATORS)
    assert second.manifest == older
    assert second.resume.batch_id == 1
    assert "commits/1" in second.positions
    assert newer.path in caplog.text


class MeddledStore(LocalObjectStore):
    """Something happens to the store just before the first entry of an attempt is appended."""

    meddle: Callable[[], None] | None = None

    def create(self, path: str, data: bytes) -> None:
        meddle, self.meddle = self.meddle, None
        if meddle is not None and "/log/" in path:
            meddle()
        super().create(path, data)


@pytest.mark.parametrize("fate", ["deleted", "damaged", "without its files"])
def test_the_checkpoint_is_chosen_again_once_no_older_attempt_can_delete_it(tmp_path: Path, fate: str) -> None:
    store = MeddledStore(tmp_path / "store")
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    older, newer = checkpointed(store, first, 1, 0), checkpointed(store, first, 2, 1)
    assert newer.positions is not None
    path, positions = newer.path, newer.positions.path
    store.meddle = {
        "deleted": lambda: store.delete([path]),
        "damaged": lambda: store.put(path, b"{}"),
        "without its files": lambda: store.delete([positions]),
    }[fate]
    opened = open_attempt(store, assignment(store, 2, restore_from=location_of(store.url, path)), OPERATORS)
    assert opened.manifest == older
    assert opened.resume.batch_id == 1
    assert {"offsets/0", "offsets/1", "commits/1"} <= opened.positions.keys()


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


class StoreWithASlash(LocalObjectStore):
    """A store whose URL ends in a slash."""

    @property
    def url(self) -> str:
        return super().url + "/"


def test_a_checkpoint_in_a_store_whose_url_ends_in_a_slash_is_found(tmp_path: Path) -> None:
    store = StoreWithASlash(tmp_path / "storeX")
    manifest = checkpointed(store, open_attempt(store, assignment(store, 1), OPERATORS), 1, 0)
    location = location_of(store.url, manifest.path)
    assert open_attempt(store, assignment(store, 2, restore_from=location), OPERATORS).manifest == manifest


def test_a_checkpoint_in_another_store_is_refused(store: ObjectStore) -> None:
    with pytest.raises(RestoreRefusedError, match="another object store"):
        open_attempt(store, assignment(store, 1, restore_from="s3://else/where/job/chk-7/manifest.json"), OPERATORS)


@pytest.mark.parametrize(
    ("resume", "message"),
    [
        (resume_point(max_parallelism=16), "has max parallelism 16, the job 8; it cannot change$"),
        (resume_point(hash_id=HashId.JAVA), "hashed by 'java', the job's by 'spark'"),
        (resume_point(operators={OperatorUid("gone"): history(BY_NAME)}), "operator 'gone'"),
        (resume_point(operators={UID: history(BY_NUMBER)}), r"number \(int64\) and is now keyed by name \(string\)"),
    ],
)
def test_state_that_does_not_fit_the_job_is_refused(store: ObjectStore, resume: ResumePoint, message: str) -> None:
    with pytest.raises(RestoreRefusedError, match=message):
        check_fit(assignment(store, 1), resume, OPERATORS)


def test_all_differences_between_a_job_and_its_state_are_listed_at_once(store: ObjectStore) -> None:
    resume = resume_point(max_parallelism=16, hash_id=HashId.JAVA)
    with pytest.raises(RestoreRefusedError, match=r"max parallelism 16.*hashed by 'java'"):
        check_fit(assignment(store, 1), resume, OPERATORS)


def test_an_operator_without_state_may_be_added_and_removed(store: ObjectStore) -> None:
    check_fit(assignment(store, 1), resume_point(operators={OperatorUid("gone"): OperatorHistory()}), OPERATORS)


def test_positions_without_the_last_batchs_offsets_are_refused() -> None:
    with pytest.raises(PositionsCorruptError):
        resume_positions({}, resume_point(batch_id=BatchId(3)))


def savepoint_of(store: ObjectStore, job_id: str) -> Manifest:
    layout = Layout(JobId(job_id))
    files = {"metadata": "m", **plan(0)}
    positions = write_positions(
        store,
        layout,
        stored_positions(files),
        checkpoint_id=CheckpointId(1),
        savepoint_id="given",
        unique="1",
    )
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
def test_a_claimed_savepoint_belongs_to_the_job_and_to_no_other(store: ObjectStore, mode: str) -> None:
    given = savepoint_of(store, "earlier")
    location = location_of(store.url, given.path)
    opened = open_attempt(store, assignment(store, 1, restore_from=location, claim_mode=mode), OPERATORS)
    assert opened.manifest == given
    assert opened.claims is (mode == "claim")
    [*_, (_, entry)] = opened.journal._log.read()
    assert isinstance(entry, AttemptOpened)
    assert (entry.claims, entry.restored_from) == (mode == "claim", given.path), "the clean-up goes by the log"
    further = assignment(store, 1, job_id="further", restore_from=location)
    if mode == "claim":
        with pytest.raises(ClaimRefusedError):
            open_attempt(store, further, OPERATORS)
    else:
        assert not open_attempt(store, further, OPERATORS).claims


def test_a_job_that_has_claimed_its_savepoint_is_restored_from_it_again(store: ObjectStore) -> None:
    location = location_of(store.url, savepoint_of(store, "earlier").path)
    open_attempt(store, assignment(store, 1, restore_from=location, claim_mode="claim"), OPERATORS)
    for attempt, mode in ((2, "claim"), (3, "no_claim")):
        again = assignment(store, attempt, restore_from=location, claim_mode=mode)
        assert open_attempt(store, again, OPERATORS).manifest is not None


def test_a_failed_attempt_keeps_its_claim_as_long_as_it_is_restored_from_the_claimed_savepoint(
    store: ObjectStore,
) -> None:
    given = savepoint_of(store, "earlier")
    first = assignment(store, 1, restore_from=location_of(store.url, given.path), claim_mode="claim")
    opened = open_attempt(store, first, OPERATORS)
    again = reopen_attempt(store, first, opened)
    assert (again.manifest, again.claims) == (given, True)
    own = checkpointed(store, again, 1, 1)
    later = reopen_attempt(store, first, again)
    assert (later.manifest, later.claims) == (own, False)
    assert not fall_back(store, first, again).claims


def test_a_failed_attempt_continues_in_its_process_from_its_last_commit(store: ObjectStore) -> None:
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    opened.journal.append(BatchPlanned(Attempt(1), BatchId(0), plan(0)))
    opened.journal.append(commit(1, 0))
    opened.journal.append(BatchPlanned(Attempt(1), BatchId(1), plan(1)))
    again = reopen_attempt(store, assignment(store, 1), opened)
    assert (again.attempt, again.resume.batch_id) == (1, 0)
    assert again.resume.planned is not None, "the batch that failed is run again with its own positions"
    again.journal.append(commit(1, 1))
    assert reopen_attempt(store, assignment(store, 1), again).resume.batch_id == 1


def test_a_late_write_of_a_failed_run_is_refused_or_the_next_run_is_refused(store: ObjectStore) -> None:
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    opened.journal.append(BatchPlanned(Attempt(1), BatchId(0), plan(0)))
    again = reopen_attempt(store, assignment(store, 1), opened)
    opened.journal.append(commit(1, 0).__class__(Attempt(1), BatchId(0), {UID: [None, None]}, {"files": "late"}, 0))
    with pytest.raises(FencedError):
        again.journal.append(commit(1, 0))


def test_an_attempt_that_was_overtaken_after_its_failure_does_not_continue(store: ObjectStore) -> None:
    opened = open_attempt(store, assignment(store, 1), OPERATORS)
    open_attempt(store, assignment(store, 2), OPERATORS)
    with pytest.raises(FencedError, match="attempt 2"):
        reopen_attempt(store, assignment(store, 1), opened)


def rewinding(store: ObjectStore, attempt: int, to: Manifest | None, **changes: object) -> Assignment:
    location = None if to is None else location_of(store.url, to.path)
    mode = "stateless" if to is None else "rewind"
    return assignment(store, attempt, **{"restore_mode": mode, "restore_from": location, **changes})


def three_batches(store: ObjectStore) -> tuple[Manifest, Manifest]:
    """Commits three batches, with a checkpoint after the first and the second one."""
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    manifests = checkpointed(store, first, 1, 0), checkpointed(store, first, 2, 1)
    first.journal.append(BatchPlanned(Attempt(1), BatchId(2), plan(2)))
    first.journal.append(commit(1, 2))
    return manifests


def test_a_rewind_resumes_from_exactly_its_snapshot_and_disowns_what_came_after(store: ObjectStore) -> None:
    older, _ = three_batches(store)
    opened = open_attempt(store, rewinding(store, 2, older), OPERATORS)
    assert (opened.manifest, opened.resume.batch_id, opened.resume.sinks) == (older, 0, {})
    assert {"offsets/0", "commits/0"} <= opened.positions.keys()
    assert "offsets/1" not in opened.positions
    opened.journal.append(BatchPlanned(Attempt(2), BatchId(1), plan(1)))
    opened.journal.append(commit(2, 1))
    continued = open_attempt(store, assignment(store, 3), OPERATORS)
    assert (continued.manifest, continued.resume.batch_id) == (older, 1)


def test_a_stateless_start_has_neither_state_nor_positions_and_keeps_the_numbers_of_attempts(
    store: ObjectStore,
) -> None:
    three_batches(store)
    opened = open_attempt(store, rewinding(store, 2, None), OPERATORS)
    assert (opened.manifest, opened.positions, opened.resume.batch_id) == (None, {}, -1)
    assert opened.resume.operators[UID].has_state is False
    with pytest.raises(FencedError):
        open_attempt(store, rewinding(store, 2, None), OPERATORS)
    assert open_attempt(store, assignment(store, 3), OPERATORS).resume.batch_id == -1


def test_a_restore_is_carried_out_once_and_one_without_a_name_each_time(store: ObjectStore) -> None:
    older, newer = three_batches(store)
    opened = open_attempt(store, rewinding(store, 2, older, restore_id="back"), OPERATORS)
    opened.journal.append(BatchPlanned(Attempt(2), BatchId(1), plan(1)))
    opened.journal.append(commit(2, 1))
    assert open_attempt(store, rewinding(store, 3, older, restore_id="back"), OPERATORS).resume.batch_id == 1
    assert open_attempt(store, rewinding(store, 4, newer, restore_id="forth"), OPERATORS).manifest == newer
    again = open_attempt(store, rewinding(store, 5, older, restore_id="back once more"), OPERATORS)
    assert (again.manifest, again.resume.batch_id) == (older, 0)
    again.journal.append(BatchPlanned(Attempt(5), BatchId(1), plan(1)))
    again.journal.append(commit(5, 1))
    assert open_attempt(store, rewinding(store, 6, older), OPERATORS).resume.batch_id == 0


SINKS = [OperatorUid("files")]


def test_a_snapshot_whose_output_the_sinks_have_taken_back_is_refused_before_anything_is_disowned(
    store: ObjectStore,
) -> None:
    older, newer = three_batches(store)
    open_attempt(store, rewinding(store, 2, older), OPERATORS, sinks=SINKS)
    with pytest.raises(OutputWithdrawnError, match="chk-2"):
        open_attempt(store, rewinding(store, 3, newer), OPERATORS, sinks=SINKS)
    assert open_attempt(store, rewinding(store, 4, older), OPERATORS, sinks=SINKS).manifest == older
    assert open_attempt(store, rewinding(store, 5, newer), OPERATORS, sinks=[]).manifest == newer, "it has no output"


def test_a_rewind_to_nothing_leaves_the_output_until_its_first_batch(store: ObjectStore) -> None:
    older, newer = three_batches(store)
    open_attempt(store, rewinding(store, 2, None), OPERATORS, sinks=SINKS)
    again = open_attempt(store, rewinding(store, 3, None), OPERATORS, sinks=SINKS)
    again.journal.append(BatchPlanned(Attempt(3), BatchId(0), plan(0)))
    back = open_attempt(store, rewinding(store, 4, newer), OPERATORS, sinks=SINKS)
    assert back.manifest == newer
    first = open_attempt(store, rewinding(store, 5, None), OPERATORS, sinks=SINKS)
    first.journal.append(BatchPlanned(Attempt(5), BatchId(0), {"metadata": "m", **plan(0)}))
    first.journal.append(commit(5, 0))
    for snapshot in (older, newer):
        with pytest.raises(OutputWithdrawnError):
            open_attempt(store, rewinding(store, 6, snapshot), OPERATORS, sinks=SINKS)


def test_another_jobs_snapshot_needs_no_output_of_the_job(store: ObjectStore) -> None:
    _, newer = three_batches(store)
    given = savepoint_of(store, "earlier")
    for attempt in (2, 3):
        assert open_attempt(store, rewinding(store, attempt, given), OPERATORS, sinks=SINKS).manifest == given
    with pytest.raises(OutputWithdrawnError):
        open_attempt(store, rewinding(store, 4, newer), OPERATORS, sinks=SINKS)


def test_of_two_attempts_with_one_restore_the_later_to_open_does_not_carry_it_out_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, _ = three_batches(store)
    looked = CommitLog.newest_rewind

    def opened_by_the_other_meanwhile(log: CommitLog) -> AttemptOpened | None:
        found = looked(log)
        monkeypatch.undo()
        other = open_attempt(store, rewinding(store, 2, older, restore_id="back"), OPERATORS)
        other.journal.append(BatchPlanned(Attempt(2), BatchId(1), plan(1)))
        other.journal.append(commit(2, 1))
        return found

    monkeypatch.setattr(CommitLog, "newest_rewind", opened_by_the_other_meanwhile)
    with pytest.raises(FencedError):
        open_attempt(store, rewinding(store, 3, older, restore_id="back"), OPERATORS)
    assert open_attempt(store, rewinding(store, 4, older, restore_id="back"), OPERATORS).resume.batch_id == 1


def test_another_jobs_snapshot_is_found_again_without_a_hint(store: ObjectStore) -> None:
    three_batches(store)
    given = savepoint_of(store, "earlier")
    opened = open_attempt(store, rewinding(store, 2, given), OPERATORS)
    assert (opened.manifest, opened.resume.batch_id, opened.resume.sinks) == (given, 0, {})
    for attempt in (3, 4):
        assert open_attempt(store, assignment(store, attempt), OPERATORS).manifest == given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_parallelism": 16}, "max parallelism 8"),
        ({"hash_id": "java"}, "hashed by"),
        ({"restore_from": "s3://else/where/job/chk-1/manifest.json"}, "another object store"),
        ({"restore_from": None}, "is missing"),
    ],
)
def test_a_snapshot_that_cannot_be_gone_back_to_is_refused_before_anything_is_disowned(
    store: ObjectStore, changes: dict[str, object], message: str
) -> None:
    older, newer = three_batches(store)
    assigned = rewinding(store, 2, older, **changes)
    with pytest.raises(RestoreRefusedError, match=message):
        open_attempt(store, assigned, OPERATORS)
    continued = open_attempt(store, assignment(store, 3), OPERATORS)
    assert (continued.manifest, continued.resume.batch_id) == (newer, 2)


@pytest.mark.parametrize("damaged", ["manifest", "positions", "a file"])
def test_a_damaged_snapshot_is_refused_before_anything_is_disowned(store: ObjectStore, damaged: str) -> None:
    older, newer = three_batches(store)
    assert older.positions is not None
    path = older.path if damaged == "manifest" else older.positions.path
    if damaged == "a file":
        store.delete([path])
    else:
        content = store.get(path)
        store.put(path, content[:-7] + bytes([content[-7] ^ 1]) + content[-6:])
    with pytest.raises(RestoreRefusedError, match=older.path):
        open_attempt(store, rewinding(store, 2, older), OPERATORS)
    assert open_attempt(store, assignment(store, 2), OPERATORS).manifest == newer


def test_a_snapshot_that_another_job_has_claimed_is_refused_before_anything_is_disowned(store: ObjectStore) -> None:
    three_batches(store)
    given = savepoint_of(store, "earlier")
    take_claim(store, given, JobId("third"))
    with pytest.raises(ClaimRefusedError, match="third"):
        open_attempt(store, rewinding(store, 2, given), OPERATORS)
    assert open_attempt(store, assignment(store, 2), OPERATORS).resume.batch_id == 2


def test_state_that_the_program_no_longer_has_is_dropped_only_if_that_is_allowed(store: ObjectStore) -> None:
    resume = resume_point(operators={OperatorUid("gone"): history(BY_NAME), UID: history(BY_NAME)})
    with pytest.raises(RestoreRefusedError, match="'gone'"):
        check_fit(assignment(store, 1), resume, OPERATORS)
    assert check_fit(assignment(store, 1, allow_non_restored_state=True), resume, OPERATORS) == ("gone",)
    keyed_otherwise = resume_point(operators={UID: history(BY_NUMBER)})
    with pytest.raises(RestoreRefusedError, match="is now keyed by"):
        check_fit(assignment(store, 1, allow_non_restored_state=True), keyed_otherwise, OPERATORS)


def test_dropped_state_does_not_come_back_when_its_operator_does(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    first.journal.append(BatchPlanned(Attempt(1), BatchId(0), plan(0)))
    changed = changelog(0)
    first.journal.append(msgspec.structs.replace(commit(1, 0), operators={UID: [changed, None]}))
    other = {OperatorUid("other"): BY_NAME}
    with pytest.raises(RestoreRefusedError, match="'counts'"):
        open_attempt(store, assignment(store, 2), other)
    allowed = open_attempt(store, assignment(store, 2, allow_non_restored_state=True), other)
    assert UID not in allowed.resume.operators
    again = open_attempt(store, assignment(store, 3), {**other, **OPERATORS})
    assert not again.resume.operators[UID].has_state


def test_positions_of_a_source_that_is_gone_are_dropped_only_if_that_is_allowed_and_for_good(
    store: ObjectStore,
) -> None:
    two = [SourceInputs(OperatorUid("a")), SourceInputs(OperatorUid("b"))]
    one = [SourceInputs(OperatorUid("b"))]
    first = open_attempt(store, assignment(store, 1), OPERATORS, two)
    ends = {"offsets/0": 'v1\n{"batchWatermarkMs":0}\nend of a\nend of b', ORDER_NAME: '["a","b"]'}
    first.journal.append(BatchPlanned(Attempt(1), BatchId(0), {**ends, "sources/0/0": "of a", "sources/1/0": "of b"}))
    first.journal.append(commit(1, 0))
    with pytest.raises(RestoreRefusedError, match="'a'"):
        open_attempt(store, assignment(store, 2), OPERATORS, one)
    allowed = open_attempt(store, assignment(store, 2, allow_non_restored_state=True), OPERATORS, one)
    for opened in (allowed, open_attempt(store, assignment(store, 3), OPERATORS, one)):
        assert opened.positions["offsets/0"].splitlines()[2:] == ["end of b"]
        assert {name: end for name, end in opened.positions.items() if name.startswith("sources")} == {
            "sources/0/0": "of b"
        }
    again = open_attempt(store, assignment(store, 4), OPERATORS, [*one, SourceInputs(OperatorUid("a"))])
    assert recorded_order(again.positions) == ("b",), "the source that came back begins from its start"


def test_restarts_before_the_next_checkpoint_keep_dropped_sources_out_of_the_positions_of_the_last_one(
    store: ObjectStore,
) -> None:
    two = [SourceInputs(OperatorUid("a")), SourceInputs(OperatorUid("b"))]
    one = [SourceInputs(OperatorUid("b"))]
    first = open_attempt(store, assignment(store, 1), OPERATORS, two)
    ends = {
        "metadata": "m",
        "offsets/0": 'v1\n{"batchWatermarkMs":0}\nend of a\nend of b',
        "sources/0/0": "of a",
        "sources/1/0": "of b",
        ORDER_NAME: '["a","b"]',
    }
    checkpointed(store, first, 1, 0, ends)
    second = assignment(store, 2, allow_non_restored_state=True)
    opened = open_attempt(store, second, OPERATORS, one)
    later = {"offsets/1": 'v1\n{"batchWatermarkMs":0}\nnew end of b', "sources/0/1": "more of b"}
    expected = {"metadata": "m", "sources/0/0": "of b", "commits/0": opened.positions["commits/0"]}
    for positions in (opened.positions, reopen_attempt(store, second, opened).positions):
        assert positions == {
            **expected,
            "offsets/0": 'v1\n{"batchWatermarkMs":0}\nend of b',
            ORDER_NAME: '["b"]',
        }
    opened.journal.append(BatchPlanned(Attempt(2), BatchId(1), later))
    opened.journal.append(commit(2, 1))
    third = open_attempt(store, assignment(store, 3), OPERATORS, one)
    assert third.positions["offsets/1"] == later["offsets/1"]
    assert {name: of for name, of in third.positions.items() if name.startswith("sources")} == {
        "sources/0/0": "of b",
        "sources/0/1": "more of b",
    }
    assert recorded_order(third.positions) == ("b",)


def test_a_source_of_another_kind_under_its_old_uid_is_refused(store: ObjectStore) -> None:
    files, topic = (SourceInputs(OperatorUid("a"), 1, (kind,)) for kind in ("FileSource", "kafka"))
    first = open_attempt(store, assignment(store, 1), OPERATORS, [files])
    recorded = {**plan(0), ORDER_NAME: '["a"]', KINDS_NAME: '{"a":["FileSource"]}'}
    first.journal.append(BatchPlanned(Attempt(1), BatchId(0), recorded))
    first.journal.append(commit(1, 0))
    with pytest.raises(RestoreRefusedError, match="source 'a' was of kind FileSource and is now kafka"):
        open_attempt(store, assignment(store, 2, allow_non_restored_state=True), OPERATORS, [topic])
    open_attempt(store, assignment(store, 2), OPERATORS, [files])


@pytest.mark.parametrize("mode", ["rewind", "continue"])
def test_another_jobs_checkpoint_is_copied_before_the_attempt_opens(store: ObjectStore, mode: str) -> None:
    _, newer = three_batches(store)
    location = location_of(store.url, newer.path)
    assigned = assignment(store, 1, job_id="fork", restore_mode=mode, restore_from=location, restore_id="fork")
    opened = open_attempt(store, assigned, OPERATORS)
    assert opened.manifest is not None
    assert (opened.manifest.job_id, opened.manifest.forked_from, opened.claims) == ("fork", "job", True)
    assert opened.resume.batch_id == newer.batch_id
    store.delete([info.path for info in store.list("job/")])
    opened.journal.append(BatchPlanned(Attempt(1), BatchId(2), plan(2)))
    opened.journal.append(commit(1, 2))
    for attempt, changes in ((2, {}), (3, {"restore_mode": "continue", "restore_from": None})):
        again = open_attempt(store, assigned.model_copy(update={"attempt": attempt, **changes}), OPERATORS)
        if mode == "rewind" or attempt == 3:
            assert (again.manifest, again.resume.batch_id) == (opened.manifest, 2)


def test_another_jobs_checkpoint_cannot_be_claimed(store: ObjectStore) -> None:
    _, newer = three_batches(store)
    assigned = rewinding(store, 1, newer, job_id="fork", claim_mode="claim")
    with pytest.raises(ClaimRefusedError, match="only a savepoint can be claimed"):
        open_attempt(store, assigned, OPERATORS)
    assert not list(store.list("fork/"))


def test_the_attempt_of_a_live_rescale_continues_with_all_that_the_last_batch_has_left(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    ranges = KeyGroupRanges(8, (0, 1, 5))
    rewinds = (Rewind(Attempt(1), BatchId(2)),)
    time = JobTime({UID: EventTime(7, 5)}, processing_ms=9)
    counters = JobCounters(input_records=3, output_records=2)
    committed = CommittedState(
        BatchId(4), {}, {"offsets/4": "o"}, {"files": "token"}, 9, time, counters=counters, rewinds=rewinds
    )
    given = assignment(store, 2, parallelism=3, hash_id="java")
    manifest = savepoint_of(store, "job")
    opened = open_next_attempt(first, given, {}, committed, manifest, ranges=ranges)
    assert opened.journal is first.journal
    assert (opened.attempt, opened.manifest, opened.positions) == (2, manifest, {"offsets/4": "o"})
    assert (opened.ranges, opened.opened_at_ms, opened.claims) == (ranges, first.opened_at_ms, first.claims)
    assert opened.resume == resume_point(
        batch_id=BatchId(4),
        next_position=opened.journal.last_position + 1,
        attempt=Attempt(2),
        sinks={"files": "token"},
        max_parallelism=8,
        hash_id=HashId.JAVA,
        time=time,
        counters=counters,
        rewinds=rewinds,
        key_group_ranges=ranges,
    )
    last = CommitLog(store, Layout(JobId("job"))).last()
    assert last is not None
    position, entry = last
    assert isinstance(entry, AttemptOpened)
    assert position == opened.journal.last_position == 2
    assert (entry.attempt, entry.parallelism, entry.max_parallelism, entry.hash_id) == (2, 3, 8, HashId.JAVA)
    assert (entry.restored_from, entry.operators, entry.counters) == (manifest.path, {}, counters)
    assert (entry.key_group_starts, entry.rewinds) == ((0, 1, 5), False)


def test_a_restart_keeps_the_ranges_of_the_attempt_before_and_a_restore_divides_anew(store: ObjectStore) -> None:
    older, _ = three_batches(store)
    halves = tuple(
        SnapshotHandle(SubtaskIndex(index), start, end, BatchId(0), f"lineage {index}", ())
        for index, (start, end) in enumerate(((0, 1), (2, 7)))
    )
    snapshot = OperatorSnapshot(uid=UID, parallelism=2, declaration=BY_NAME, subtasks=halves)
    skewed = msgspec.structs.replace(older, kind=SnapshotKind.SAVEPOINT, savepoint_id="skewed", operators=(snapshot,))
    write_manifest(store, skewed)
    restored = open_attempt(store, rewinding(store, 2, skewed), OPERATORS)
    assert restored.ranges == KeyGroupRanges.of_count(8, 2)
    other = open_next_attempt(
        restored,
        assignment(store, 3),
        OPERATORS,
        CommittedState.resumed(restored.resume, {}, {}, restored.journal.last_position),
        skewed,
        ranges=KeyGroupRanges(8, (0, 3)),
    )
    assert open_attempt(store, assignment(store, 4), OPERATORS).ranges == other.ranges
    assert open_attempt(store, assignment(store, 5, parallelism=3), OPERATORS).ranges == KeyGroupRanges.of_count(8, 3)


def test_time_begins_again_once_in_the_first_attempt_after_the_named_one(store: ObjectStore) -> None:
    resets = []
    for attempt, after in ((1, None), (2, 1), (3, 1), (4, None), (5, 9), (6, 5), (7, 5)):
        open_attempt(store, assignment(store, attempt, time_reset_after=after), OPERATORS)
        last = CommitLog(store, Layout(JobId("job"))).last()
        assert last is not None
        assert isinstance(last[1], AttemptOpened)
        resets.append(last[1].resets_time)
    assert resets == [False, True, False, False, True, True, False]


@pytest.mark.parametrize("is_other", [False, True])
def test_a_claim_is_of_the_snapshot_that_the_attempt_begins_with(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, *, is_other: bool
) -> None:
    given, other = savepoint_of(store, "earlier"), savepoint_of(store, "other")
    plans: list[frozenset[str]] = []

    def planned_again(*facts: Any) -> ResumePlan:
        plans.append(facts[2])
        found = newest_plan(*facts)
        return replace(found, manifest=other) if is_other else found

    monkeypatch.setattr(attempt_module, "newest_plan", planned_again)
    location = location_of(store.url, given.path)
    opened = open_attempt(store, assignment(store, 1, restore_from=location, claim_mode="claim"), OPERATORS)
    assert (opened.claims, opened.manifest) == (not is_other, other if is_other else given)
    assert plans == [frozenset()]
    again = reopen_attempt(
        store, assignment(store, 1, restore_from=location), replace(opened, claims=True, manifest=given)
    )
    assert again.claims is not is_other
    assert not fall_back(store, assignment(store, 1), replace(opened, claims=True, manifest=None)).claims


def test_all_checkpoints_with_damaged_positions_are_skipped(store: ObjectStore) -> None:
    first = open_attempt(store, assignment(store, 1), OPERATORS)
    intact, *damaged = (checkpointed(store, first, number + 1, number) for number in range(3))
    for each in damaged:
        assert each.positions is not None
        store.put(each.positions.path, b"?" * each.positions.size_bytes)
    opened = open_attempt(store, assignment(store, 2), OPERATORS)
    assert opened.manifest == intact
    assert opened.unusable == {each.path for each in damaged}
    assert opened.resume.batch_id == 2, "the log has the batches since"
    with pytest.raises(RestoreRefusedError, match="the source positions of job/chk-2"):
        open_attempt(store, rewinding(store, 3, damaged[0]), OPERATORS)


def test_spark_continues_after_its_own_last_batch_beside_batches_of_time() -> None:
    time = JobTime(time_batches=2)
    files = {f"offsets/{number}": offsets(number) for number in (2, 3, 4)}
    committed = resume_point(batch_id=BatchId(5), time=time)
    planned = replace(committed, planned=BatchPlanned(Attempt(1), BatchId(6), {}))
    for resume in (committed, planned):
        assert [name for name in resume_positions(files, resume) if name.startswith("commits/")] == ["commits/3"]
    fresh = resume_point(batch_id=BatchId(1), time=time, positions={"metadata": "m"})
    assert resume_positions({}, fresh) == {"metadata": "m"}, "Spark has committed no batch"
