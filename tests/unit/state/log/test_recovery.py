"""The base of a restore is the newest checkpoint or savepoint that the job's history continues from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, LogEntry
from keyscale.state.documents.manifest import FileHandle, Manifest, SnapshotKind, write_manifest
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog, LogGapError
from keyscale.state.log.recovery import HistoryStart, NothingUsableError, choose_base, missing_files, recover
from keyscale.state.objects.local_store import LocalObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from keyscale.state.objects.object_store import ObjectInfo

JOB, OTHER = JobId("job"), JobId("other")
LAYOUT = Layout(JOB)


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path)


def manifest(
    store: LocalObjectStore,
    number: int,
    *,
    log_position: int = 0,
    savepoint_id: str | None = None,
    job_id: JobId = JOB,
    created_at_ms: int = 0,
) -> Manifest:
    """Publishes a checkpoint or savepoint that needs one file."""
    path = Layout(job_id).manifest(CheckpointId(number), savepoint_id) + ".positions"
    store.put(path, b"four")
    published = Manifest(
        job_id=job_id,
        checkpoint_id=CheckpointId(number),
        kind=SnapshotKind.CHECKPOINT if savepoint_id is None else SnapshotKind.SAVEPOINT,
        attempt=Attempt(1),
        batch_id=BatchId(log_position - 2),
        log_position=log_position,
        max_parallelism=128,
        hash_id=HashId.SPARK,
        created_at_ms=created_at_ms,
        operators=(),
        positions=FileHandle("positions", path, 4, ""),
        savepoint_id=savepoint_id,
    )
    write_manifest(store, published)
    return published


def file_of(published: Manifest) -> str:
    assert published.positions is not None
    return published.positions.path


def opened(attempt: int, base: Manifest | None = None, *, rewinds: bool = False) -> AttemptOpened:
    return AttemptOpened(Attempt(attempt), 1, 128, HashId.SPARK, base.path if base else None, 0, {}, rewinds)


def committed(attempt: int, batch_id: int) -> BatchCommitted:
    return BatchCommitted(Attempt(attempt), BatchId(batch_id), {}, {}, 0)


def write(store: LocalObjectStore, *entries: LogEntry) -> None:
    log = CommitLog(store, LAYOUT)
    for position, entry in enumerate(entries, 1):
        log.append(position, entry)


def set_times(store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch, times_ms: Mapping[str, int]) -> None:
    """Gives the listed objects the times at which they were published."""
    listed = store.list

    def timed(prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = listed(prefix, start_after=start_after)
        return (replace(info, modified_ms=times_ms.get(info.path, 0)) for info in found)

    monkeypatch.setattr(store, "list", timed)


def test_the_point_to_resume_from_is_after_the_bases_own(store: LocalObjectStore) -> None:
    write(store, opened(1), committed(1, 0), committed(1, 1), committed(1, 2))
    base = manifest(store, 1, log_position=3)
    store.delete([LAYOUT.log_entry(1), LAYOUT.log_entry(2)])
    found = recover(store, JOB, None)
    assert found.base.manifest == base
    assert (found.resume.batch_id, found.resume.next_position, found.resume.attempt) == (2, 5, 1)


def test_a_base_that_a_rewind_disowned_is_passed_over_for_the_one_it_went_back_to(store: LocalObjectStore) -> None:
    old, disowned = manifest(store, 1, log_position=2), manifest(store, 2, log_position=3)
    write(store, opened(1), committed(1, 0), committed(1, 1), opened(2, old, rewinds=True))
    found = recover(store, JOB, disowned.path)
    assert found.base.manifest == old
    assert [(skip.path, skip.reason) for skip in found.base.skipped] == [
        (disowned.path, "the job cannot continue from it")
    ]


def test_what_a_rewind_went_back_to_is_found_without_a_hint_even_if_it_is_another_jobs(store: LocalObjectStore) -> None:
    disowned, given = manifest(store, 1, log_position=2), manifest(store, 7, log_position=9, job_id=OTHER)
    write(store, opened(1), committed(1, 0), committed(1, 1), opened(2, given, rewinds=True))
    for hint in (None, disowned.path):
        found = recover(store, JOB, hint)
        assert (found.base.manifest, found.resume.attempt) == (given, 2)
        assert disowned.path in {skip.path for skip in found.base.skipped}
    own = manifest(store, 8, log_position=4)
    assert recover(store, JOB, None).base.manifest == own
    store.delete([file_of(own), file_of(given)])
    with pytest.raises(NothingUsableError, match=given.path):
        recover(store, JOB, None)


def test_a_rewind_to_nothing_has_no_base_whatever_was_there_before(store: LocalObjectStore) -> None:
    disowned = manifest(store, 1, log_position=2)
    write(store, opened(1), committed(1, 0), committed(1, 1), opened(2, rewinds=True), committed(2, 0))
    found = recover(store, JOB, disowned.path)
    assert (found.base.manifest, found.resume.batch_id) == (None, 0)


def test_the_savepoint_that_a_job_began_with_is_found_without_a_hint(store: LocalObjectStore) -> None:
    given = manifest(store, 7, log_position=9, job_id=OTHER)
    write(store, opened(1, given))
    assert recover(store, JOB, None).base.manifest == given


def test_of_the_manifests_since_a_rewind_only_the_files_of_those_that_count_are_looked_for(
    store: LocalObjectStore,
) -> None:
    old, disowned = manifest(store, 1, log_position=2), manifest(store, 2, log_position=3)
    base = choose_base(store, JOB, None, start=HistoryStart(4, old.path))
    assert base.manifest == old
    assert [(skip.path, skip.reason) for skip in base.skipped] == [(disowned.path, "the job was rewound since")]


def test_a_base_whose_log_is_gone_is_passed_over_and_without_another_the_reason_is_the_gap(
    store: LocalObjectStore,
) -> None:
    write(store, opened(1), committed(1, 0), committed(1, 1), committed(1, 2))
    old, new = manifest(store, 1, log_position=1), manifest(store, 2, log_position=3)
    store.delete([LAYOUT.log_entry(2)])
    store.delete([file_of(new)])
    with pytest.raises(NothingUsableError) as refused:
        recover(store, JOB, None)
    assert old.path in str(refused.value)
    assert new.path in str(refused.value)
    store.delete([old.path, new.path])
    with pytest.raises(LogGapError):
        recover(store, JOB, None)


def test_what_was_excluded_is_not_chosen_and_not_logged(
    store: LocalObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    write(store, opened(1), committed(1, 0), committed(1, 1))
    old, new = manifest(store, 1, log_position=2), manifest(store, 2, log_position=3)
    assert recover(store, JOB, None).base.manifest == new
    assert recover(store, JOB, None, excluded=[new.path]).base.manifest == old
    assert caplog.messages == []


def test_each_skipped_base_has_its_reason(store: LocalObjectStore) -> None:
    good, cut, gone, damaged = (manifest(store, number, log_position=number) for number in (1, 2, 3, 4))
    store.put(file_of(cut), b"fou")
    store.delete([file_of(gone)])
    store.put(damaged.path, b"{}")
    base = choose_base(store, JOB, None)
    assert base.manifest == good
    reasons = {skip.path: skip.reason for skip in base.skipped}
    assert reasons.keys() == {cut.path, gone.path, damaged.path}
    for each in (cut, gone):
        assert reasons[each.path] == f"1 file missing or truncated, such as {file_of(each)}"
    assert damaged.path in reasons[damaged.path]
    assert missing_files(store, good) == []


def test_a_hint_that_is_gone_is_skipped_and_named(store: LocalObjectStore) -> None:
    good = manifest(store, 1, log_position=1)
    gone = LAYOUT.manifest(CheckpointId(9))
    base = choose_base(store, JOB, gone)
    assert base.manifest == good
    assert [skip.path for skip in base.skipped] == [gone]
    assert gone in base.skipped[0].reason
    store.delete([good.path])
    with pytest.raises(NothingUsableError):
        choose_base(store, JOB, gone)


def test_the_newest_is_that_of_the_longest_log_then_of_the_highest_number(store: LocalObjectStore) -> None:
    other = manifest(store, 99, log_position=99, job_id=OTHER)
    assert choose_base(store, JOB, other.path).manifest == other
    own = manifest(store, 1, log_position=1)
    assert choose_base(store, JOB, other.path).manifest == own, "another job's log is no part of this one's"
    later = manifest(store, 2, log_position=1)
    assert choose_base(store, JOB, own.path).manifest == later
    savepoint = manifest(store, 1, log_position=2, savepoint_id="mine")
    assert choose_base(store, JOB, None).manifest == savepoint


def test_of_savepoints_with_the_same_state_the_hinted_one_is_chosen_else_the_first(store: LocalObjectStore) -> None:
    first = manifest(store, 1, savepoint_id="b", created_at_ms=1000)
    migrated = manifest(store, 1, savepoint_id="a", created_at_ms=2000)
    assert choose_base(store, JOB, None).manifest == first
    assert choose_base(store, JOB, migrated.path).manifest == migrated


@pytest.mark.parametrize(("earlier_ms", "is_read"), [(2000, True), (60_000, False)])
def test_a_savepoint_counts_although_the_store_gives_it_the_second_before_the_checkpoint(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch, earlier_ms: int, is_read: bool
) -> None:
    checkpoint = manifest(store, 1, log_position=4)
    later = manifest(store, 2, log_position=6, savepoint_id="later")
    set_times(store, monkeypatch, {checkpoint.path: 1_000_000, later.path: 1_000_000 - earlier_ms})
    assert choose_base(store, JOB, None).manifest == (later if is_read else checkpoint)


def test_a_savepoint_before_the_first_batch_of_a_rewind_counts_although_a_late_driver_publishes_after_it(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, disowned = manifest(store, 7, job_id=OTHER), manifest(store, 1, log_position=3)
    write(store, opened(1), committed(1, 0), committed(1, 1), opened(2, given, rewinds=True))
    first = manifest(store, 2, log_position=4, savepoint_id="first")
    store.delete([file_of(given)])
    set_times(store, monkeypatch, {first.path: 1_000_000, disowned.path: 1_060_000})
    assert recover(store, JOB, None).base.manifest == first


def test_only_manifests_count_among_the_files_of_checkpoints(store: LocalObjectStore) -> None:
    store.put(LAYOUT.checkpoints + "/1/notes", b"")
    store.put(LAYOUT.checkpoints + "/1/manifest.json.part", b"")
    assert choose_base(store, JOB, None).manifest is None


def test_a_file_that_two_operators_need_is_looked_for_once(store: LocalObjectStore) -> None:
    base = manifest(store, 1)
    assert base.positions is not None
    asked: list[str] = []
    head = store.head
    store.head = lambda path: (asked.append(path), head(path))[1]  # type: ignore[method-assign]
    changed = msgspec.structs.replace(base.positions, size_bytes=5)
    assert missing_files(store, msgspec.structs.replace(base, positions=changed)) == [file_of(base)]
    assert asked == [file_of(base)]
