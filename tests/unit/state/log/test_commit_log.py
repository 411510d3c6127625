"""The commit log: two attempts and a faulty store still give one history."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId
from keyscale.state.documents.checked_document import DocumentCorruptError
from keyscale.state.documents.job_counters import NOTHING_COUNTED, JobCounters
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from keyscale.state.documents.manifest import Manifest, SnapshotKind
from keyscale.state.keys.hashing import HashId
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog, FencedError, LogGapError
from keyscale.state.log.resolution import BaseDisownedError, HistoryError, log_start, resolve
from keyscale.state.objects.errors import ObjectExistsError, StoreUnavailableError
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.state.faulty_store import Fault, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.state.objects.object_store import ObjectStore

JOB = JobId("job")
LAYOUT = Layout(JOB)


def opened(attempt: int, *, restored_from: str | None = None, rewinds: bool = False) -> AttemptOpened:
    return AttemptOpened(Attempt(attempt), 2, 128, HashId.SPARK, restored_from, 0, {}, rewinds)


def planned(attempt: int, batch_id: int, **positions: str) -> BatchPlanned:
    return BatchPlanned(Attempt(attempt), BatchId(batch_id), positions)


def committed(attempt: int, batch_id: int, sink: str = "") -> BatchCommitted:
    return BatchCommitted(Attempt(attempt), BatchId(batch_id), {}, {"sink": sink}, 0)


def manifest(batch_id: int, log_position: int, checkpoint_id: int = 1, job_id: JobId = JOB) -> Manifest:
    return Manifest(
        job_id=job_id,
        checkpoint_id=CheckpointId(checkpoint_id),
        kind=SnapshotKind.CHECKPOINT,
        attempt=Attempt(1),
        batch_id=BatchId(batch_id),
        log_position=log_position,
        max_parallelism=128,
        hash_id=HashId.SPARK,
        created_at_ms=0,
        operators=(),
        sinks={"sink": "of the manifest"},
    )


def numbered(*entries: LogEntry, after: int = 0) -> list[tuple[int, LogEntry]]:
    return list(enumerate(entries, after + 1))


def test_an_empty_log_resumes_before_any_batch() -> None:
    resume = resolve(None, [], JOB)
    assert (resume.batch_id, resume.next_position, resume.attempt, resume.planned) == (-1, 1, 0, None)


def test_reads_back_what_was_appended(tmp_path: Path) -> None:
    log = CommitLog(LocalObjectStore(tmp_path), LAYOUT)
    entries = [opened(1), planned(1, 0, **{"offsets/0": "{}"}), committed(1, 0, "token")]
    position = 1
    for entry in entries:
        position = log.append(position, entry)
    assert log.read() == numbered(*entries)
    assert log.read(2) == numbered(entries[2], after=2)


def test_the_entries_between_two_positions_are_read_without_listing_the_log(tmp_path: Path) -> None:
    log = CommitLog(LocalObjectStore(tmp_path), LAYOUT)
    written = [opened(1), planned(1, 0), committed(1, 0), planned(1, 1)]
    for position, entry in enumerate(written, start=1):
        log.append(position, entry)
    assert log.between(1, 3) == written[1:3]
    assert log.between(4, 4) == []
    with pytest.raises(LogGapError):
        log.between(2, 9)


def test_a_planned_batch_must_be_run_again_with_its_positions() -> None:
    resume = resolve(
        None, numbered(opened(1), planned(1, 0, a="1"), committed(1, 0, "x"), planned(1, 1, a="2", b="3")), JOB
    )
    assert resume.batch_id == 0
    assert resume.planned is not None
    assert resume.planned.batch_id == 1
    assert resume.positions == {"a": "2", "b": "3"}
    assert resume.sinks == {"sink": "x"}
    assert resume.next_position == 5


def test_resumes_from_a_manifest_and_the_commits_after_it() -> None:
    base = manifest(batch_id=4, log_position=10)
    entries = numbered(planned(1, 5), committed(1, 5, "x"), opened(2), planned(2, 6), after=10)
    resume = resolve(base, entries, JOB)
    assert (resume.batch_id, resume.attempt, resume.next_position, resume.sinks) == (5, 2, 15, {"sink": "x"})
    assert resolve(base, [], JOB).sinks == {}, "it was published before the manifest was taken"


def test_a_job_started_from_another_jobs_savepoint_reads_its_own_log_from_the_start() -> None:
    base = manifest(batch_id=4, log_position=10, job_id=JobId("other"))
    assert log_start(base, JOB) == 0
    resume = resolve(base, numbered(opened(1, restored_from=base.path), committed(1, 5)), JOB)
    assert resume.batch_id == 5
    with pytest.raises(BaseDisownedError):
        resolve(None, numbered(opened(1, restored_from=base.path)), JOB)


def test_a_rewind_disowns_the_commits_after_its_manifest() -> None:
    base = manifest(batch_id=4, log_position=10)
    entries = numbered(committed(1, 5), planned(1, 6), opened(2, restored_from=base.path, rewinds=True), after=10)
    resume = resolve(base, entries, JOB)
    assert (resume.batch_id, resume.planned, resume.attempt) == (4, None, 2)
    with pytest.raises(BaseDisownedError):
        resolve(manifest(batch_id=5, log_position=11, checkpoint_id=2), entries[1:], JOB)


@pytest.mark.parametrize(
    "entries",
    [
        (opened(2), opened(1)),
        (opened(1), opened(1)),
        (opened(2), committed(1, 0)),
        (opened(1), committed(1, 1)),
        (opened(1), committed(1, 0), committed(1, 0)),
        (opened(1), planned(1, 1)),
    ],
)
def test_a_history_that_contradicts_itself_is_refused(entries: tuple[LogEntry, ...]) -> None:
    with pytest.raises(HistoryError):
        resolve(None, numbered(*entries), JOB)


def test_a_missing_entry_is_noticed(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    for position, batch in enumerate(range(3), 1):
        log.append(position, planned(1, batch))
    store.delete([LAYOUT.log_entry(2)])
    with pytest.raises(LogGapError):
        log.read()
    assert len(log.read(2)) == 1


def test_a_damaged_entry_is_noticed(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    log.append(1, planned(1, 0, a="position"))
    store.put(LAYOUT.log_entry(1), store.get(LAYOUT.log_entry(1)).replace(b"position", b"positiom"))
    with pytest.raises(DocumentCorruptError, match=LAYOUT.log_entry(1)):
        log.read()


def test_a_damaged_answer_is_no_other_attempt(tmp_path: Path) -> None:
    store = DamagingStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    log.append(1, planned(1, 0))
    store.damages = 1
    assert log.append(1, planned(1, 0)) == 2
    store.damages = 4
    with pytest.raises(StoreUnavailableError, match="cannot be confirmed"):
        log.append(1, planned(1, 0))
    store.damages = 1
    with pytest.raises(FencedError):
        CommitLog(store, LAYOUT).append(1, planned(2, 0))


class DamagingStore(LocalObjectStore):
    """A store whose next answers are damaged."""

    damages = 0

    def get(self, path: str) -> bytes:
        data = super().get(path)
        self.damages -= 1
        return data if self.damages < 0 else data.replace(b"batch", b"botch")


def test_an_entry_at_the_wrong_position_is_noticed(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    log.append(1, planned(1, 0))
    store.copy(LAYOUT.log_entry(1), LAYOUT.log_entry(2))
    with pytest.raises(DocumentCorruptError):
        log.read()


def test_an_older_attempt_is_fenced(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    old, new = CommitLog(store, LAYOUT), CommitLog(store, LAYOUT)
    old.append(1, opened(1))
    new.append(2, opened(2))
    with pytest.raises(FencedError):
        old.append(2, planned(1, 0))


def test_a_driver_that_slept_and_fills_a_hole_in_a_trimmed_log_is_fenced(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    log.append(1, opened(1))
    for position in (2, 3):
        log.append(position, planned(1, position - 2))
    store.delete([LAYOUT.log_entry(2)])
    with pytest.raises(FencedError):
        CommitLog(store, LAYOUT).append(2, opened(2))


def test_neither_a_rewind_nor_a_later_recovery_needs_the_log_before_it(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    base = manifest(batch_id=-1, log_position=1)
    entries = [
        opened(1),
        planned(1, 0),
        committed(1, 0),
        opened(2, restored_from=base.path, rewinds=True),
        planned(2, 0),
    ]
    for position, entry in enumerate(entries, 1):
        log.append(position, entry)
    store.delete([LAYOUT.log_entry(2), LAYOUT.log_entry(3)])
    assert log.last() == (5, entries[-1])
    history = log.history(base)
    assert [position for position, _ in history] == [4, 5]
    resume = resolve(base, history, JOB)
    assert (resume.next_position, resume.attempt, resume.batch_id) == (6, 2, -1)
    other = manifest(batch_id=-1, log_position=1, checkpoint_id=9)
    with pytest.raises(BaseDisownedError):
        resolve(other, log.history(other), JOB)
    store.delete([LAYOUT.log_entry(4)])
    with pytest.raises(LogGapError):
        log.history(base)


class CountsReads(LocalObjectStore):
    """Counts the objects that were read."""

    reads = 0

    def get(self, path: str) -> bytes:
        self.reads += 1
        return super().get(path)


def write(store: ObjectStore, entries: list[LogEntry]) -> None:
    log = CommitLog(store, LAYOUT)
    for position, entry in enumerate(entries, 1):
        log.append(position, entry)


def test_the_first_commit_after_a_manifest_is_that_of_a_newer_attempt(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    write(store, [opened(1), committed(1, 0), committed(1, 1), opened(2), planned(2, 2), committed(2, 2), opened(3)])
    log = CommitLog(store, LAYOUT)
    assert log.first_commit(manifest(0, 2), newer_than=Attempt(0)) == committed(1, 1)
    assert log.first_commit(manifest(0, 2), newer_than=Attempt(1)) == committed(2, 2)
    assert log.first_commit(manifest(0, 2), newer_than=Attempt(2)) is None
    assert log.first_commit(manifest(2, 6), newer_than=Attempt(1)) is None


def test_a_log_without_entries_has_no_last_one(tmp_path: Path) -> None:
    assert CommitLog(LocalObjectStore(tmp_path), LAYOUT).last() is None


@pytest.mark.parametrize("length", range(6))
def test_the_history_of_a_job_without_a_manifest_is_its_whole_log(tmp_path: Path, length: int) -> None:
    store = LocalObjectStore(tmp_path)
    entries = [opened(1), *(planned(1, batch) for batch in range(length))]
    write(store, entries)
    log = CommitLog(store, LAYOUT)
    assert log.history(None) == numbered(*entries)
    assert log.history(manifest(batch_id=-1, log_position=length)) == numbered(entries[-1], after=length)
    assert log.history(manifest(batch_id=-1, log_position=length + 1)) == []


@pytest.mark.parametrize("gap", [2, 3, 4])
def test_a_gap_anywhere_in_a_history_without_a_rewind_is_noticed(tmp_path: Path, gap: int) -> None:
    store = LocalObjectStore(tmp_path)
    write(store, [opened(1), *(planned(1, batch) for batch in range(4))])
    store.delete([LAYOUT.log_entry(gap)])
    with pytest.raises(LogGapError):
        CommitLog(store, LAYOUT).history(None)
    assert len(CommitLog(store, LAYOUT).history(manifest(batch_id=0, log_position=gap))) == 5 - gap


@pytest.mark.parametrize("batches", [[0], [0, 0, 0], [40], [40, 0, 40], [1, 2, 3, 40, 5], [0, 40, 1]])
def test_the_entries_that_open_attempts_are_found_by_few_reads(tmp_path: Path, batches: list[int]) -> None:
    entries: list[LogEntry] = []
    for attempt, count in enumerate(batches, 1):
        entries += [opened(attempt), *(planned(attempt, batch) for batch in range(count))]
    write(LocalObjectStore(tmp_path), entries)
    store = CountsReads(tmp_path)
    log = CommitLog(store, LAYOUT)
    positions = list(range(1, len(entries) + 1))
    openings = {position: entry for position, entry in enumerate(entries, 1) if isinstance(entry, AttemptOpened)}
    assert log.openings(positions[::-1]) == openings
    # Both ends, and a binary search for each opening between them.
    assert store.reads <= 2 + (len(batches) - 1) * len(entries).bit_length()
    reads = store.reads
    assert log.openings(positions) == openings
    assert store.reads == reads, "an entry is read once"


def test_an_entry_that_was_deleted_in_the_meantime_opens_nothing(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    write(store, [opened(1), opened(2), planned(2, 0), opened(3)])
    store.delete([LAYOUT.log_entry(1)])
    log = CommitLog(store, LAYOUT)
    assert log.openings([1, 2, 3, 4]) == {2: opened(2), 4: opened(3)}
    assert log.openings([]) == {}


def test_a_log_that_another_driver_continues_is_known_by_its_newer_entries_alone(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    old, new = CommitLog(store, LAYOUT), CommitLog(store, LAYOUT)
    old.append(1, opened(1))
    assert not old.is_continued_by_another(0)
    new.append(2, opened(2))
    assert old.is_continued_by_another(0)
    assert old.is_continued_by_another(1)
    assert not old.is_continued_by_another(2)
    assert not new.is_continued_by_another(1)


@pytest.mark.parametrize("faults", [[Fault.ANSWER_LOST], [Fault.NOT_APPLIED], [Fault.NOT_APPLIED, Fault.ANSWER_LOST]])
def test_an_append_whose_response_was_lost_is_read_back(tmp_path: Path, faults: list[Fault]) -> None:
    store = FaultyStore(tmp_path, faults)
    log = CommitLog(store, LAYOUT)
    assert log.append(1, opened(1)) == 2
    assert store.fired == len(faults)
    assert log.read() == numbered(opened(1))


def test_an_append_can_be_repeated_after_the_store_was_unavailable_for_long(tmp_path: Path) -> None:
    store = FaultyStore(tmp_path, [Fault.ANSWER_LOST])
    log = CommitLog(store, LAYOUT)
    store.away = True
    with pytest.raises(StoreUnavailableError):
        log.append(1, opened(1))
    store.away = False
    assert log.append(1, opened(1)) == 2
    assert log.append(1, opened(1)) == 2


class OverwritesLog(LocalObjectStore):
    """The guard is switched off: this store's create replaces objects."""

    def create(self, path: str, data: bytes) -> None:
        self.put(path, data)


def driver(store: ObjectStore, attempt: int, commits: list[tuple[int, int]]) -> Iterator[None]:
    """A driver as a sequence of steps, with anything in between; records its acknowledged commits."""
    log = CommitLog(store, LAYOUT)
    resume = resolve(None, log.read(), JOB)
    yield
    if resume.attempt >= attempt:
        return
    position = log.append(resume.next_position, opened(attempt))
    batch_id = resume.batch_id + 1
    while True:
        yield
        position = log.append(position, planned(attempt, batch_id))
        yield
        position = log.append(position, committed(attempt, batch_id))
        commits.append((attempt, batch_id))
        batch_id += 1


def play(store: ObjectStore, schedule: list[int]) -> list[tuple[int, int]]:
    """Plays drivers of attempts 1, 2, 3 in any interleaving; returns what they believe they committed."""
    commits: list[tuple[int, int]] = []
    drivers = {number: driver(store, number, commits) for number in (1, 2, 3)}
    for number in schedule:
        try:
            if number in drivers:
                next(drivers[number])
        except (StopIteration, FencedError, StoreUnavailableError):
            del drivers[number]
    return commits


def check_history(store: ObjectStore, commits: list[tuple[int, int]]) -> None:
    entries = CommitLog(store, LAYOUT).read()
    resolve(None, entries, JOB)  # refuses a commit of an older attempt after a newer one was opened
    in_log = [(entry.attempt, entry.batch_id) for _, entry in entries if isinstance(entry, BatchCommitted)]
    assert [batch_id for _, batch_id in in_log] == list(range(len(in_log)))
    assert set(commits) <= set(in_log), "a driver counts a commit that is not in the log"


@settings(deadline=None)
@given(
    schedule=st.lists(st.sampled_from([1, 2, 3]), max_size=40),
    faults=st.lists(st.sampled_from([Fault.NONE, Fault.NONE, Fault.NOT_APPLIED, Fault.ANSWER_LOST]), max_size=30),
)
def test_any_interleaving_of_attempts_gives_one_history(schedule: list[int], faults: list[Fault]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = FaultyStore(Path(directory), faults)
        commits = play(store, schedule)
        store.faults.clear()
        check_history(store, commits)


def test_without_the_condition_the_same_check_fails(tmp_path: Path) -> None:
    store = OverwritesLog(tmp_path)
    commits = play(store, [1, 1, 2, 1, 1, 1, 2, 2, 2, 1, 1])
    with pytest.raises((AssertionError, HistoryError, ObjectExistsError)):
        check_history(store, commits)


def test_of_several_rewinds_only_the_last_one_counts() -> None:
    one, two = manifest(batch_id=4, log_position=10), manifest(batch_id=5, log_position=11, checkpoint_id=2)
    entries = numbered(
        committed(1, 5),
        opened(2, restored_from=one.path, rewinds=True),
        committed(2, 5),
        opened(3, restored_from=two.path, rewinds=True),
        opened(4, restored_from=one.path, rewinds=True),
        committed(4, 5, "the last"),
        after=10,
    )
    assert resolve(one, entries, JOB).sinks == {"sink": "the last"}
    with pytest.raises(BaseDisownedError):
        resolve(two, entries[1:], JOB)


def test_the_newest_counters_are_those_of_the_newest_entry_that_has_them_and_can_be_read(
    tmp_path: Path,
) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    assert log.newest_counters() == NOTHING_COUNTED
    counted = [JobCounters(input_records=number) for number in range(4)]
    log.append(1, structs.replace(opened(1), counters=counted[1]))
    log.append(2, structs.replace(committed(1, 0), counters=counted[2]))
    assert log.newest_counters() == counted[2]
    log.append(3, structs.replace(committed(1, 1), counters=counted[3]))
    log.append(4, planned(1, 2))
    assert log.newest_counters() == counted[3], "a plan has none"
    store.put(LAYOUT.log_entry(3), b"damaged")
    assert log.newest_counters() == counted[2]


def test_the_time_of_an_opening_is_that_of_the_store_and_of_this_opening_alone(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log, later = CommitLog(store, LAYOUT), CommitLog(store, LAYOUT)
    log.append(1, opened(1))
    info = store.head(LAYOUT.log_entry(1))
    assert info is not None
    assert log.opened_at_ms == info.modified_ms
    log.append(2, planned(1, 0))
    later.append(3, planned(1, 0))
    assert (log.opened_at_ms, later.opened_at_ms) == (info.modified_ms, None)


def test_a_reader_reads_the_entries_after_the_last_gap_and_none_before_it(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    written = [opened(1), committed(1, 0), committed(1, 1), opened(2), committed(2, 2)]
    assert log.stored() == []
    for position, entry in enumerate(written, 1):
        log.append(position, entry)
    assert log.stored() == numbered(*written)
    store.delete([LAYOUT.log_entry(position) for position in (1, 3)])
    assert log.stored() == numbered(*written[3:], after=3)
    with pytest.raises(LogGapError, match="of job has no complete history after position 0"):
        log.read()
    assert log.read(3) == numbered(*written[3:], after=3)
    assert log.last() == (5, written[4])
    assert log.is_continued_by_another(4) is False
    assert CommitLog(store, LAYOUT).is_continued_by_another(4) is True
    assert CommitLog(store, LAYOUT).is_continued_by_another(5) is False


def test_an_entry_in_the_place_of_another_one_is_damage(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    log.append(1, opened(1))
    store.put(LAYOUT.log_entry(2), store.get(LAYOUT.log_entry(1)))
    with pytest.raises(DocumentCorruptError, match="holds the entry of position 1"):
        log.last()


def test_the_newest_counters_are_those_of_the_newest_opening_or_commit_that_has_some(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    log = CommitLog(store, LAYOUT)
    early, late = JobCounters(input_records=5), JobCounters(input_records=9)
    entries: list[LogEntry] = [
        structs.replace(opened(1), counters=early),
        planned(1, 0),
        committed(1, 0),
        structs.replace(opened(2), counters=late),
        planned(2, 1),
    ]
    found = []
    for position, entry in enumerate(entries, 1):
        log.append(position, entry)
        found.append(log.newest_counters())
    assert found == [early, early, early, late, late]
    store.put(LAYOUT.log_entry(6), b"damaged")
    assert log.newest_counters() == late
