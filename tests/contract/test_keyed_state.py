"""One contract for every kind of keyed state, on both engines: the methods for the current key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import (
    DescriptorError,
    KeyGroupError,
    KeyTooLargeError,
    NoCurrentKeyError,
    SerializationError,
    StateSchemaMismatchError,
)
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keys.key_groups import KeyGroupRange
from tests.contract.keyed_store import AGGREGATING, KEY, LIST, MAP, REDUCING, VALUE


def test_a_value_is_absent_until_it_is_updated_and_after_it_is_cleared(store, step):
    value = store.backend.state(VALUE)
    store.backend.set_current_key(1, ("a",))
    assert value.value() is None
    value.update(5)
    step()
    assert value.value() == 5
    value.clear()
    step()
    assert value.value() is None


def test_updating_a_value_with_none_clears_it(store, step):
    value = store.backend.state(VALUE)
    store.backend.set_current_key(1, ("a",))
    value.update(5)
    step()
    value.update(None)
    step()
    assert value.value() is None
    store.commit()
    assert list(store.backend.dump("value")) == []


def test_keys_and_states_do_not_see_each_other(store, step):
    one = store.backend.state(VALUE)
    other = store.backend.state(ValueStateDescriptor("other", pa.int64()))
    for group, key, number in ((1, "a", 1), (2, "a", 2), (1, "b", 3), (1, None, 4)):
        store.backend.set_current_key(group, (key,))
        one.update(number)
    other.update(9)
    step()
    store.backend.set_current_key(1, ("a",))
    assert (one.value(), other.value()) == (1, None)
    store.backend.set_current_key(2, ("a",))
    assert one.value() == 2
    store.backend.set_current_key(1, (None,))
    assert (one.value(), other.value()) == (4, 9)


def test_a_value_of_another_type_is_refused_and_the_old_one_stays(store, step):
    value = store.backend.state(VALUE)
    store.backend.set_current_key(1, ("a",))
    value.update(5)
    step()
    with pytest.raises(SerializationError) as caught:
        value.update("secret")
    assert "secret" not in str(caught.value)
    assert value.value() == 5


def test_state_without_a_current_key_is_refused(store):
    value = store.backend.state(VALUE)
    with pytest.raises(NoCurrentKeyError):
        value.value()
    store.backend.set_current_key(1, ("a",))
    store.backend.clear_current_key()
    with pytest.raises(NoCurrentKeyError):
        value.update(1)
    with pytest.raises(NoCurrentKeyError):
        _ = store.backend.current_key


def test_discarding_changes_restores_the_previous_values(store):
    value, entries = store.backend.state(VALUE), store.backend.state(MAP)
    store.backend.set_current_key(1, ("a",))
    value.update(1)
    entries.put("x", 1)
    store.commit()
    value.update(2)
    entries.remove("x")
    entries.put("y", 2)
    store.backend.discard()
    assert value.value() == 1
    assert list(entries.items()) == [("x", 1)]
    assert store.backend.drain() == []


def test_a_map_distinguishes_null_from_absent(store, step):
    entries = store.backend.state(MAP)
    store.backend.set_current_key(1, ("a",))
    assert entries.is_empty()
    entries.put("x", None)
    entries.put(None, 7)
    step()
    assert entries.get("x") is None
    assert entries.contains("x")
    assert not entries.contains("y")
    assert entries.get(None) == 7
    assert not entries.is_empty()
    assert list(entries.items()) == [(None, 7), ("x", None)]


def test_a_map_iterates_in_the_stored_order_over_old_and_new_entries(store, step):
    entries = store.backend.state(MAP)
    store.backend.set_current_key(1, ("a",))
    entries.put_all({"d": 4, "b": 2})
    step()
    entries.put_all([("a", 1), ("b", 20), ("e", 5)])
    entries.remove("d")
    assert list(entries.items()) == [("a", 1), ("b", 20), ("e", 5)]
    assert list(entries.keys()) == ["a", "b", "e"]
    assert list(entries.values()) == [1, 20, 5]


def test_a_map_key_that_its_caller_changes_and_uses_again_is_another_key(store):
    descriptor = MapStateDescriptor("by_place", pa.struct([("row", pa.int64()), ("column", pa.int64())]), pa.string())
    state = store.backend.state(descriptor)
    store.backend.set_current_key(1, ("a",))
    place = {"row": 1, "column": 1}
    state.put(place, "first")
    assert state.get(place) == "first"
    place["column"] = 2
    state.put(place, "second")
    assert list(state.items()) == [({"row": 1, "column": 1}, "first"), ({"row": 1, "column": 2}, "second")]


def test_iterating_a_map_does_not_see_later_changes(store, step):
    entries = store.backend.state(MAP)
    store.backend.set_current_key(1, ("a",))
    entries.put_all({f"{n:03}": n for n in range(200)})
    step()
    entries.put("new", -1)
    seen = []
    for key, number in entries.items():
        seen.append((key, number))
        entries.remove(key)
        entries.put("z" + key, number)
        store.backend.set_current_key(2, ("other",))
        entries.put(key, 0)
        store.backend.set_current_key(1, ("a",))
    assert seen == [(f"{n:03}", n) for n in range(200)] + [("new", -1)]
    assert list(entries.keys()) == sorted(f"z{key}" for key, _ in seen)


def test_an_iteration_begins_when_it_is_called(store, step):
    entries = store.backend.state(MAP)
    store.backend.set_current_key(1, ("a",))
    entries.put("x", 1)
    step()
    items = entries.items()
    entries.put("y", 2)
    assert list(items) == [("x", 1)]


def test_clearing_a_map_removes_the_entries_of_its_key_only(store, step):
    entries = store.backend.state(MAP)
    for key in ("a", "b"):
        store.backend.set_current_key(1, (key,))
        entries.put_all({"x": 1, "y": 2})
    step()
    entries.put("z", 3)
    entries.clear()
    step()
    assert entries.is_empty()
    store.backend.set_current_key(1, ("a",))
    assert list(entries.keys()) == ["x", "y"]


class KeysOnlyEngine(HeapEngine):
    """Reads keys of many entries, and no values."""

    def scan(self, *_):
        pytest.fail("values are read")

    def scan_keys(self, family, start, end):
        return (key for key, _ in super().scan(family, start, end))


def test_keys_and_removals_of_many_entries_read_no_values():
    engine = KeysOnlyEngine()
    backend = KeyedStateBackend(engine, KEY)
    entries, elements = backend.state(MAP), backend.state(LIST)
    backend.set_current_key(1, ("a",))
    entries.put_all({"x": 1, "y": 2})
    elements.add_all(["p", "q"])
    engine.write_runs(backend.drain())
    assert list(entries.keys()) == ["x", "y"]
    entries.clear()
    elements.clear()
    engine.write_runs(backend.drain())
    assert (list(entries.keys()), engine.last_key("list", b"", b"\xff")) == ([], None)


def test_put_all_puts_nothing_if_one_entry_is_invalid(store):
    entries = store.backend.state(MAP)
    store.backend.set_current_key(1, ("a",))
    with pytest.raises(SerializationError):
        entries.put_all({"x": 1, "y": "text"})
    assert entries.is_empty()


def test_a_list_keeps_the_order_of_adding(store, step):
    elements = store.backend.state(LIST)
    store.backend.set_current_key(1, ("a",))
    assert elements.get() == []
    elements.add("x")
    elements.add_all(["y", "x"])
    step()
    elements.add("z")
    assert elements.get() == ["x", "y", "x", "z"]
    elements.update(["only"])
    step()
    elements.add("then")
    assert elements.get() == ["only", "then"]
    elements.update([])
    step()
    assert elements.get() == []
    elements.add("again")
    step()
    assert elements.get() == ["again"]


def test_a_long_list_keeps_its_order(store, step):
    elements = store.backend.state(LIST)
    store.backend.set_current_key(1, ("a",))
    for n in range(700):
        elements.add(str(n))
        if n % 100 == 99:
            step()
    assert elements.get() == [str(n) for n in range(700)]


def test_a_list_takes_no_null_and_stays_as_it_was(store):
    elements = store.backend.state(LIST)
    store.backend.set_current_key(1, ("a",))
    elements.add("x")
    for change in (
        lambda: elements.add(None),
        lambda: elements.add_all(["y", None]),
        lambda: elements.update(["y", 7]),
        lambda: elements.add_all(None),
        lambda: elements.update(None),
    ):
        with pytest.raises(SerializationError):
            change()
    assert elements.get() == ["x"]


def test_reducing_and_aggregating_combine_added_values(store, step):
    largest, average = store.backend.state(REDUCING), store.backend.state(AGGREGATING)
    store.backend.set_current_key(1, ("a",))
    assert (largest.get(), average.get()) == (None, None)
    for number in (3, 7, 5, None):
        largest.add(number)
        average.add(number)
        step()
    assert (largest.get(), average.get()) == (7, 5.0)
    largest.clear()
    average.clear()
    step()
    assert (largest.get(), average.get()) == (None, None)


def test_a_namespace_is_a_scope_of_its_own_under_a_key(store, step):
    windowed = store.backend.state(ValueStateDescriptor("windowed", pa.int64(), namespace_type=pa.int64()))
    store.backend.set_current_key(1, ("a",))
    with pytest.raises(NoCurrentKeyError):
        windowed.value()
    for window in (10, 20):
        windowed.set_current_namespace(window)
        windowed.update(window + 1)
    step()
    windowed.set_current_namespace(10)
    assert windowed.value() == 11
    assert windowed.get_many(np.array([1, 1]), pa.array(["a", "b"])).to_pylist() == [11, None]
    windowed.set_current_namespace(20)
    windowed.clear()
    store.commit()
    assert [(key.namespace, number) for key, number in store.backend.dump("windowed")] == [(10, 11)]


def test_namespaces_are_merged_into_one(store, step):
    count = store.backend.state(
        ReducingStateDescriptor("count", pa.int64(), lambda a, b: a + b, namespace_type=pa.int64())
    )
    seen = store.backend.state(ListStateDescriptor("seen", pa.string(), namespace_type=pa.int64()))
    store.backend.set_current_key(1, ("a",))
    for window in (1, 2, 3):
        for state, value in ((count, window), (seen, str(window))):
            state.set_current_namespace(window)
            state.add(value)
    step()
    count.merge_namespaces(2, [1, 2, 3])
    seen.merge_namespaces(2, [1, 2, 3])
    step()
    for window, total, elements in ((1, None, []), (2, 6, ["2", "1", "3"]), (3, None, [])):
        count.set_current_namespace(window)
        seen.set_current_namespace(window)
        assert (count.get(), seen.get()) == (total, elements)


def test_a_state_without_namespaces_refuses_one(store):
    with pytest.raises(DescriptorError):
        store.backend.state(VALUE).set_current_namespace(1)


def test_the_same_declaration_gives_the_same_state_and_another_is_refused(store):
    assert store.backend.state(VALUE) is store.backend.state(ValueStateDescriptor("value", pa.int64()))
    with pytest.raises(StateSchemaMismatchError):
        store.backend.state(ValueStateDescriptor("value", pa.string()))
    with pytest.raises(StateSchemaMismatchError):
        store.backend.state(ListStateDescriptor("value", pa.int64()))


@pytest.mark.parametrize("is_declared", [False, True], ids=["removed first", "declared first"])
def test_a_removed_state_is_empty_at_once_and_can_be_used_in_the_same_batch(store, step, is_declared):
    def declare(backend):
        return backend.state(VALUE), backend.state(LIST), backend.state(MAP)

    value, elements, entries = declare(store.backend)
    for group, key in ((1, "a"), (2, "b")):
        store.backend.set_current_key(group, (key,))
        value.update(1)
        elements.add_all(["x", "y"])
        entries.put_all({"m": 1, "n": 2})
    store.commit()
    later = KeyedStateBackend(store.engine, KEY, schema=store.backend.schema)
    if is_declared:
        declare(later)
    removed = [later.remove_state(name, None) for name in ("value", "list", "map", "nothing")]
    assert removed == [2, 4, 4, 0]
    value, elements, entries = declare(later)
    later.set_current_key(1, ("a",))
    assert (value.value(), elements.get(), list(entries.items()), entries.get("m")) == (None, [], [], None)
    elements.add("z")
    entries.put("n", 3)
    store.backend = later
    step()
    assert (value.value(), elements.get(), list(entries.items())) == (None, ["z"], [("n", 3)])
    store.commit()
    assert [len(list(later.dump(name))) for name in ("value", "list", "map")] == [0, 1, 1]


def test_a_state_is_removed_part_by_part_if_it_must_be(store):
    value = store.backend.state(VALUE)
    for number in range(5):
        store.backend.set_current_key(number, ("a",))
        value.update(number)
    store.commit()
    assert store.backend.remove_state("value", 3) == 3
    store.commit()
    assert [entry for _, entry in store.backend.dump("value")] == [3, 4]


def test_timers_are_not_removed_as_a_state(store):
    store.backend.timers("alarms")
    with pytest.raises(StateSchemaMismatchError, match="timers"):
        store.backend.remove_state("alarms")


@pytest.mark.parametrize("name", ["", "default", "1st", "a b", "a/b", "é", "x" * 129])
def test_an_invalid_state_name_is_refused(name):
    with pytest.raises(DescriptorError):
        ValueStateDescriptor(name, pa.int64())


def test_a_key_group_of_another_subtask_is_refused(store):
    backend = KeyedStateBackend(store.engine, KEY, key_group_range=KeyGroupRange(2, 5))
    value = backend.state(VALUE)
    for group in (1, 6):
        with pytest.raises(KeyGroupError):
            backend.set_current_key(group, ("a",))
        with pytest.raises(KeyGroupError):
            value.get_many(np.array([3, group]), pa.array(["a", "b"]))


def test_a_key_that_is_too_long_is_refused(store):
    value, entries = store.backend.state(VALUE), store.backend.state(MAP)
    with pytest.raises(KeyTooLargeError):
        store.backend.set_current_key(1, ("x" * 70_000,))
    with pytest.raises(KeyTooLargeError):
        value.get_many(np.array([1]), pa.array(["x" * 70_000]))
    store.backend.set_current_key(1, ("a",))
    with pytest.raises(KeyTooLargeError):
        entries.put("x" * 70_000, 1)


def test_nothing_changed_drains_nothing(store):
    value = store.backend.state(VALUE)
    store.backend.set_current_key(1, ("a",))
    assert value.value() is None
    assert store.backend.pending_count == 0
    assert store.backend.drain() == []
