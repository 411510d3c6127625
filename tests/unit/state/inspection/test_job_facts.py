"""Facts about a job that has ended without a report, from its log and its snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId
from keyscale.state.documents.job_counters import NOTHING_COUNTED, JobCounters
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from keyscale.state.documents.manifest import FileHandle, Manifest, SnapshotKind, write_manifest
from keyscale.state.documents.rewind import Rewind
from keyscale.state.inspection.job_facts import (
    files_problem,
    find_snapshot,
    first_commit_after,
    has_committed,
    keeps_output,
    newest_attempt,
    newest_counters,
)
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from pathlib import Path

JOB = JobId("job")
LAYOUT = Layout(JOB)
COUNTED = JobCounters(input_records=12)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


def opened(attempt: int, **changes: object) -> AttemptOpened:
    plain = AttemptOpened(Attempt(attempt), 1, 8, HashId.SPARK, None, 0, {})
    return msgspec.structs.replace(plain, **changes)


def committed(attempt: int, batch_id: int, **changes: object) -> BatchCommitted:
    plain = BatchCommitted(Attempt(attempt), BatchId(batch_id), {}, {}, 1_000 * attempt + batch_id)
    return msgspec.structs.replace(plain, **changes)


def append(store: LocalObjectStore, *entries: LogEntry) -> None:
    log = CommitLog(store, LAYOUT)
    for position, entry in enumerate(entries, 1):
        log.append(position, entry)


def snapshot(batch_id: int = 0, log_position: int = 0, **changes: object) -> Manifest:
    plain = Manifest(
        JOB,
        CheckpointId(4),
        SnapshotKind.CHECKPOINT,
        Attempt(1),
        BatchId(batch_id),
        log_position,
        8,
        HashId.SPARK,
        created_at_ms=0,
        operators=(),
    )
    return msgspec.structs.replace(plain, **changes)


HISTORY = (
    opened(1),
    BatchPlanned(Attempt(1), BatchId(0), {}),
    committed(1, 0),
    committed(1, 1),
    opened(2),
    committed(2, 2, counters=COUNTED),
    committed(2, 3, counters=COUNTED.plus(COUNTED)),
)


def test_the_newest_attempt_and_counters_are_in_the_newest_entries(store: LocalObjectStore) -> None:
    assert (newest_attempt(store, JOB), newest_counters(store, JOB)) == (0, NOTHING_COUNTED)
    append(store, *HISTORY)
    assert (newest_attempt(store, JOB), newest_counters(store, JOB)) == (2, COUNTED.plus(COUNTED))
    store.put(LAYOUT.log_entry(7), b"damaged")
    assert (newest_attempt(store, JOB), newest_counters(store, JOB)) == (0, COUNTED)


@pytest.mark.parametrize("savepoint_id", [None, "s"])
def test_a_snapshot_that_is_published_and_readable_is_found(store: LocalObjectStore, savepoint_id: str | None) -> None:
    assert find_snapshot(store, JOB, CheckpointId(4), savepoint_id) is None
    manifest = snapshot(savepoint_id=savepoint_id)
    write_manifest(store, manifest)
    assert find_snapshot(store, JOB, CheckpointId(4), savepoint_id) == manifest
    assert find_snapshot(store, JOB, CheckpointId(5), "other") is None
    written = store.get(manifest.path)
    for unreadable in (written[:-9], written.replace(b'"format_version":1', b'"format_version":2')):
        store.put(manifest.path, unreadable)
        assert find_snapshot(store, JOB, CheckpointId(4), savepoint_id) is None


def test_an_attempt_has_committed_the_batch_at_the_position_of_a_snapshot(store: LocalObjectStore) -> None:
    append(store, *HISTORY)
    cases = {(0, 1): True, (4, 1): True, (4, 2): False, (6, 2): True, (6, 1): False, (8, 2): False}
    assert {
        (position, attempt): has_committed(store, snapshot(log_position=position), Attempt(attempt))
        for position, attempt in cases
    } == cases
    store.put(LAYOUT.log_entry(6), b"damaged")
    assert not has_committed(store, snapshot(log_position=6), Attempt(2))


def test_later_attempts_first_commit_after_a_snapshot_counts(store: LocalObjectStore) -> None:
    def first_commit(path: str, newer_than: int) -> int | None:
        return first_commit_after(store, JOB, path, Attempt(newer_than))

    early, late = snapshot(0, 3), snapshot(2, 6, checkpoint_id=CheckpointId(6))
    append(store, *HISTORY)
    for manifest in (early, late):
        write_manifest(store, manifest)
    found = {
        (name, attempt): first_commit(manifest.path, attempt)
        for name, manifest in (("early", early), ("late", late))
        for attempt in (0, 1, 2)
    }
    assert found == {
        ("early", 0): 1_001,
        ("early", 1): 2_002,
        ("early", 2): None,
        ("late", 0): 2_003,
        ("late", 1): 2_003,
        ("late", 2): None,
    }
    assert first_commit(LAYOUT.manifest(CheckpointId(9)), 0) is None
    store.delete([LAYOUT.log_entry(5)])
    assert first_commit(early.path, 1) is None
    assert first_commit(late.path, 1) == 2_003


def test_sinks_keep_the_output_of_snapshots_before_the_batch_that_a_job_went_back_to(store: LocalObjectStore) -> None:
    rewound = opened(2, rewinds=True, restored_from="s", output_history=(Rewind(Attempt(2), BatchId(1)),))
    append(store, opened(1), committed(1, 0), committed(1, 1), committed(1, 2), rewound, committed(2, 2))
    assert [keeps_output(store, snapshot(batch_id)) for batch_id in (0, 1, 2)] == [True, True, False]
    store.put(LAYOUT.log_entry(5), b"damaged")
    assert keeps_output(store, snapshot(2)), "the driver says what is wrong with the log"


def test_files_of_another_job_are_a_problem_before_missing_files(store: LocalObjectStore) -> None:
    store.put("job/chk-4/here", b"12345")
    for path, size_bytes, problem in (
        ("job/chk-4/here", 5, None),
        ("job/chk-4/here", 4, "it has 1 file missing, such as job/chk-4/here"),
        ("job/chk-4/gone", 5, "it has 1 file missing, such as job/chk-4/gone"),
        ("other/chk-4/gone", 5, "it has 1 file of another job: other/chk-4/gone"),
    ):
        manifest = snapshot(positions=FileHandle("positions.json", path, size_bytes, "sha"))
        assert files_problem(store, manifest) == problem
