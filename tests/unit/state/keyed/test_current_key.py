"""The current key and namespace of keyed state, and the keys of a batch: what is refused, and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
)
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.keyed_state import SAMPLE_ROWS
from keyscale.state.keys.key_groups import KeyGroupRange

if TYPE_CHECKING:
    from collections.abc import Callable

IDS = pa.schema([("id", pa.int16())])
NAMES = pa.schema([("name", pa.string())])
OWN = KeyGroupRange(2, 5)
COUNT = ValueStateDescriptor("count", pa.int64())
IN_WINDOW = ValueStateDescriptor("in_window", pa.int64(), namespace_type=pa.int64())


def backend(schema: pa.Schema = IDS, **options: Any) -> KeyedStateBackend:
    return KeyedStateBackend(HeapEngine(), schema, key_group_range=OWN, **options)


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda keyed: keyed.set_current_key(1, (1,)), KeyGroupError, "key group 1 is not in 2 to 5"),
        (lambda keyed: keyed.set_current_key(6, (1,)), KeyGroupError, "key group 6 is not in 2 to 5"),
        (lambda keyed: keyed.set_current_key(2, (2**15,)), SerializationError, "int16"),
        (lambda keyed: keyed.set_current_key(2, (1, 2)), SerializationError, "2 columns instead of 1"),
        (lambda keyed: keyed.set_current_key(2, ("a",)), SerializationError, "int16"),
        (lambda keyed: keyed.current_key, NoCurrentKeyError, "no key is current"),
        (lambda keyed: keyed.state(COUNT).value(), NoCurrentKeyError, "'count' was used without a current key"),
        (lambda keyed: keyed.state(COUNT).set_current_namespace(1), DescriptorError, "declared without a namespace"),
        (lambda keyed: keyed.state(IN_WINDOW).set_current_namespace("a"), SerializationError, "int64"),
        (lambda keyed: keyed.timers("timers").register(1), NoCurrentKeyError, "'timers' were used without"),
    ],
)
def test_what_is_no_key_or_namespace_here_is_refused(
    use: Callable[[KeyedStateBackend], Any], error: type[Exception], words: str
) -> None:
    keyed = backend()
    with pytest.raises(error, match=words):
        use(keyed)
    assert keyed.current_key_group is None, "a refused key does not become the current one"


def test_a_key_at_each_end_of_the_range_is_current_until_it_is_unset() -> None:
    engine = HeapEngine()
    keyed = KeyedStateBackend(engine, IDS, key_group_range=OWN)
    count = keyed.state(COUNT)
    for group, key in ((2, -(2**15)), (5, 2**15 - 1), (5, None)):
        keyed.set_current_key(group, (key,))
        assert (keyed.current_key, keyed.current_key_group) == ((key,), group)
        count.update(group)
    keyed.clear_current_key()
    with pytest.raises(NoCurrentKeyError):
        count.update(1)
    engine.write_runs(keyed.drain())
    assert [(stored.key, value) for stored, value in keyed.dump("count")] == [
        ((-(2**15),), 2),
        ((None,), 5),
        ((2**15 - 1,), 5),
    ]


def test_a_state_in_a_namespace_has_a_value_for_each_and_none_before_one_is_set() -> None:
    keyed = backend()
    state = keyed.state(IN_WINDOW)
    keyed.set_current_key(2, (1,))
    with pytest.raises(NoCurrentKeyError, match="without a current namespace"):
        state.value()
    with pytest.raises(NoCurrentKeyError, match="without a current namespace"):
        state.get_many([2], [pa.array([1], pa.int16())])
    for namespace in (7, 8):
        state.set_current_namespace(namespace)
        state.update(10 * namespace)
    found = []
    for namespace in (7, 8, 9):
        state.set_current_namespace(namespace)
        found.append((state.value(), state.get_many([2, 2], [pa.array([1, 3], pa.int16())]).to_pylist()))
    assert found == [(70, [70, None]), (80, [80, None]), (None, [None, None])]


@pytest.mark.parametrize(
    ("groups", "keys", "words"),
    [
        ([1, 2], pa.array([1, 2], pa.int16()), "outside 2 to 5"),
        ([5, 6], pa.array([1, 2], pa.int16()), "outside 2 to 5"),
        ([2], pa.array([1, 2], pa.int16()), "1 key groups and 2 keys"),
        (pa.array([2, None], pa.int32()), pa.array([1, 2], pa.int16()), "rows without a key group"),
        (pa.chunked_array([[2], [None]], pa.int32()), pa.array([1, 2], pa.int16()), "rows without a key group"),
    ],
)
def test_a_batch_of_keys_that_is_not_the_subtasks_own_is_refused(groups: Any, keys: Any, words: str) -> None:
    with pytest.raises(KeyGroupError, match=words):
        backend().state(COUNT).get_many(groups, [keys])


def test_the_keys_of_a_batch_may_have_any_form_of_arrow() -> None:
    keyed = backend()
    count, column = keyed.state(COUNT), pa.array([7, 8], pa.int16())
    count.put_many(np.array([2, 5], np.int32), [column], pa.array([20, 50], pa.int64()))
    table = pa.table({"id": column})
    for groups in ([2, 5], pa.array([2, 5], pa.int8()), pa.chunked_array([[2], [5]], pa.int64())):
        for keys in (column, pa.chunked_array([[7], [8]], pa.int16()), table, table.to_batches()[0], [column]):
            assert count.get_many(groups, keys).to_pylist() == [20, 50]
    assert count.get_many([], [column.slice(2)]).to_pylist() == []


def test_a_key_that_is_too_large_is_refused_alone_and_named_in_a_batch() -> None:
    keyed = backend(NAMES)
    keyed.set_current_key(2, ("x",))
    with pytest.raises(KeyTooLargeError):
        keyed.set_current_key(3, ("x" * 70_000,))
    assert keyed.current_key == ("x",)
    ((row, error),) = keyed.large_keys([pa.array(["a", "y" * 70_000, None])])
    assert (row, type(error)) == (1, KeyTooLargeError)


@pytest.mark.parametrize("budget_rows", [40, 5_000])
def test_large_values_are_read_ahead_for_as_many_rows_as_the_memory_allows(budget_rows: int) -> None:
    value_bytes, rows = 8_000, 2 * SAMPLE_ROWS + 130
    blob, pages = ValueStateDescriptor("blob", pa.binary()), MapStateDescriptor("pages", pa.string(), pa.int64())
    engine = HeapEngine()
    ids, groups = pa.array(range(rows), pa.int16()), np.full(rows, 3, np.int32)
    names = [f"page {number % 7}" for number in range(rows)]
    first = KeyedStateBackend(engine, IDS, key_group_range=OWN)
    first.state(blob).put_many(groups, [ids], pa.array([b"%d" % row * 3_000 for row in range(rows)], pa.binary()))
    for (row,) in first.each_key(groups, [ids], [(row,) for row in range(rows)]):
        first.state(pages).put(names[row], row)
    engine.write_runs(first.drain())
    keyed = KeyedStateBackend(
        engine, IDS, key_group_range=OWN, schema=first.schema, memory_bytes=budget_rows * value_bytes
    )
    blobs, visits, seen = keyed.state(blob), keyed.state(pages), []
    for (row,) in keyed.each_key(groups, [ids], [(row,) for row in range(rows)], [pa.array(names)]):
        assert blobs.value() == b"%d" % row * 3_000
        assert visits.get(names[row]) == row
        assert keyed.current_key == (row,)
        visits.put("more", row + 1)
        seen.append(row)
    assert seen == list(range(rows))
    engine.write_runs(keyed.drain())
    keyed.set_current_key(3, (rows - 1,))
    assert dict(visits.items()) == {names[rows - 1]: rows - 1, "more": rows}
