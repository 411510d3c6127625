"""Key groups: ranges cover all of them once, routing is the inverse, and single keys and columns agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.state.errors import KeyGroupError
from keyscale.state.keys.key_groups import (
    KeyGroupRange,
    assign_to_key_group,
    assign_to_key_groups,
    key_group_range,
    murmur_hash,
    murmur_hashes,
    subtask_for_key_group,
)

PARALLELISMS = st.integers(1, 400).flatmap(lambda p: st.tuples(st.integers(p, 2000), st.just(p)))
INTS = st.integers(-(2**31), 2**31 - 1)


@given(PARALLELISMS)
def test_the_ranges_of_all_subtasks_cover_every_key_group_once(sizes):
    max_parallelism, parallelism = sizes
    ranges = [key_group_range(max_parallelism, parallelism, index) for index in range(parallelism)]
    assert [group for each in ranges for group in each] == list(range(max_parallelism))
    assert [len(each) for each in ranges] == [len(list(each)) for each in ranges]


@given(PARALLELISMS)
def test_routing_is_the_exact_inverse_of_the_ranges(sizes):
    max_parallelism, parallelism = sizes
    for index in range(parallelism):
        for group in key_group_range(max_parallelism, parallelism, index):
            assert subtask_for_key_group(group, max_parallelism, parallelism) == index


@given(st.lists(INTS), st.integers(1, 32768))
def test_many_codes_are_assigned_like_single_ones(codes, max_parallelism):
    array = np.array(codes, np.int32)
    assert murmur_hashes(array).tolist() == [murmur_hash(code) for code in codes]
    groups = assign_to_key_groups(array, max_parallelism).tolist()
    assert groups == [murmur_hash(code) % max_parallelism for code in codes]
    assert all(0 <= group < max_parallelism for group in groups)


@given(st.text(st.characters(exclude_categories=("Cs",))) | st.integers(-(2**63), 2**63 - 1) | st.booleans())
def test_a_key_alone_and_as_a_tuple_has_the_same_key_group(key):
    assert assign_to_key_group(key, 128) == assign_to_key_group((key,), 128)


@pytest.mark.parametrize("sizes", [(0, 1, 0), (128, 0, 0), (4, 5, 0), (128, 2, 2), (128, 2, -1), (32769, 1, 0)])
def test_sizes_out_of_bounds_are_refused(sizes):
    with pytest.raises(KeyGroupError):
        key_group_range(*sizes)


@given(st.tuples(st.integers(0, 50), st.integers(0, 50)), st.tuples(st.integers(0, 50), st.integers(0, 50)))
def test_the_intersection_of_two_ranges_has_the_key_groups_of_both(one, other):
    left, right = KeyGroupRange(min(one), max(one)), KeyGroupRange(min(other), max(other))
    both = left.intersection(right)
    assert set(both or ()) == set(left) & set(right)
