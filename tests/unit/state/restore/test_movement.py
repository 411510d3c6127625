"""The files that a change of parallelism gives to other subtasks, and how even the result is."""

from __future__ import annotations

import pytest

from keyscale.identifiers import BatchId, SubtaskIndex
from keyscale.state.documents.manifest import FileHandle, ShardHandle, SnapshotHandle
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import key_group_range
from keyscale.state.restore.movement import movements, skew

MAX_PARALLELISM = 16


def snapshots(parallelism):
    """One shard per subtask, of 100 bytes per key group."""
    found = []
    for index in range(parallelism):
        own = key_group_range(MAX_PARALLELISM, parallelism, index)
        size = 100 * (own.end - own.start + 1)
        shard = ShardHandle(own.start, own.end, (FileHandle("a", f"{index}/a", size, ""),))
        found.append(SnapshotHandle(SubtaskIndex(index), own.start, own.end, BatchId(1), "", (shard,)))
    return found


def test_without_a_change_every_subtask_opens_its_own_files():
    found = movements(snapshots(4), KeyGroupRanges.of_count(MAX_PARALLELISM, 4))
    assert len(found) == 4
    for each in found:
        assert (each.from_subtasks, each.other_bytes, each.state_bytes, each.clipped_shards) == (
            (each.index,),
            0,
            400,
            0,
        )


def test_scaling_out_shares_whole_shards_which_are_clipped():
    found = movements(snapshots(2), KeyGroupRanges.of_count(MAX_PARALLELISM, 4))
    assert [each.from_subtasks for each in found] == [(0,), (0,), (1,), (1,)]
    assert [each.other_bytes for each in found] == [0, 800, 800, 800]
    assert [(each.clipped_shards, each.files) for each in found] == [(1, 1)] * 4


def test_scaling_in_opens_several_shards_as_they_are():
    found = movements(snapshots(4), KeyGroupRanges.of_count(MAX_PARALLELISM, 2))
    assert [(each.from_subtasks, each.state_bytes, each.clipped_shards) for each in found] == [
        ((0, 1), 800, 0),
        ((2, 3), 800, 0),
    ]
    assert [(each.other_bytes, each.files) for each in found] == [(400, 2), (800, 2)]
    assert [(each.index, each.key_groups.start, each.key_groups.end) for each in found] == [(0, 0, 7), (1, 8, 15)]


def test_an_operator_without_state_moves_nothing():
    assert {each.state_bytes for each in movements([], KeyGroupRanges.of_count(MAX_PARALLELISM, 3))} == {0}


def test_skew_is_the_largest_subtask_by_the_mean():
    sizes = [100] * MAX_PARALLELISM
    assert skew(sizes, KeyGroupRanges.of_count(MAX_PARALLELISM, 4)).ratio == pytest.approx(1)
    sizes[5] = 900
    uneven = skew(sizes, KeyGroupRanges.of_count(MAX_PARALLELISM, 4))
    assert uneven.bytes_max == 1200
    assert (uneven.ratio, uneven.largest_key_group, uneven.largest_key_group_bytes) == (2, 5, 900)
    assert skew([0] * MAX_PARALLELISM, KeyGroupRanges.of_count(MAX_PARALLELISM, 4)) is None
