"""Sizes per key group, from the facts of files, which a real store also reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from keyscale.state.engine.engine import SortedRun
from keyscale.state.engine.key_group_sizes import (
    FileFacts,
    KeyGroupSizes,
    LargeKeyGroup,
    counted_sizes,
    estimated_sizes,
)
from keyscale.state.engine.rocksdb import RocksDbEngine
from keyscale.state.keys.key_groups import KeyGroupRange

if TYPE_CHECKING:
    from pathlib import Path


def key(group: int) -> bytes:
    return group.to_bytes(2, "big") + b"key"


def test_a_file_of_one_key_group_counts_there_and_one_of_several_is_split_evenly() -> None:
    files = [FileFacts(key(4), key(4), 10, 100), FileFacts(key(4), key(6), 7, 300)]
    sizes = estimated_sizes([(KeyGroupRange(4, 7), files)], KeyGroupRange(4, 7))
    assert sizes == KeyGroupSizes((13, 2, 2, 0), (200, 100, 100, 0))


def test_an_estimate_names_key_groups_whose_own_files_have_twice_the_average() -> None:
    spread, mean = FileFacts(key(0), key(7), 10, 800), 200
    hot = [FileFacts(key(5), key(5), 9, 2 * mean), FileFacts(key(5), key(5), 9, 1), FileFacts(key(2), key(2), 9, 399)]
    sizes = estimated_sizes([(KeyGroupRange(0, 7), [spread, *hot])], KeyGroupRange(0, 7))
    assert sum(sizes.size_bytes) == 8 * mean
    assert sizes.largest == (LargeKeyGroup(5, 2 * mean + 1, None),)


def test_an_estimate_of_a_later_subtask_names_key_groups_by_their_own_numbers() -> None:
    files = [FileFacts(key(group), key(group), 3, size) for group, size in ((9, 10), (10, 500), (11, 10), (10, 500))]
    shards = [(KeyGroupRange(8, 9), files[:1]), (KeyGroupRange(10, 15), files[1:])]
    assert estimated_sizes(shards, KeyGroupRange(8, 15)) == KeyGroupSizes(
        (0, 3, 6, 3, 0, 0, 0, 0), (0, 10, 1000, 10, 0, 0, 0, 0), (LargeKeyGroup(10, 1000, None),)
    )


def test_an_estimate_of_files_that_share_key_groups_names_no_key_group() -> None:
    files = [FileFacts(key(0), key(3), 10, 400), FileFacts(key(3), key(7), 10, 400)]
    sizes = estimated_sizes([(KeyGroupRange(0, 7), files)], KeyGroupRange(0, 7))
    assert sizes.size_bytes[3] == max(sizes.size_bytes), "key group 3 looks the largest, as two files end there"
    assert sizes.largest == ()


def test_key_groups_outside_a_shards_range_do_not_count() -> None:
    files = [FileFacts(key(0), key(3), 40, 400)]
    sizes = estimated_sizes([(KeyGroupRange(2, 2), files), (KeyGroupRange(3, 3), [])], KeyGroupRange(2, 3))
    assert sizes == KeyGroupSizes((10, 0), (100, 0))


@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 10**6), st.integers(0, 10**9)), max_size=20
    )
)
def test_the_sums_over_key_groups_are_those_of_the_files(facts: list[tuple[int, int, int, int]]) -> None:
    files = [FileFacts(key(min(a, b)), key(max(a, b)), entries, size) for a, b, entries, size in facts]
    sizes = estimated_sizes([(KeyGroupRange(0, 15), files)], KeyGroupRange(0, 15))
    assert sum(sizes.entries) == sum(file.entries for file in files)
    assert sum(sizes.size_bytes) == sum(file.size_bytes for file in files)


def test_a_store_knows_how_many_entries_its_files_have(tmp_path: Path) -> None:
    engine = RocksDbEngine(tmp_path / "store")
    engine.write_runs([SortedRun("a", [key(group) for group in range(8)], [b"value"] * 8)])
    engine.flush()
    engine.write_runs([SortedRun("a", [key(0), key(1)], [b"value", None]), SortedRun("b", [key(2)], [b"value"])])
    engine.flush()
    whole = KeyGroupRange(0, 7)
    sizes = estimated_sizes([(whole, engine.files())], whole)
    engine.close()
    assert sum(sizes.entries) == 9, "8, of which one was overwritten and one deleted, and 1; a deletion takes one away"
    assert all(size > 0 for size in sizes.size_bytes)


def test_each_entry_is_counted_in_its_own_key_group() -> None:
    sizes = counted_sizes([(key(4), b"a"), (key(6), b"bc"), (key(6), b"")], KeyGroupRange(4, 7))
    assert sizes == KeyGroupSizes((1, 0, 2, 0), (6, 0, 12, 0), (LargeKeyGroup(6, 12, 2), LargeKeyGroup(4, 6, 1)))


def test_only_the_ten_largest_key_groups_are_named() -> None:
    sizes = counted_sizes([(key(group), b"x" * group) for group in range(20)], KeyGroupRange(0, 31))
    assert [each.key_group for each in sizes.largest] == list(range(19, 9, -1))
