"""The parts of operators' state that a job's history is composed of, and the numbers that it fixes."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.changelog import ChangelogFormat, ChangelogHandle
from keyscale.state.documents.job_counters import JobCounters
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.documents.log_entries import AttemptOpened, BatchCommitted, BatchPlanned, LogEntry
from keyscale.state.documents.manifest import (
    FileHandle,
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    SnapshotHandle,
    SnapshotKind,
)
from keyscale.state.documents.rewind import Rewind
from keyscale.state.errors import StateSchemaMismatchError
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.schema import KeyedSchema, schema_of_key
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.log.resolution import HistoryError, OperatorHistory, ResumePoint, files_after, resolve

JOB, OTHER = JobId("job"), JobId("other")
COUNT, SEEN, NEW = OperatorUid("count"), OperatorUid("seen"), OperatorUid("new")
KEY = schema_of_key(pa.schema([("id", pa.int64())]))


def with_states(*names: str) -> KeyedSchema:
    schema = KEY
    for name in names:
        schema = schema.with_state(ValueStateDescriptor(name, pa.int64()).stored())
    return schema


def file(path: str) -> FileHandle:
    return FileHandle(path, path, 1, "")


def snapshot(index: int, *, schema: KeyedSchema | None = None, state: FileHandle | None = None) -> SnapshotHandle:
    held = msgspec.UNSET if state is None else state
    return SnapshotHandle(SubtaskIndex(index), index * 64, index * 64 + 63, BatchId(4), "lineage", (), schema, held)


def changelog(
    batch_id: int, index: int, *, schema: KeyedSchema | None = None, state: FileHandle | None = None
) -> ChangelogHandle:
    path = f"changelog of {index} in {batch_id}"
    return ChangelogHandle(
        path,
        1,
        "",
        ChangelogFormat.FRAMES,
        BatchId(batch_id),
        SubtaskIndex(index),
        index * 64,
        index * 64 + 63,
        1,
        schema=schema,
        operator_state=state,
    )


def manifest(*operators: OperatorSnapshot, job_id: JobId = JOB, attempt: int = 1) -> Manifest:
    return Manifest(
        job_id=job_id,
        checkpoint_id=CheckpointId(1),
        kind=SnapshotKind.CHECKPOINT,
        attempt=Attempt(attempt),
        batch_id=BatchId(4),
        log_position=10,
        max_parallelism=128,
        hash_id=HashId.SPARK,
        created_at_ms=0,
        operators=operators,
    )


def opened(attempt: int, *, base: Manifest | None = None, **declared: OperatorDeclaration) -> AttemptOpened:
    operators = {OperatorUid(uid): declaration for uid, declaration in declared.items()}
    restored_from = None if base is None else base.path
    return AttemptOpened(Attempt(attempt), 2, 128, HashId.SPARK, restored_from, 0, operators)


def committed(attempt: int, batch_id: int, **changelogs: list[ChangelogHandle | None]) -> BatchCommitted:
    operators = {OperatorUid(uid): handles for uid, handles in changelogs.items()}
    return BatchCommitted(Attempt(attempt), BatchId(batch_id), operators, {}, 0)


def resumed(base: Manifest | None, *entries: LogEntry, after: int = 10) -> ResumePoint:
    return resolve(base, list(enumerate(entries, after + 1)), JOB)


def test_an_operators_parts_are_its_snapshots_and_the_changelogs_committed_after_them_in_order() -> None:
    declaration = OperatorDeclaration((("id", "int64"),))
    snapshots = (snapshot(0), snapshot(1))
    base = manifest(OperatorSnapshot(COUNT, 2, declaration, snapshots))
    five, six, seen = [changelog(5, 0), changelog(5, 1)], [None, changelog(6, 1)], [changelog(6, 0), None]
    history = resumed(base, committed(1, 5, count=five), committed(1, 6, count=six, seen=seen)).operators
    assert history[COUNT] == OperatorHistory(snapshots, (*five, six[1]), declaration, None, (None, None))
    assert history[SEEN] == OperatorHistory((), (seen[0],), None, None, ())
    assert list(history) == [COUNT, SEEN]


def test_a_job_s_counters_are_those_of_its_last_batch_or_of_its_own_manifest_and_not_another_job_s() -> None:
    counters = JobCounters(1000, 900, 7, 3)
    own = msgspec.structs.replace(manifest(), counters=JobCounters(500, 400, 7, 0))
    assert resumed(own).counters == own.counters
    of_earlier_version = committed(1, 6)
    entries = [msgspec.structs.replace(committed(1, 5), counters=counters), of_earlier_version]
    assert resumed(own, *entries).counters == counters
    assert resumed(manifest()).counters == JobCounters()
    of_another = msgspec.structs.replace(manifest(job_id=OTHER), counters=counters)
    assert resumed(of_another, opened(1, base=of_another), after=0).counters == JobCounters()


def test_the_rewinds_in_a_history_are_those_of_its_manifest_and_those_after_it() -> None:
    def back(attempt: int, base: Manifest | None) -> AttemptOpened:
        return msgspec.structs.replace(opened(attempt, base=base), rewinds=True)

    none, to_four = Rewind(Attempt(2), BatchId(-1)), Rewind(Attempt(3), BatchId(4))
    to_six = Rewind(Attempt(5), BatchId(6))
    assert resumed(manifest()).rewinds == ()
    assert resumed(None, opened(1), committed(1, 0), back(2, None), committed(2, 0), after=0).rewinds == (none,)
    own = msgspec.structs.replace(manifest(attempt=2), rewinds=(none,))
    assert resumed(own, back(3, own), committed(3, 5), opened(4)).rewinds == (none, to_four)
    later = msgspec.structs.replace(own, batch_id=BatchId(6), attempt=Attempt(4), rewinds=(none, to_four))
    assert resumed(later, back(5, later)).rewinds == (none, to_four, to_six)
    copied = msgspec.structs.replace(own, forked_from=OTHER, rewinds=msgspec.UNSET)
    assert resumed(copied, back(3, copied)).rewinds == (Rewind(Attempt(3), BatchId(-1)),), (
        "its batches are another job's"
    )
    of_another = msgspec.structs.replace(manifest(job_id=OTHER), rewinds=(none,))
    assert resumed(of_another, back(3, of_another), after=0).rewinds == (Rewind(Attempt(3), BatchId(-1)),)
    assert resumed(of_another, opened(1, base=of_another), after=0).rewinds == ()


def test_what_was_declared_last_counts() -> None:
    old, new = OperatorDeclaration((("id", "int64"),)), OperatorDeclaration((("name", "int64"),))
    base = manifest(OperatorSnapshot(COUNT, 1, old, ()))
    assert resumed(base).operators[COUNT].declaration == old
    assert resumed(base, opened(2, count=new, new=new)).operators == {
        COUNT: OperatorHistory(declaration=new),
        NEW: OperatorHistory(declaration=new),
    }


def test_the_schema_is_merged_from_all_that_name_one() -> None:
    base = manifest(
        OperatorSnapshot(
            COUNT, 1, OperatorDeclaration(schema=with_states("a")), (snapshot(0, schema=with_states("b")),)
        )
    )
    assert resumed(base).operators[COUNT].schema == with_states("a", "b")
    declared = OperatorDeclaration(schema=with_states("d"))
    entries = [
        opened(2, count=declared, new=declared),
        committed(2, 5, count=[changelog(5, 0, schema=with_states("c"))], seen=[changelog(5, 0)]),
    ]
    operators = resumed(base, *entries).operators
    assert operators[COUNT].schema == with_states("a", "b", "c", "d")
    assert operators[NEW].schema == with_states("d")
    assert operators[SEEN].schema is None
    other = schema_of_key(pa.schema([("id", pa.string())]))
    with pytest.raises(StateSchemaMismatchError):
        resumed(base, opened(2), committed(2, 5, count=[changelog(5, 0, schema=other)]))


def test_an_operator_that_was_dropped_and_is_declared_again_starts_empty_whatever_its_checkpoint_has() -> None:
    held = (snapshot(0, state=file("0 in 4")), snapshot(1, state=file("1 in 4")))
    operators = [OperatorSnapshot(uid, 2, OperatorDeclaration(), held) for uid in (COUNT, SEEN)]
    times = {COUNT: EventTime(1, 2), SEEN: EventTime(3, 4)}
    base = msgspec.structs.replace(manifest(*operators), time=JobTime(times))
    before = msgspec.structs.replace(
        committed(1, 5, count=[changelog(5, 0, state=file("0 in 5")), None]), time=JobTime(times)
    )
    dropped = msgspec.structs.replace(opened(2, seen=OperatorDeclaration()), dropped_operators=(COUNT,))
    again = opened(3, count=OperatorDeclaration((("id", "int64"),)), seen=OperatorDeclaration())
    resume = resumed(base, before, dropped, again)
    assert resume.operators[COUNT] == OperatorHistory(declaration=OperatorDeclaration((("id", "int64"),)))
    assert not resume.operators[COUNT].has_state
    assert resume.operators[SEEN].operator_state == (file("0 in 4"), file("1 in 4"))
    assert resume.time.event_times == {SEEN: EventTime(3, 4)}
    assert COUNT not in resumed(base, before, dropped).operators
    new = committed(3, 6, count=[changelog(6, 0, state=file("0 in 6")), None])
    after = resumed(base, before, dropped, again, new).operators[COUNT]
    assert (after.snapshots, after.operator_state) == ((), (file("0 in 6"), None))
    assert [each.batch_id for each in after.changelogs] == [6]


def test_the_newest_operator_state_of_each_subtask_counts() -> None:
    held = (snapshot(0, state=file("0 in 4")), snapshot(1, state=file("1 in 4")))
    base = manifest(OperatorSnapshot(COUNT, 2, OperatorDeclaration(), held))
    assert resumed(base).operators[COUNT].operator_state == (file("0 in 4"), file("1 in 4"))
    written = committed(1, 5, count=[None, changelog(5, 1, state=file("1 in 5"))])
    unchanged = committed(1, 6, count=[changelog(6, 0), None])
    again = committed(1, 7, count=[changelog(7, 0, state=file("0 in 7")), None])
    states = [
        resumed(base, *[written, unchanged, again][:count]).operators[COUNT].operator_state for count in (1, 2, 3)
    ]
    assert states == [
        (file("0 in 4"), file("1 in 5")),
        (file("0 in 4"), file("1 in 5")),
        (file("0 in 7"), file("1 in 5")),
    ]


def test_a_new_attempt_takes_over_all_of_the_operator_state_or_none() -> None:
    held = (snapshot(0, state=file("0 in 4")), snapshot(1, state=file("1 in 4")))
    base = manifest(OperatorSnapshot(COUNT, 2, OperatorDeclaration(), held))
    part = committed(2, 5, count=[None, changelog(5, 1, state=file("1 in 5"))])
    with pytest.raises(HistoryError, match="only part of the operator state of 'count'"):
        resumed(base, opened(2), part)
    whole = [changelog(5, index, state=file(f"{index} in 5")) for index in range(3)]
    one = [None, None, changelog(6, 2, state=file("2 in 6"))]
    operators = resumed(base, opened(2), committed(2, 5, count=whole), committed(2, 6, count=one)).operators
    assert operators[COUNT].operator_state == (file("0 in 5"), file("1 in 5"), file("2 in 6"))


def test_another_jobs_attempt_of_the_same_number_is_another_attempt() -> None:
    held = (snapshot(0, state=file("0 in 4")), snapshot(1, state=file("1 in 4")))
    base = manifest(OperatorSnapshot(COUNT, 2, OperatorDeclaration(), held), job_id=OTHER, attempt=7)
    resume = resumed(base, opened(1, base=base), after=0)
    assert (resume.attempt, resume.operators[COUNT].operator_state) == (1, (file("0 in 4"), file("1 in 4")))
    with pytest.raises(HistoryError, match="only part"):
        resumed(
            base,
            opened(7, base=base),
            committed(7, 5, count=[None, changelog(5, 1, state=file("1 in 5"))]),
            after=0,
        )


@pytest.mark.parametrize(
    ("known", "of", "written", "after"),
    [
        ((), None, (None, None), ()),
        (("a", "b"), 1, (None, None, None), ("a", "b")),
        (("a", "b"), 2, (None, "c"), ("a", "c")),
        (("a", None), 2, (None, "c"), ("a", "c")),
        (("a", "b"), 1, ("c", "d"), ("c", "d")),
        (("a", "b"), 1, ("c", None), None),
        (("a", "b"), 2, ("c", None, None), None),
        ((None, None), 1, ("c", None), ("c", None)),
        ((), None, ("c", None), ("c", None)),
    ],
)
def test_the_files_after_a_batch(
    known: tuple[str | None, ...], of: int | None, written: tuple[str | None, ...], after: tuple[str | None, ...] | None
) -> None:
    def files(names: tuple[str | None, ...]) -> tuple[FileHandle | None, ...]:
        return tuple(None if name is None else file(name) for name in names)

    writer = None if of is None else Attempt(of)
    found = files_after(files(known), of=writer, attempt=Attempt(2), written=files(written))
    assert found == (None if after is None else files(after))


@pytest.mark.parametrize(
    ("max_parallelism", "hash_id"), [(64, HashId.SPARK), (128, HashId.JAVA)], ids=["max parallelism", "hash"]
)
def test_what_is_fixed_by_the_history_cannot_change(max_parallelism: int, hash_id: HashId) -> None:
    base = manifest()
    changed = AttemptOpened(Attempt(2), 2, max_parallelism, hash_id, None, 0, {})
    with pytest.raises(HistoryError, match="where the history has"):
        resumed(base, changed)
    with pytest.raises(HistoryError, match="where the history has"):
        resumed(None, opened(1), changed, after=0)
    free = resumed(None, AttemptOpened(Attempt(1), 2, max_parallelism, hash_id, None, 0, {}), after=0)
    assert (free.max_parallelism, free.hash_id) == (max_parallelism, hash_id)
    assert (resumed(base).max_parallelism, resumed(base).hash_id) == (128, HashId.SPARK)
    assert (resumed(None, after=0).max_parallelism, resumed(None, after=0).hash_id) == (None, None)


def test_the_time_is_that_of_the_manifest_until_a_batch_is_committed() -> None:
    base = msgspec.structs.replace(manifest(), time=JobTime(time_batches=3))
    assert resumed(base).time == JobTime(time_batches=3)
    later = msgspec.structs.replace(committed(1, 5), time=JobTime(time_batches=4))
    assert resumed(base, later).time == JobTime(time_batches=4)
    assert resumed(manifest()).time == resumed(None, after=0).time == JobTime()


def test_an_opening_can_begin_time_again_and_the_number_of_sparks_batches_stays() -> None:
    times = JobTime({OperatorUid("count"): EventTime(9, 8)}, time_batches=3, processing_ms=7)
    base = msgspec.structs.replace(manifest(), time=times)
    again = msgspec.structs.replace(opened(2), resets_time=True)
    assert resumed(base, again).time == JobTime(time_batches=3)
    assert resumed(base, again, opened(3)).time == JobTime(time_batches=3)
    assert resumed(base, opened(2)).time == times
    assert resumed(base, again, msgspec.structs.replace(committed(2, 5), time=times)).time == times


def test_a_missing_position_is_refused() -> None:
    entries = [(11, committed(1, 5)), (13, committed(1, 6))]
    with pytest.raises(HistoryError, match="position 12 is missing"):
        resolve(manifest(), entries, JOB)
    with pytest.raises(HistoryError, match="position 11 is missing"):
        resolve(manifest(), entries[1:], JOB)


def test_a_commit_ends_its_plan_and_the_positions_of_all_plans_add_up() -> None:
    plans = [BatchPlanned(Attempt(1), BatchId(batch), {"a": str(batch), str(batch): ""}) for batch in (5, 6)]
    resume = resumed(manifest(), plans[0], committed(1, 5), plans[1])
    assert (resume.batch_id, resume.planned, resume.positions) == (5, plans[1], {"a": "6", "5": "", "6": ""})
    after = resumed(manifest(), plans[0], committed(1, 5), plans[1], committed(1, 6))
    assert (after.batch_id, after.planned, after.positions) == (6, None, resume.positions)


@pytest.mark.parametrize("owner", [JOB, OTHER])
def test_a_resume_point_has_the_whole_history_of_the_job_and_the_state_alone_of_another_one(owner: JobId) -> None:
    is_own = owner == JOB
    base = Manifest(
        job_id=owner,
        checkpoint_id=CheckpointId(2),
        kind=SnapshotKind.SAVEPOINT,
        attempt=Attempt(3),
        batch_id=BatchId(4),
        log_position=10,
        max_parallelism=128,
        hash_id=HashId.SPARK,
        created_at_ms=0,
        operators=(OperatorSnapshot(COUNT, 2, OperatorDeclaration(), (snapshot(0, state=file("s0")), snapshot(1))),),
        sinks={"out": "of the base"},
        savepoint_id="s",
        time=JobTime({COUNT: EventTime(5, 4)}, 1, 100),
        counters=JobCounters(input_records=7),
        rewinds=(Rewind(Attempt(2), BatchId(1)),),
    )
    after = 10 if is_own else 0
    assert resolve(base, [], JOB) == ResumePoint(
        batch_id=BatchId(4),
        planned=None,
        positions={},
        operators={
            COUNT: OperatorHistory(
                snapshots=base.operators[0].subtasks,
                declaration=base.operators[0].declaration,
                operator_state=(file("s0"), None),
            )
        },
        next_position=after + 1,
        attempt=Attempt(3) if is_own else Attempt(0),
        sinks={},
        max_parallelism=128,
        hash_id=HashId.SPARK,
        time=JobTime({COUNT: EventTime(5, 4)}, 1, 100),
        counters=JobCounters(input_records=7) if is_own else JobCounters(),
        rewinds=base.rewinds if is_own else (),
        key_group_ranges=KeyGroupRanges.of_count(128, 2) if is_own else None,
    )
    declared = OperatorDeclaration((("id", "int64"),), KEY)
    opening = AttemptOpened(
        Attempt(5),
        2,
        128,
        HashId.SPARK,
        base.path,
        0,
        {COUNT: declared, NEW: declared},
        rewinds=True,
        positions={"order": "b"},
        counters=JobCounters(input_records=9, output_records=2),
        key_group_starts=(0, 30),
    )
    changed = changelog(5, 1, schema=with_states("clicks"), state=file("n1"))
    entries: list[LogEntry] = [
        opening,
        BatchPlanned(Attempt(5), BatchId(5), {"offsets/5": "x"}),
        BatchCommitted(Attempt(5), BatchId(5), {NEW: [None, changed]}, {"out": "5"}, 0, time=JobTime({}, 2, 300)),
        BatchPlanned(Attempt(5), BatchId(6), {"offsets/6": "y"}),
    ]
    last_of_own = BatchId(4) if is_own else BatchId(-1)
    assert resolve(base, list(enumerate(entries, after + 3)), JOB) == ResumePoint(
        batch_id=BatchId(5),
        planned=entries[3],  # type: ignore[arg-type]  # the plan
        positions={"order": "b", "offsets/5": "x", "offsets/6": "y"},
        operators={
            COUNT: OperatorHistory(base.operators[0].subtasks, (), declared, KEY, (file("s0"), None)),
            NEW: OperatorHistory((), (changed,), declared, with_states("clicks"), (None, file("n1"))),
        },
        next_position=after + 7,
        attempt=Attempt(5),
        sinks={"out": "5"},
        max_parallelism=128,
        hash_id=HashId.SPARK,
        time=JobTime({}, 2, 300),
        replaces_positions=True,
        counters=JobCounters(input_records=9, output_records=2),
        rewinds=(*(base.rewinds if is_own and base.rewinds else ()), Rewind(Attempt(5), last_of_own)),
        key_group_ranges=KeyGroupRanges(128, (0, 30)),
    )


def test_impossible_key_groups_of_an_opening_are_unknown() -> None:
    opening = AttemptOpened(Attempt(1), 200, 128, HashId.SPARK, None, 0, {})
    assert resolve(None, [(1, opening)], JOB).key_group_ranges is None


def test_an_own_copy_of_another_jobs_checkpoint_has_none_of_its_batches_in_the_rewinds() -> None:
    copy = Manifest(
        JOB,
        CheckpointId(2),
        SnapshotKind.SAVEPOINT,
        Attempt(0),
        BatchId(4),
        0,
        128,
        HashId.SPARK,
        0,
        (),
        forked_from=OTHER,
    )
    opening = AttemptOpened(Attempt(1), 2, 128, HashId.SPARK, copy.path, 0, {}, rewinds=True)
    assert resolve(copy, [(1, opening)], JOB).rewinds == (Rewind(Attempt(1), BatchId(-1)),)
