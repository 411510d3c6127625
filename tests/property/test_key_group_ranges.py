"""The division of key groups by weight, compared with every possible division."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.documents.manifest import (
    Manifest,
    OperatorDeclaration,
    OperatorSnapshot,
    SnapshotHandle,
    SnapshotKind,
)
from keyscale.state.errors import KeyGroupError
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import KeyGroupRange, key_group_range, subtask_for_key_group
from keyscale.state.restore.range_choice import chosen_ranges

WEIGHTS = st.integers(0, 4) | st.integers(0, 2**60)


def weighted(most: int) -> st.SearchStrategy[tuple[list[int], int]]:
    return st.lists(WEIGHTS, min_size=1, max_size=most).flatmap(
        lambda weights: st.tuples(st.just(weights), st.integers(1, len(weights)))
    )


@settings(deadline=None)
@given(weighted(60))
def test_every_key_group_is_in_exactly_one_range_and_no_division_by_count_is_better(given_):
    weights, parallelism = given_
    ranges = KeyGroupRanges.balanced(weights, parallelism)
    assert len(ranges) == parallelism
    assert [group for own in ranges for group in own] == list(range(len(weights)))
    for index, own in enumerate(ranges):
        assert ranges.range_of(index) == own
        assert all(ranges.subtask_of(group) == index for group in own)
    assert KeyGroupRanges.joined(ranges) == ranges
    assert ranges.largest(weights) <= KeyGroupRanges.of_count(len(weights), parallelism).largest(weights)


@settings(deadline=None)
@given(weighted(9))
def test_no_division_has_a_smaller_largest_range(given_):
    weights, parallelism = given_
    divisions = combinations(range(1, len(weights)), parallelism - 1)
    best = min(KeyGroupRanges(len(weights), (0, *starts)).largest(weights) for starts in divisions)
    assert KeyGroupRanges.balanced(weights, parallelism).largest(weights) == best


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_division_by_count_is_flinks(max_parallelism, wanted):
    parallelism = min(max_parallelism, wanted)
    ranges = KeyGroupRanges.of_count(max_parallelism, parallelism)
    assert ranges.is_by_count
    assert list(ranges) == [key_group_range(max_parallelism, parallelism, index) for index in range(parallelism)]
    owners = [subtask_for_key_group(group, max_parallelism, parallelism) for group in range(max_parallelism)]
    assert [ranges.subtask_of(group) for group in range(max_parallelism)] == owners


def test_even_weights_are_divided_evenly():
    assert KeyGroupRanges.balanced([3] * 128, 4) == KeyGroupRanges.of_count(128, 4)
    assert KeyGroupRanges.balanced([9, 1, 1, 1, 0, 0], 2).starts == (0, 1)
    assert KeyGroupRanges.balanced([5, 0, 0, 0, 0, 0, 0, 5], 4).largest([5, 0, 0, 0, 0, 0, 0, 5]) == 5


@pytest.mark.parametrize(("max_parallelism", "starts"), [(4, ()), (4, (1,)), (4, (0, 0)), (4, (0, 4)), (0, (0,))])
def test_starts_that_do_not_divide_all_key_groups_are_refused(max_parallelism, starts):
    with pytest.raises(KeyGroupError):
        KeyGroupRanges(max_parallelism, starts)


@pytest.mark.parametrize("ranges", [[], [(1, 3)], [(0, 1), (1, 3)], [(0, 0), (2, 3)]])
def test_ranges_that_miss_or_double_a_key_group_are_not_joined(ranges):
    with pytest.raises(KeyGroupError):
        KeyGroupRanges.joined(KeyGroupRange(*each) for each in ranges)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_missing_subtask_or_key_group_is_refused(index):
    ranges = KeyGroupRanges(2, (0, 1))
    with pytest.raises(KeyGroupError):
        ranges.range_of(index)
    with pytest.raises(KeyGroupError):
        ranges.subtask_of(index)


def snapshot(sizes: list[int], entries: list[int], limits: KeyGroupRanges) -> Manifest:
    subtasks = tuple(
        SnapshotHandle(SubtaskIndex(index), own.start, own.end, BatchId(1), "", ()) for index, own in enumerate(limits)
    )
    operator = OperatorSnapshot(
        OperatorUid("counts"), len(limits), OperatorDeclaration(), subtasks, tuple(entries), tuple(sizes)
    )
    kind = SnapshotKind.CHECKPOINT
    return Manifest(JobId("job"), CheckpointId(1), kind, Attempt(1), BatchId(1), 3, 8, HashId.SPARK, 0, (operator,))


def test_ranges_follow_the_sizes_of_a_snapshot_only_if_they_help():
    by_count = KeyGroupRanges.of_count(8, 2)
    skewed = snapshot([70, 20, 10, 10, 10, 10, 10, 10], [7, 2, 1, 1, 1, 1, 1, 1], by_count)
    assert chosen_ranges(8, 2, sized=skewed).starts == (0, 1)
    assert chosen_ranges(8, 2) == by_count
    assert chosen_ranges(8, 2, sized=snapshot([0] * 8, [0] * 8, by_count)) == by_count
    slightly = snapshot([11, 10, 10, 10, 9, 10, 10, 10], [1] * 8, by_count)
    assert chosen_ranges(8, 2, sized=slightly) == by_count


def test_bytes_weigh_as_much_as_entries():
    sized = snapshot([80, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 80], KeyGroupRanges.of_count(8, 2))
    assert chosen_ranges(8, 2, sized=sized) == KeyGroupRanges.of_count(8, 2)
    many_entries = snapshot([10] * 8, [10, 10, 10, 10, 500, 10, 10, 500], KeyGroupRanges.of_count(8, 2))
    assert chosen_ranges(8, 2, sized=many_entries).starts == (0, 5)


def test_as_many_subtasks_keep_their_ranges():
    kept = KeyGroupRanges(8, (0, 7))
    sized = snapshot([70, 10, 10, 10, 10, 10, 10, 10], [1] * 8, kept)
    assert sized.key_group_ranges == kept
    assert chosen_ranges(8, 2, kept=kept, sized=sized) == kept
    assert chosen_ranges(8, 3, kept=kept, sized=None) == KeyGroupRanges.of_count(8, 3)
