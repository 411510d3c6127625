"""One contract for every kind of keyed state, on both engines: the forms for whole batches of keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from state.errors import (
    SerializationError,
)
from tests.contract.keyed_store import AGGREGATING, LIST, MAP, REDUCING, VALUE, open_store

GROUPS = np.array([1, 2, 1, 3], np.int32)
KEYS = pa.array(["a", "b", "a", "c"])


@pytest.fixture(params=["heap", "rocksdb"])
def store(request, tmp_path):
    with open_store(request.param, tmp_path / "store") as opened:
        yield opened


@pytest.fixture(params=["same batch", "next batch"])
def step(request, store):
    """Called between what is written and what reads it: nothing, or the end of a batch."""
    return store.commit if request.param == "next batch" else lambda: None


def test_values_of_a_batch_are_written_and_read_by_row(store, step):
    value = store.backend.value_state(VALUE)
    value.put_many(GROUPS, KEYS, pa.array([1, 2, 3, None]))
    step()
    assert value.get_many(GROUPS, KEYS).to_pylist() == [3, 2, 3, None]
    assert value.contains_many(GROUPS, KEYS).tolist() == [True, True, True, False]
    store.backend.set_current_key(1, ("a",))
    assert value.value() == 3
    value.clear_many(GROUPS[:1], KEYS[:1])
    step()
    assert value.get_many(pa.array([1, 2]), pa.chunked_array([["a"], ["b"]])).to_pylist() == [None, 2]


def test_a_batch_sees_what_records_of_the_same_batch_wrote(store):
    value = store.backend.value_state(VALUE)
    value.put_many(GROUPS, KEYS, pa.array([1, 2, 3, 4]))
    store.backend.set_current_key(2, ("b",))
    assert value.value() == 2
    value.clear()
    assert value.insert_if_absent_many(GROUPS, KEYS, 9).tolist() == [False, True, False, False]
    assert value.get_many(GROUPS, KEYS).to_pylist() == [3, 9, 3, 4]


def test_inserting_if_absent_tells_each_keys_first_time(store, step):
    value = store.backend.value_state(VALUE)
    assert value.insert_if_absent_many(GROUPS, KEYS, 1).tolist() == [True, True, False, True]
    step()
    more = pa.array(["c", "a", "d", "d"])
    assert value.insert_if_absent_many(np.array([3, 1, 4, 4]), more, 2).tolist() == [False, False, True, False]
    step()
    assert value.get_many(np.array([3, 1, 4, 4]), more).to_pylist() == [1, 1, 2, 2]


def test_an_empty_batch_does_nothing(store):
    value, entries = store.backend.value_state(VALUE), store.backend.map_state(MAP)
    nothing, no_keys = np.array([], np.int32), pa.array([], pa.string())
    assert value.insert_if_absent_many(nothing, no_keys, 1).tolist() == []
    assert value.get_many(nothing, no_keys).to_pylist() == []
    value.put_many(nothing, no_keys, pa.array([], pa.int64()))
    entries.put_many(nothing, no_keys, no_keys, pa.array([], pa.int64()))
    assert store.backend.drain() == []


def test_distinct_keys_are_read_computed_and_written_at_once(store, step):
    value = store.backend.value_state(VALUE)
    value.put_many(GROUPS[:1], KEYS[:1], pa.array([100]))
    step()
    amounts = np.array([1, 2, 3, 4])

    def add(current, groups):
        totals = current.fill_null(0).to_numpy(zero_copy_only=False).copy()
        np.add.at(totals, groups, amounts)
        return pa.array(totals)

    assert value.update_many(GROUPS, KEYS, add).to_pylist() == [104, 2, 4]
    step()
    assert value.get_many(GROUPS, KEYS).to_pylist() == [104, 2, 104, 4]


def test_map_entries_of_a_batch_are_written_and_read_by_row(store, step):
    entries = store.backend.map_state(MAP)
    map_keys = pa.array(["x", "x", "y", "x"])
    entries.put_many(GROUPS, KEYS, map_keys, pa.array([1, 2, 3, None]))
    step()
    assert entries.get_many(GROUPS, KEYS, map_keys).to_pylist() == [1, 2, 3, None]
    assert entries.contains_many(GROUPS, KEYS, map_keys).all()
    store.backend.set_current_key(1, ("a",))
    assert list(entries.items()) == [("x", 1), ("y", 3)]
    inserted = entries.insert_if_absent_many(GROUPS, KEYS, pa.array(["x", "z", "z", "x"]), 8)
    assert inserted.tolist() == [False, True, True, False]
    assert list(entries.items()) == [("x", 1), ("y", 3), ("z", 8)]
    entries.remove_many(GROUPS, KEYS, pa.array(["x"] * 4))
    step()
    assert list(entries.items()) == [("y", 3), ("z", 8)]


def test_distinct_map_entries_are_read_computed_and_written_at_once(store, step):
    entries = store.backend.map_state(MAP)
    map_keys = pa.array(["x", "x", "x", "y"])
    entries.put_many(GROUPS[:1], KEYS[:1], map_keys[:1], pa.array([100]))
    step()
    amounts = np.array([1, 2, 3, 4])

    def add(current, groups):
        totals = current.fill_null(0).to_numpy(zero_copy_only=False).copy()
        np.add.at(totals, groups, amounts)
        return pa.array([None if total == 2 else total for total in totals])

    assert entries.update_many(GROUPS, KEYS, map_keys, add).null_count == 1
    store.backend.set_current_key(1, ("a",))
    assert list(entries.items()) == [("x", 104)]
    step()
    assert entries.get_many(GROUPS, KEYS, map_keys).to_pylist() == [104, None, 104, 4]
    assert entries.contains_many(GROUPS, KEYS, map_keys).tolist() == [True, False, True, True]


def test_list_elements_of_a_batch_are_added_in_the_order_of_rows(store, step):
    elements = store.backend.list_state(LIST)
    for part in (["1", "2", "3", "4"], ["5", "6", "7", "8"]):
        elements.add_many(GROUPS, KEYS, pa.array(part))
        step()
    expected = [["1", "3", "5", "7"], ["2", "6"], ["1", "3", "5", "7"], ["4", "8"]]
    assert elements.get_many(GROUPS, KEYS).to_pylist() == expected
    with pytest.raises(SerializationError):
        elements.add_many(GROUPS, KEYS, pa.array(["x", None, "y", "z"]))


def test_a_batch_is_folded_in_the_order_of_rows(store, step):
    largest, average = store.backend.reducing_state(REDUCING), store.backend.aggregating_state(AGGREGATING)
    for state in (largest, average):
        state.add_many(GROUPS, KEYS, pa.array([1, 2, 3, None]))
        step()
        state.add_many(GROUPS, KEYS, pa.array([5, 2, 3, None]))
        step()
    assert largest.get_many(GROUPS, KEYS).to_pylist() == [5, 2, 5, None]
    assert average.get_many(GROUPS, KEYS) == [3.0, 2.0, 3.0, None]
