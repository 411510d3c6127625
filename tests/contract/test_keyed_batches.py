"""One contract for every kind of keyed state, on both engines: the methods for whole batches of keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.errors import KeyTooLargeError, SerializationError, ValueTooLargeError
from keyscale.state.keyed import formats
from keyscale.state.keyed.descriptors import MapStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from tests.contract.keyed_store import AGGREGATING, LIST, MAP, REDUCING, VALUE

GROUPS = np.array([1, 2, 1, 3], np.int32)
KEYS = pa.array(["a", "b", "a", "c"])


def test_values_of_a_batch_are_written_and_read_by_row(store, step):
    value = store.backend.state(VALUE)
    value.put_many(GROUPS, KEYS, pa.array([1, 2, 3, None]))
    step()
    assert value.get_many(GROUPS, KEYS).to_pylist() == [3, 2, 3, None]
    assert value.contains_many(GROUPS, KEYS).tolist() == [True, True, True, False]
    store.backend.set_current_key(1, ("a",))
    assert value.value() == 3
    assert value.get_many(pa.array([1, 2]), pa.chunked_array([["a"], ["b"]])).to_pylist() == [3, 2]


def test_a_batch_sees_what_records_of_the_same_batch_wrote(store):
    value = store.backend.state(VALUE)
    value.put_many(GROUPS, KEYS, pa.array([1, 2, 3, 4]))
    store.backend.set_current_key(2, ("b",))
    assert value.value() == 2
    value.clear()
    assert value.insert_if_absent_many(GROUPS, KEYS, 9).tolist() == [False, True, False, False]
    assert value.get_many(GROUPS, KEYS).to_pylist() == [3, 9, 3, 4]


@pytest.mark.parametrize("earlier", [False, True])
def test_what_a_batch_of_keys_has_written_since_the_mark_is_undone(store, earlier):
    value = store.backend.state(VALUE)
    if earlier:
        value.put_many(GROUPS, KEYS, pa.array([1, 2, 1, 3]))
    store.backend.mark()
    value.put_many(GROUPS, KEYS, pa.array([7, 8, 7, 9]))
    store.backend.undo()
    expected = [1, 2, 1, 3] if earlier else [None] * 4
    assert value.get_many(GROUPS, KEYS).to_pylist() == expected
    store.commit()
    assert value.get_many(GROUPS, KEYS).to_pylist() == expected


def test_inserting_if_absent_returns_which_rows_were_first_with_their_key(store, step):
    value = store.backend.state(VALUE)
    assert value.insert_if_absent_many(GROUPS, KEYS, 1).tolist() == [True, True, False, True]
    step()
    more = pa.array(["c", "a", "d", "d"])
    assert value.insert_if_absent_many(np.array([3, 1, 4, 4]), more, 2).tolist() == [False, False, True, False]
    step()
    assert value.get_many(np.array([3, 1, 4, 4]), more).to_pylist() == [1, 1, 2, 2]


def test_an_empty_batch_does_nothing(store):
    value, entries = store.backend.state(VALUE), store.backend.state(MAP)
    nothing, no_keys = np.array([], np.int32), pa.array([], pa.string())
    assert value.insert_if_absent_many(nothing, no_keys, 1).tolist() == []
    assert value.get_many(nothing, no_keys).to_pylist() == []
    value.put_many(nothing, no_keys, pa.array([], pa.int64()))
    entries.put_many(nothing, no_keys, no_keys, pa.array([], pa.int64()))
    assert store.backend.drain() == []


def test_distinct_keys_are_read_computed_and_written_at_once(store, step):
    value = store.backend.state(VALUE)
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


@pytest.mark.parametrize("form", [list, np.array, pa.array])
def test_an_update_says_which_distinct_keys_are_written(store, step, form):
    value = store.backend.state(VALUE)
    value.put_many(GROUPS[:2], KEYS[:2], pa.array([100, 200]))
    step()

    def update(current, groups):
        assert (current.to_pylist(), groups.tolist()) == ([100, 200, None], [0, 1, 0, 2])
        return pa.array([101, None, None]), form([True, False, False])

    assert value.update_many(GROUPS, KEYS, update).to_pylist() == [101, None, None]
    step()
    assert value.get_many(GROUPS, KEYS).to_pylist() == [101, 200, 101, None]
    with pytest.raises(SerializationError, match="3 distinct keys, and the update names 2"):
        value.update_many(GROUPS, KEYS, lambda current, _: (current, form([True, True])))


def test_map_entries_of_a_batch_are_written_and_read_by_row(store, step):
    entries = store.backend.state(MAP)
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


def test_distinct_map_entries_are_read_computed_and_written_at_once(store, step):
    entries = store.backend.state(MAP)
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
    elements = store.backend.state(LIST)
    for part in (["1", "2", "3", "4"], ["5", "6", "7", "8"]):
        elements.add_many(GROUPS, KEYS, pa.array(part))
        step()
    expected = [["1", "3", "5", "7"], ["2", "6"], ["1", "3", "5", "7"], ["4", "8"]]
    assert elements.get_many(GROUPS, KEYS).to_pylist() == expected
    with pytest.raises(SerializationError):
        elements.add_many(GROUPS, KEYS, pa.array(["x", None, "y", "z"]))


def test_a_batch_is_folded_in_the_order_of_rows(store, step):
    largest, average = store.backend.state(REDUCING), store.backend.state(AGGREGATING)
    for state in (largest, average):
        state.add_many(GROUPS, KEYS, pa.array([1, 2, 3, None]))
        step()
        state.add_many(GROUPS, KEYS, pa.array([5, 2, 3, None]))
        step()
    assert largest.get_many(GROUPS, KEYS).to_pylist() == [5, 2, 5, None]
    assert average.get_many(GROUPS, KEYS) == [3.0, 2.0, 3.0, None]


def test_a_value_or_an_element_that_is_too_large_is_refused_in_a_batch_too(store, monkeypatch):
    monkeypatch.setattr(formats, "VALUE_BYTES_MAX", 100)
    text = store.backend.state(ValueStateDescriptor("text", pa.string()))
    longest = store.backend.state(ReducingStateDescriptor("longest", pa.string(), max))
    entries = store.backend.state(MapStateDescriptor("texts", pa.string(), pa.string()))
    elements = store.backend.state(LIST)
    large = pa.array(["x", None, "y" * 101, "z"])
    for write in (
        lambda: text.put_many(GROUPS, KEYS, large),
        lambda: text.update_many(GROUPS, KEYS, lambda current, _: large.take(pa.array(range(len(current))))),
        lambda: text.insert_if_absent_many(GROUPS, KEYS, "y" * 101),
        lambda: longest.add_many(GROUPS, KEYS, large),
        lambda: entries.put_many(GROUPS, KEYS, KEYS, large),
        lambda: elements.add_many(GROUPS, KEYS, large.fill_null("")),
    ):
        with pytest.raises(ValueTooLargeError):
            write()
    assert store.backend.drain() == []
    text.put_many(GROUPS, KEYS, pa.array(["x" * 100] * 4))
    assert text.get_many(GROUPS, KEYS).to_pylist() == ["x" * 100] * 4


def test_a_stored_key_that_is_too_long_is_refused_in_a_batch_too(store):
    keys = pa.array(["a", "x" * 65_531])
    groups = np.array([1, 2], np.int32)
    value, elements, entries = (
        store.backend.state(VALUE),
        store.backend.state(LIST),
        store.backend.state(MAP),
    )
    value.put_many(groups, keys, pa.array([1, 2]))  # the longest key that fits, with its group, tag and end
    store.backend.discard()
    for write in (
        lambda: elements.add_many(groups, keys, pa.array(["one", "two"])),
        lambda: elements.add_many(groups.repeat(300), keys.take(pa.array([0, 1] * 300)), pa.array(["one"] * 600)),
        lambda: entries.put_many(groups, keys, pa.array(["m", "n"]), pa.array([1, 2])),
    ):
        with pytest.raises(KeyTooLargeError):
            write()
        assert store.backend.drain() == []
