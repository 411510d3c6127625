"""A job's state at a point: which shards it has, what a read fetches, and whose objects it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.changelog import ChangelogFormat, ChangelogHandle, SortedFile
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from keyscale.state.documents.manifest import (
    FileHandle,
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    ShardHandle,
    SnapshotHandle,
    SnapshotKind,
    write_manifest,
)
from keyscale.state.documents.source_positions import KINDS_NAME, ORDER_NAME, SourcePositions, write_positions
from keyscale.state.inspection.recorded_batch import RecordedBatch
from keyscale.state.inspection.state_point import (
    BatchNotStoredError,
    ForeignStateError,
    StatePoint,
    UnknownStateError,
)
from keyscale.state.inspection.stored_state import read_stored_state
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_groups import KeyGroupRange
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.log.resolution import OperatorHistory, ResumePoint
from keyscale.state.objects.errors import ObjectTooLargeError
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.operator_state.backend import Distribution, OperatorStateSnapshot, StoredOperatorState
from keyscale.state.operator_state.operator_files import store_operator_state

if TYPE_CHECKING:
    from pathlib import Path

JOB, UID, OTHER = JobId("job"), OperatorUid("count"), OperatorUid("other")
LAYOUT = Layout(JOB)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


def file(path: str, size_bytes: int) -> FileHandle:
    return FileHandle(path.rpartition("/")[2], path, size_bytes, "sha", shared=True)


def snapshot(subtask: int, *shards: ShardHandle, operator_state: Any = msgspec.UNSET) -> SnapshotHandle:
    start, end = shards[0].key_group_start, shards[-1].key_group_end
    return SnapshotHandle(
        SubtaskIndex(subtask), start, end, BatchId(0), f"lineage {subtask}", shards, operator_state=operator_state
    )


def changelog(batch_id: int, first: int, last: int, *files: SortedFile, **changes: Any) -> ChangelogHandle:
    handle = ChangelogHandle(
        f"job/changelog/count/{batch_id}-{first}",
        100,
        "sha",
        ChangelogFormat.FRAMES,
        BatchId(batch_id),
        SubtaskIndex(0),
        first,
        last,
        mutations=1,
        sorted_files=files,
    )
    return msgspec.structs.replace(handle, **changes)


def point(store: LocalObjectStore, **histories: OperatorHistory) -> StatePoint:
    operators = {OperatorUid(uid): history for uid, history in histories.items()}
    return StatePoint(store, None, ResumePoint(BatchId(4), None, {}, operators, 9, Attempt(1), {}, 8, HashId.SPARK))


def test_a_read_fetches_the_files_and_changelogs_of_its_key_groups_each_once(store: LocalObjectStore) -> None:
    shared = file("job/shared/both", 7)
    history = OperatorHistory(
        snapshots=(
            snapshot(1, ShardHandle(4, 7, (shared, file("job/shared/b", 20)))),
            snapshot(0, ShardHandle(0, 1, (file("job/shared/a", 10),)), ShardHandle(2, 3, (shared,))),
        ),
        changelogs=(
            changelog(1, 0, 7, SortedFile("count", "job/changelog/count/1.0.sst", 1_000, "sha", 1)),
            changelog(2, 4, 7),
        ),
    )
    at = point(store, count=history, empty=OperatorHistory())
    assert at.shard_ranges("count") == (KeyGroupRange(0, 1), KeyGroupRange(2, 3), KeyGroupRange(4, 7))
    assert at.shard_ranges("empty") == (KeyGroupRange(0, 7),)
    ranges = {(0, 1): 1_110, (1, 2): 1_117, (2, 4): 1_227, (0, 7): 1_237}
    assert {own: at.size_bytes("count", KeyGroupRange(*own)) for own in ranges} == ranges
    assert at.size_bytes("empty", KeyGroupRange(0, 7)) == 0
    with pytest.raises(UnknownStateError, match="'sum' is unknown; the operators are: count, empty"):
        at.operator("sum")


def test_a_job_that_has_never_run_has_no_key_groups(store: LocalObjectStore) -> None:
    at = StatePoint.of_job(store, JOB)
    for wanted in ("max_parallelism", "hash_id"):
        with pytest.raises(BatchNotStoredError, match="has never run"):
            getattr(at, wanted)
    with pytest.raises(UnknownStateError, match="the operators are: none"):
        at.operator("count")


def manifest(**changes: Any) -> Manifest:
    plain = Manifest(
        JOB, CheckpointId(1), SnapshotKind.CHECKPOINT, Attempt(1), BatchId(0), 3, 8, HashId.SPARK, 0, operators=()
    )
    return msgspec.structs.replace(plain, **changes)


def test_state_with_any_object_of_another_job_is_not_read(store: LocalObjectStore) -> None:
    theirs = SortedFile("count", "other/changelog/count/1.0.sst", 1, "sha", 1)
    state = FileHandle("operator-state", "other/changelog/count/1.operator-state", 1, "sha")
    foreign = {
        "snapshot of job 'other'": StatePoint(store, manifest(job_id=JobId("other")), point(store).resume),
        "1 object of another job, such as other/x": StatePoint(
            store, manifest(positions=file("other/x", 1)), point(store).resume
        ),
        "names other/changelog/1,": point(
            store,
            first=OperatorHistory(),
            second=OperatorHistory(changelogs=(changelog(1, 0, 7, path="other/changelog/1"),)),
        ),
        "names other/changelog/count/1.0.sst": point(
            store, count=OperatorHistory(changelogs=(changelog(1, 0, 7, theirs),))
        ),
        "names other/changelog/count/1.operator-state": point(
            store, count=OperatorHistory(changelogs=(changelog(1, 0, 7, operator_state=state),))
        ),
    }
    for words, at in foreign.items():
        with pytest.raises(ForeignStateError, match=words):
            at.check_own(JOB)
    own = StatePoint(
        store,
        manifest(positions=file("job/x", 1)),
        point(store, count=OperatorHistory(changelogs=(changelog(1, 0, 7),))).resume,
    )
    own.check_own(JOB)


# What a job has stored.


def opened(attempt: int, **changes: Any) -> AttemptOpened:
    plain = AttemptOpened(Attempt(attempt), 2, 8, HashId.SPARK, None, 0, {UID: OperatorDeclaration((("id", "int64"),))})
    return msgspec.structs.replace(plain, **changes)


def committed(attempt: int, batch_id: int, **changes: Any) -> BatchCommitted:
    return msgspec.structs.replace(BatchCommitted(Attempt(attempt), BatchId(batch_id), {}, {}, 0), **changes)


def operator_state(store: LocalObjectStore, path: str, **states: int) -> FileHandle:
    kept = {
        name: StoredOperatorState(Distribution.SPLIT, "int64", (b"x" * 1000,) * count) for name, count in states.items()
    }
    stored = store_operator_state(store, path, OperatorStateSnapshot(kept))
    assert stored is not None
    return stored


def test_the_stored_state_of_a_job_is_its_snapshot_followed_by_its_log(store: LocalObjectStore) -> None:
    states = [operator_state(store, f"job/chk-1/{number}", first=number, second=1) for number in (1, 2)]
    halves = [
        snapshot(number, ShardHandle(4 * number, 4 * number + 3, ()), operator_state=states[number])
        for number in (0, 1)
    ]
    others = {KINDS_NAME: '{"files": ["file"], "topics": ["kafka", "kafka"]}'}
    positions = SourcePositions(("topics", "files", "old"), None, (), others=others)
    stored = write_positions(store, LAYOUT, positions, checkpoint_id=CheckpointId(1), savepoint_id=None, unique="u")
    base = manifest(
        operators=(OperatorSnapshot(UID, 2, OperatorDeclaration((("id", "int64"),)), tuple(halves)),),
        positions=stored,
        sinks={"table": "token", "topic": "token"},
    )
    log = CommitLog(store, LAYOUT)
    log.append(log.append(log.append(1, opened(1)), BatchPlanned(Attempt(1), BatchId(0), {})), committed(1, 0))
    write_manifest(store, base)
    found = read_stored_state(store, JOB, None)
    assert (found.manifest, found.resume.batch_id) == (base, 0)
    assert {
        uid: {name: len(each.items) for name, each in known.items()} for uid, known in found.operator_state.items()
    } == {UID: {"first": 2, "second": 1}}
    assert found.sources == {"topics": ("kafka", "kafka"), "files": ("file",), "old": ()}
    assert found.sinks == {"table", "topic"}
    later = {ORDER_NAME: '["topics", "new"]', KINDS_NAME: '{"topics": ["kafka"]}'}
    log.append(log.append(4, BatchPlanned(Attempt(1), BatchId(1), later)), committed(1, 1, sinks={"table": "next"}))
    found = read_stored_state(store, JOB, None)
    assert found.sources == {"topics": ("kafka",), "new": ()}
    assert found.sinks == {"table"}
    limited = LocalObjectStore(store._root, get_bytes_max=states[0].size_bytes + states[1].size_bytes - 1)
    with pytest.raises(ObjectTooLargeError, match="all operator state"):
        read_stored_state(limited, JOB, None)


@pytest.mark.parametrize(
    ("files", "sources"),
    [({}, {}), ({"offsets/0": "v1"}, {"source": ()}), ({ORDER_NAME: '["a"]', "offsets/0": "v1"}, {"a": ()})],
)
def test_a_job_of_an_unnamed_source_has_one_source_once_it_has_read(
    store: LocalObjectStore, files: dict[str, str], sources: dict[str, tuple[str, ...]]
) -> None:
    log = CommitLog(store, LAYOUT)
    log.append(log.append(1, opened(1)), BatchPlanned(Attempt(1), BatchId(0), files))
    assert read_stored_state(store, JOB, None).sources == sources


def test_an_attempt_that_drops_sources_replaces_the_positions_of_the_snapshot(store: LocalObjectStore) -> None:
    stored = write_positions(
        store,
        LAYOUT,
        SourcePositions(("a", "b"), None, ()),
        checkpoint_id=CheckpointId(1),
        savepoint_id=None,
        unique="u",
    )
    log = CommitLog(store, LAYOUT)
    log.append(log.append(log.append(1, opened(1)), BatchPlanned(Attempt(1), BatchId(0), {})), committed(1, 0))
    write_manifest(store, manifest(positions=stored))
    dropped = (OperatorUid("a"),)
    log.append(4, opened(2, dropped_sources=dropped, positions={ORDER_NAME: '["b"]', "offsets/0": "v1"}))
    assert read_stored_state(store, JOB, None).sources == {"b": ()}


# A recorded batch.


def recorded(store: LocalObjectStore) -> list[Manifest]:
    """A job of two attempts with a checkpoint after batches 1 and 3; the log before the first was cleaned up."""
    log = CommitLog(store, LAYOUT)
    entries: list[LogEntry] = [opened(1), committed(1, 0), committed(1, 1)]
    entries += [opened(2, key_group_starts=(0, 6)), committed(2, 2)]
    for position, entry in enumerate([*entries, committed(2, 3), BatchPlanned(Attempt(2), BatchId(4), {"a": "b"})], 1):
        log.append(position, entry)
    checkpoints = [
        manifest(checkpoint_id=CheckpointId(1), batch_id=BatchId(1), log_position=3),
        manifest(checkpoint_id=CheckpointId(2), batch_id=BatchId(3), log_position=6, attempt=Attempt(2)),
    ]
    for each in checkpoints:
        write_manifest(store, each)
    store.delete([LAYOUT.log_entry(position) for position in (1, 2)])
    return checkpoints


def test_a_recorded_batch_has_the_state_before_it_and_its_commit(store: LocalObjectStore) -> None:
    first, second = recorded(store)
    found = {number: RecordedBatch.of_job(store, JOB, number) for number in (2, 3, 4)}
    assert {
        number: (each.before.manifest, each.before.batch_id, each.batch_id, each.attempt, each.is_first)
        for number, each in found.items()
    } == {2: (first, 1, 2, 2, True), 3: (first, 2, 3, 2, False), 4: (second, 3, 4, 2, False)}
    assert [None if each.committed is None else each.committed.batch_id for each in found.values()] == [2, 3, None]
    planned = found[4].before.resume.planned
    assert planned is not None
    assert planned.positions == {"a": "b"}
    assert found[3].before.resume.planned is None
    assert [each.start for each in found[3].ranges] == [0, 6]
    assert RecordedBatch.of_job(store, JOB).batch_id == 4


def test_a_batch_that_is_not_stored_is_refused_with_the_oldest_that_is(store: LocalObjectStore) -> None:
    recorded(store)
    for batch_id, words in {
        -1: "batch -1 does not exist; the batch after the last commit is 4",
        5: "batch 5 does not exist; the batch after the last commit is 4",
        1: "the state before batch 1 was cleaned up; the oldest batch with a stored state is 2",
        0: "the state before batch 0 was cleaned up; the oldest batch with a stored state is 2",
    }.items():
        with pytest.raises(BatchNotStoredError, match=words):
            RecordedBatch.of_job(store, JOB, batch_id)


def test_a_job_that_has_never_run_has_no_batches(store: LocalObjectStore) -> None:
    with pytest.raises(BatchNotStoredError, match="has no batches"):
        RecordedBatch.of_job(store, JOB)
