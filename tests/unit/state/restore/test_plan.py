"""Restore plans: every key group is assigned once, at any parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale.identifiers import Attempt, BatchId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.changelog import ChangelogFormat, ChangelogHandle
from keyscale.state.documents.log_entries import BatchCommitted, BatchPlanned
from keyscale.state.documents.manifest import FileHandle, ShardHandle, SnapshotHandle
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import KeyGroupRange, key_group_range
from keyscale.state.layout import Layout
from keyscale.state.log.commit_log import CommitLog, LogGapError
from keyscale.state.log.resolution import OperatorHistory
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.state.operator_state.operator_files import OperatorStatePlan
from keyscale.state.restore.plan import (
    CoverError,
    RestorePlan,
    assign_shards,
    check_cover,
    followed_in_log,
    plan_operator,
    plan_subtask,
    version_of,
)

if TYPE_CHECKING:
    from pathlib import Path


def snapshot(index: int, *ranges: KeyGroupRange) -> SnapshotHandle:
    shards = tuple(ShardHandle(part.start, part.end, ()) for part in ranges)
    return SnapshotHandle(SubtaskIndex(index), ranges[0].start, ranges[-1].end, BatchId(3), f"lineage-{index}", shards)


def at_parallelism(max_parallelism: int, parallelism: int) -> tuple[SnapshotHandle, ...]:
    return tuple(snapshot(index, key_group_range(max_parallelism, parallelism, index)) for index in range(parallelism))


def changelog(path: str, batch_id: int, key_groups: KeyGroupRange) -> ChangelogHandle:
    return ChangelogHandle(
        path, 1, "0", ChangelogFormat.FRAMES, BatchId(batch_id), SubtaskIndex(0), key_groups.start, key_groups.end, 1
    )


@settings(deadline=None)
@given(st.integers(1, 300), st.lists(st.integers(1, 40), min_size=2, max_size=5))
def test_every_chain_of_rescales_covers_every_key_group_once(max_parallelism: int, wanted: list[int]) -> None:
    chain = [min(parallelism, max_parallelism) for parallelism in wanted]
    snapshots = at_parallelism(max_parallelism, chain[0])
    for parallelism in chain[1:]:
        plans = assign_shards(snapshots, KeyGroupRanges.of_count(max_parallelism, parallelism))
        for index, plan in enumerate(plans):
            own = key_group_range(max_parallelism, parallelism, index)
            assert [group for assignment in plan for group in assignment.key_groups] == list(own)
            assert all(group in assignment.shard.key_groups for assignment in plan for group in assignment.key_groups)
        snapshots = tuple(snapshot(index, *(part.key_groups for part in plan)) for index, plan in enumerate(plans))


def pairs_to(most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, most), st.integers(0, most))


@settings(deadline=None)
@given(
    st.integers(1, 40).flatmap(
        lambda groups: st.tuples(
            st.just(groups), st.integers(1, groups), st.lists(st.tuples(*[st.integers(0, groups)] * 2))
        )
    )
)
def test_each_subtask_of_an_operator_needs_what_it_needs_alone(given_: tuple[int, int, list[tuple[int, int]]]) -> None:
    max_parallelism, parallelism, ends = given_
    changelogs = tuple(
        changelog(str(at), at, KeyGroupRange(min(pair), max(pair))) for at, pair in enumerate(ends, start=4)
    )
    history = OperatorHistory(at_parallelism(max_parallelism, (parallelism + 1) // 2), changelogs)
    ranges = [key_group_range(max_parallelism, parallelism, index) for index in range(parallelism)]
    assert plan_operator(history, KeyGroupRanges.of_count(max_parallelism, parallelism)) == [
        plan_subtask(history, own) for own in ranges
    ]


def test_the_plans_of_many_subtasks_look_at_each_part_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[KeyGroupRange] = []
    intersection = KeyGroupRange.intersection

    def counted(groups: KeyGroupRange, other: KeyGroupRange) -> KeyGroupRange | None:
        looked.append(groups)
        return intersection(groups, other)

    monkeypatch.setattr(KeyGroupRange, "intersection", counted)
    snapshots = at_parallelism(32768, 1000)
    changelogs = tuple(changelog(str(each.subtask), 4, each.key_groups) for each in snapshots)
    plans = plan_operator(OperatorHistory(snapshots, changelogs), KeyGroupRanges.of_count(32768, 1001))
    assert len(plans) == 1001
    assert len(looked) < 10_000


def test_an_operator_without_state_starts_empty() -> None:
    assert assign_shards((), KeyGroupRanges.of_count(128, 3)) == [(), (), ()]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=6), st.integers(0, 10), st.integers(0, 10))
def test_the_cover_is_exact_or_refused(parts: list[tuple[int, int]], start: int, length: int) -> None:
    whole = KeyGroupRange(start, start + length)
    ranges = [KeyGroupRange(first, first + more) for first, more in parts]
    groups = sorted(group for part in ranges for group in part)
    if groups == list(whole):
        check_cover(ranges, whole)
    else:
        with pytest.raises(CoverError):
            check_cover(ranges, whole)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([(0, 3), (5, 9)], "4 to 4 missing"),
        ([(0, 5), (5, 9)], "5 to 5 doubled"),
        ([(0, 7)], "8 to 9 missing"),
        ([(0, 11)], "10 to 11 foreign"),
        ([], "0 to 9 missing"),
    ],
)
def test_a_refused_cover_names_the_key_groups(ranges: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(CoverError, match=words):
        check_cover([KeyGroupRange(*part) for part in ranges], KeyGroupRange(0, 9))


def test_key_groups_before_the_range_are_named_foreign() -> None:
    with pytest.raises(CoverError, match="of key groups 4 to 9: 2 to 3 foreign, 6 to 7 doubled, 9 to 9 missing"):
        check_cover([KeyGroupRange(2, 7), KeyGroupRange(6, 8)], KeyGroupRange(4, 9))


def test_a_manifest_that_lost_a_subtask_is_refused_before_anything_is_restored() -> None:
    with pytest.raises(CoverError):
        plan_operator(OperatorHistory(at_parallelism(128, 4)[:3]), KeyGroupRanges.of_count(128, 2))


def test_a_plan_holds_only_parts_that_intersect_the_range() -> None:
    history = OperatorHistory(
        at_parallelism(128, 2),
        (
            changelog("low", 4, KeyGroupRange(0, 63)),
            changelog("high", 4, KeyGroupRange(64, 127)),
            changelog("new", 5, KeyGroupRange(96, 127)),
        ),
    )
    plan = plan_subtask(history, KeyGroupRange(0, 31))
    assert [handle.subtask for handle in plan.snapshots] == [0]
    assert [handle.path for handle in plan.changelogs] == ["low"]


@pytest.mark.parametrize(
    ("history", "is_empty"),
    [
        (OperatorHistory(), True),
        (OperatorHistory(operator_state=(None, None)), True),
        (OperatorHistory(at_parallelism(128, 2)), False),
        (OperatorHistory(changelogs=(changelog("new", 0, KeyGroupRange(0, 63)),)), False),
        (OperatorHistory(operator_state=(None, FileHandle("positions", "p", 1, "0"))), False),
    ],
)
def test_only_an_empty_history_needs_no_restore(history: OperatorHistory, is_empty: bool) -> None:
    assert all(plan.is_empty for plan in plan_operator(history, KeyGroupRanges.of_count(128, 2))) is is_empty


def test_a_version_identifies_content() -> None:
    own = KeyGroupRange(0, 63)
    base = OperatorHistory(at_parallelism(128, 2))
    restored = version_of(plan_subtask(base, own), own, BatchId(3))
    assert restored.lineage == "lineage-0", "a snapshot taken over whole keeps its lineage"
    more = OperatorHistory(base.snapshots, (changelog("a", 4, own), changelog("b", 5, own)))
    planned = version_of(plan_subtask(more, own), own, BatchId(5))
    assert planned == restored.advanced(BatchId(4), "a").advanced(BatchId(5), "b")
    assert planned.lineage != restored.advanced(BatchId(4), "b").advanced(BatchId(5), "a").lineage
    assert restored.advanced(BatchId(4), None).lineage == restored.lineage, "a batch without mutations changes nothing"
    halves = {
        version_of(plan_subtask(base, part), part, BatchId(3)).lineage
        for part in (KeyGroupRange(0, 31), KeyGroupRange(32, 63))
    }
    assert len({restored.lineage, *halves}) == 3


@pytest.mark.parametrize("inherited", [True, False])
def test_a_plan_from_a_newer_checkpoint_has_the_operator_state_that_was_written_last(inherited: bool) -> None:
    own = KeyGroupRange(0, 63)
    in_checkpoint = [FileHandle(f"{index} in checkpoint", "p", 1, "0") for index in range(2)]
    snapshots = [
        msgspec.structs.replace(each, operator_state=file)
        for each, file in zip(at_parallelism(128, 2), in_checkpoint, strict=True)
    ]
    newer = FileHandle("newer", "p", 1, "0")
    restored = plan_subtask(OperatorHistory(operator_state=(FileHandle("old", "p", 1, "0"), None)), own)
    assert restored.operator_state.inherited
    plan = restored if inherited else restored.followed_by(written(2, FileHandle("own", "p", 1, "0")))
    rebased = plan.followed_by(changelog("kept", 3, own)).rebased(snapshots, 0, BatchId(3))
    assert rebased.operator_state.files == (tuple(in_checkpoint) if inherited else (in_checkpoint[0],))
    assert rebased.operator_state.inherited is inherited
    changed = plan.followed_by(written(4, newer)).followed_by(changelog("keyed", 5, own))
    rebased = changed.rebased(snapshots, 0, BatchId(3))
    assert (rebased.operator_state.files, rebased.operator_state.inherited) == ((newer,), False)
    assert [each.batch_id for each in rebased.changelogs] == [4, 5]
    assert rebased.snapshots == (snapshots[0],)


@pytest.mark.parametrize("earlier", [(), (None, None)], ids=["a first attempt", "an attempt without operator state"])
def test_a_subtask_without_operator_state_keeps_none_when_another_one_has_some_in_a_checkpoint(
    earlier: tuple[None, ...],
) -> None:
    of_other = FileHandle("of the other subtask", "p", 1, "0")
    first, second = at_parallelism(128, 2)
    snapshots = [first, msgspec.structs.replace(second, operator_state=of_other)]
    plan = plan_subtask(OperatorHistory(operator_state=earlier), KeyGroupRange(0, 63))
    operator_state = plan.rebased(snapshots, 0, BatchId(3)).operator_state
    assert (operator_state.files, operator_state.needs_redistribution) == ((None,), False)


def written(batch_id: int, operator_state: FileHandle) -> ChangelogHandle:
    made = changelog(f"batch {batch_id}", batch_id, KeyGroupRange(0, 63))
    return msgspec.structs.replace(made, operator_state=operator_state)


def test_a_plan_follows_the_commits_between_two_positions_of_the_log(tmp_path: Path) -> None:
    store, layout = LocalObjectStore(tmp_path), Layout(JobId("job"))
    uid, other = OperatorUid("count"), OperatorUid("other")

    def written(batch_id: int, subtask: int, state: FileHandle | None = None) -> ChangelogHandle:
        return ChangelogHandle(
            f"{batch_id}-{subtask}",
            1,
            "",
            ChangelogFormat.FRAMES,
            BatchId(batch_id),
            SubtaskIndex(subtask),
            0,
            7,
            mutations=1,
            operator_state=state,
        )

    state = FileHandle("operator-state", "state", 1, "")
    changed = {number: [written(number, 0), written(number, 1, state if number == 2 else None)] for number in range(4)}
    changed[1][1] = None  # type: ignore[call-overload]  # the subtask changed nothing
    log, position = CommitLog(store, layout), 1
    for number, handles in changed.items():
        position = log.append(position, BatchPlanned(Attempt(1), BatchId(number), {}))
        entry = BatchCommitted(Attempt(1), BatchId(number), {other: [written(9, 9)], uid: list(handles)}, {}, 0)
        position = log.append(position, entry)
    plan = RestorePlan(changelogs=(written(0, 1),))
    followed = followed_in_log(plan, store, layout, uid, SubtaskIndex(1), after=2, until=6)
    assert followed == RestorePlan(
        changelogs=(written(0, 1), written(2, 1, state)), operator_state=OperatorStatePlan((state,))
    )
    assert followed_in_log(plan, store, layout, uid, SubtaskIndex(1), after=6, until=6) == plan
    assert followed.last_batch_id == 2
    with pytest.raises(LogGapError):
        followed_in_log(plan, store, layout, uid, SubtaskIndex(1), after=2, until=9)
