"""The key groups of an attempt's subtasks: kept, by size or by count; and the borders of key groups themselves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keyscale.identifiers import Attempt, BatchId, CheckpointId, JobId, OperatorUid
from keyscale.state.documents.manifest import Manifest, OperatorDeclaration, OperatorSnapshot, SnapshotKind
from keyscale.state.errors import KeyGroupError
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from keyscale.state.keys.key_groups import KeyGroupRange, key_group_range, subtask_for_key_group
from keyscale.state.restore.range_choice import chosen_ranges, key_group_weights, ranges_by_size, weights_of


def sized(*operators: tuple[Any, Any]) -> Manifest:
    """A snapshot whose operators have these entries and bytes of each key group."""
    return Manifest(
        JobId("job"),
        CheckpointId(1),
        SnapshotKind.CHECKPOINT,
        Attempt(1),
        BatchId(0),
        0,
        4,
        HashId.SPARK,
        0,
        tuple(
            OperatorSnapshot(OperatorUid(f"o{number}"), 1, OperatorDeclaration(), (), entries, size_bytes)
            for number, (entries, size_bytes) in enumerate(operators)
        ),
    )


UNKNOWN = (msgspec.UNSET, msgspec.UNSET)


@pytest.mark.parametrize(
    ("manifest", "weights"),
    [
        (None, [0, 0, 0, 0]),
        (sized(), [0, 0, 0, 0]),
        (sized(UNKNOWN), [0, 0, 0, 0]),
        (sized(((1, 1, 2, 0), (10, 0, 0, 30))), [80, 40, 80, 120]),
        (sized(((1, 1, 2, 0), (10, 0, 0, 30)), UNKNOWN, ((1, 2), (9, 9))), [80, 40, 80, 120]),
        (sized(((1, 0, 0, 0), (10, 0, 0, 0)), ((0, 1, 2, 0), (0, 0, 0, 30))), [80, 40, 80, 120]),
        (sized(((0, 0, 0, 0), (10, 0, 0, 30))), [10, 0, 0, 30]),
        (sized(((1, 0, 0, 3), (0, 0, 0, 0))), [1, 0, 0, 3]),
    ],
)
def test_entries_and_bytes_of_all_operators_weigh_the_same(manifest: Manifest | None, weights: list[int]) -> None:
    assert key_group_weights(manifest, 4) == weights


def test_all_bytes_weigh_as_much_as_all_entries() -> None:
    weights = weights_of([1, 3], [1_000, 0])
    assert weights == [1_000 * 4 + 1 * 1_000, 3 * 1_000]
    assert sum(weights) == 2 * 4 * 1_000


@pytest.mark.parametrize(
    ("weights", "starts"),
    [
        ([0, 0, 0, 0], (0, 2)),
        ([100, 0, 0, 0], (0, 2)),
        ([10, 0, 89, 1], (0, 2)),
        ([5, 5, 80, 10], (0, 2)),
        ([10, 10, 10, 70], (0, 3)),
        ([45, 55, 50, 50], (0, 2)),
        ([80, 20, 50, 50], (0, 2)),
        ([80, 21, 9, 0], (0, 1)),
    ],
)
def test_key_groups_are_divided_by_size_only_if_the_largest_subtask_has_a_tenth_less(
    weights: list[int], starts: tuple[int, ...]
) -> None:
    assert ranges_by_size(weights, 2).starts == starts


def test_a_gain_of_exactly_a_tenth_is_within_the_estimates() -> None:
    assert ranges_by_size([90, 10, 0, 0], 2).starts == (0, 2)
    assert ranges_by_size([89, 11, 0, 0], 2).starts == (0, 1)


def test_as_many_subtasks_keep_their_key_groups_whatever_their_sizes() -> None:
    kept = KeyGroupRanges(4, (0, 3))
    heavy = sized(((9, 9, 1, 1), (9, 9, 1, 1)))
    assert chosen_ranges(4, 2, kept=kept, sized=heavy) is kept
    assert chosen_ranges(4, 2, sized=heavy).starts == (0, 1)
    assert chosen_ranges(4, 2, kept=KeyGroupRanges(8, (0, 3))).starts == (0, 2), "of another number of key groups"
    assert chosen_ranges(4, 3, kept=kept, sized=heavy).starts[:2] == (0, 1)
    assert chosen_ranges(4, 2).is_by_count
    assert not kept.is_by_count
    for parallelism in (0, 5):
        with pytest.raises(KeyGroupError):
            chosen_ranges(4, parallelism, kept=kept)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (3, 2), (0, 32_768), (32_768, 32_768)])
def test_what_is_no_range_of_key_groups_is_refused(start: int, end: int) -> None:
    with pytest.raises(KeyGroupError, match=f"{start} to {end} is not a key group range"):
        KeyGroupRange(start, end)


def test_a_range_has_its_ends_and_the_stored_keys_between_them() -> None:
    whole = KeyGroupRange(0, 32_767)
    assert (whole.start_key, whole.end_key, len(whole)) == (b"\x00\x00", b"\x80\x00", 32_768)
    own = KeyGroupRange(2, 5)
    assert (own.start_key, own.end_key, list(own)) == (b"\x00\x02", b"\x00\x06", [2, 3, 4, 5])
    assert [group in own for group in (1, 2, 5, 6)] == [False, True, True, False]
    parts = {(0, 1): None, (0, 2): (2, 2), (3, 9): (3, 5), (6, 9): None, (0, 9): (2, 5)}
    found = {other: own.intersection(KeyGroupRange(*other)) for other in parts}
    assert {other: None if each is None else (each.start, each.end) for other, each in found.items()} == parts


@pytest.mark.parametrize("starts", [(), (1, 2), (0, 0), (0, 3, 2), (0, 4)])
def test_starts_that_do_not_divide_all_key_groups_are_refused(starts: tuple[int, ...]) -> None:
    with pytest.raises(KeyGroupError, match="do not divide 4 key groups"):
        KeyGroupRanges(4, starts)


def test_ranges_are_joined_and_asked_by_subtask_and_by_key_group() -> None:
    ranges = KeyGroupRanges.joined([KeyGroupRange(0, 0), KeyGroupRange(1, 3)])
    assert ranges == KeyGroupRanges(4, (0, 1))
    assert [ranges.range_of(index) for index in range(2)] == list(ranges) == [KeyGroupRange(0, 0), KeyGroupRange(1, 3)]
    assert [ranges.subtask_of(group) for group in range(4)] == [0, 1, 1, 1]
    assert ranges.largest([5, 1, 1, 1]) == 5
    for use in (
        lambda: ranges.range_of(2),
        lambda: ranges.range_of(-1),
        lambda: ranges.subtask_of(4),
        lambda: ranges.subtask_of(-1),
    ):
        with pytest.raises(KeyGroupError, match="does not exist"):
            use()
    for wrong in (
        [KeyGroupRange(0, 1), KeyGroupRange(1, 3)],
        [KeyGroupRange(0, 1), KeyGroupRange(3, 3)],
        [KeyGroupRange(1, 3)],
        [],
    ):
        with pytest.raises(KeyGroupError):
            KeyGroupRanges.joined(wrong)


@pytest.mark.parametrize(
    "use",
    [
        lambda: subtask_for_key_group(8, 8, 2),
        lambda: subtask_for_key_group(-1, 8, 2),
        lambda: subtask_for_key_group(0, 8, 9),
        lambda: key_group_range(8, 2, 2),
        lambda: key_group_range(8, 2, -1),
        lambda: key_group_range(32_769, 2, 0),
        lambda: key_group_range(8, 0, 0),
    ],
)
def test_a_key_group_or_subtask_out_of_bounds_is_refused(use: Any) -> None:
    with pytest.raises(KeyGroupError):
        use()
