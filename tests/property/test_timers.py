"""Timers fire once each, in order of time per key, whatever is registered, deleted, drained and rescaled between."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import NoCurrentKeyError, SerializationError, StateSchemaMismatchError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import END_OF_TIME_MS
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.schema import KeyedSchema, TimersSchema, merge_schemas

KEY = pa.schema([("user", pa.string())])
KEYS = ["", "a", "b\0", "ü"]
TIMES = st.integers(-(2**40), 2**40) | st.integers(-3, 3)
STEPS = st.lists(
    st.tuples(st.sampled_from(["register", "delete"]), st.sampled_from(KEYS), TIMES)
    | st.tuples(st.sampled_from(["fire", "drain"]), st.just(""), TIMES),
    max_size=40,
)


def group_of(key: str) -> int:
    return len(key.encode()) * 7


@given(STEPS)
def test_exactly_the_registered_and_due_timers_fire(steps: list[tuple[str, str, int]]) -> None:
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    timers = backend.timers("_timers")
    expected: set[tuple[int, str]] = set()
    for what, key, at_ms in steps:
        if what == "drain":
            engine.write_runs(backend.drain())
            backend = KeyedStateBackend(engine, KEY)
            timers = backend.timers("_timers")
        elif what == "fire":
            fired = [(timer.timestamp_ms, timer.key[0]) for timer in timers.due(at_ms)]
            assert len(set(fired)) == len(fired)
            assert set(fired) == {timer for timer in expected if timer[0] <= at_ms}
            for each in KEYS:
                times = [time for time, name in fired if name == each]
                assert times == sorted(times)
            expected -= set(fired)
            assert timers.next_ms == min((time for time, _ in expected), default=None)
        else:
            backend.set_current_key(group_of(key), (key,))
            if what == "register":
                timers.register(at_ms)
                expected.add((at_ms, key))
            else:
                timers.delete(at_ms)
                expected.discard((at_ms, key))


def test_a_timer_that_a_firing_one_registers_fires_too_if_it_is_due() -> None:
    backend = KeyedStateBackend(HeapEngine(), KEY)
    timers = backend.timers("_timers")
    backend.set_current_key(1, ("a",))
    timers.register(10)
    fired = []
    for timer in timers.due(20):
        fired.append(timer.timestamp_ms)
        backend.set_current_key(timer.key_group, timer.key)
        if timer.timestamp_ms < 30:
            timers.register(timer.timestamp_ms + 5)
    assert fired == [10, 15, 20]
    assert timers.next_ms == 25


def test_at_the_end_of_time_each_timer_fires_once_even_if_it_registers_the_next_one() -> None:
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    timers = backend.timers("_timers")
    for key in ("a", "b"):
        backend.set_current_key(1, (key,))
        timers.register(10)
        engine.write_runs(backend.drain())
        timers.register(15)
    fired = []
    for timer in timers.due(END_OF_TIME_MS, registered_meanwhile=False):
        fired.append((timer.timestamp_ms, timer.key[0]))
        backend.set_current_key(timer.key_group, timer.key)
        timers.register(timer.timestamp_ms + 20)
    assert fired == [(10, "a"), (10, "b"), (15, "a"), (15, "b")]
    assert timers.next_ms == 30
    again = [(timer.timestamp_ms, timer.key[0]) for timer in timers.due(END_OF_TIME_MS, registered_meanwhile=False)]
    assert again == [(30, "a"), (30, "b"), (35, "a"), (35, "b")]
    assert timers.next_ms is None


def test_a_timer_that_fired_in_a_discarded_batch_fires_again() -> None:
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    timers = backend.timers("_timers")
    backend.set_current_key(1, ("a",))
    timers.register(10)
    engine.write_runs(backend.drain())
    assert [timer.timestamp_ms for timer in timers.due(20)] == [10]
    backend.discard()
    assert [timer.timestamp_ms for timer in timers.due(20)] == [10]
    engine.write_runs(backend.drain())
    assert list(timers.due(20)) == []


def test_only_key_groups_with_due_timers_are_read() -> None:
    class CountingEngine(HeapEngine):
        scans = 0

        def scan(self, *arguments: Any) -> Any:
            self.scans += 1
            return super().scan(*arguments)

    engine = CountingEngine()
    backend = KeyedStateBackend(engine, KEY)
    timers = backend.timers("_timers")
    for group in range(100):
        backend.set_current_key(group, ("a",))
        timers.register(1000 + group)
    engine.write_runs(backend.drain())
    assert list(timers.due(0)) == []
    engine.scans = 0
    assert list(timers.due(999)) == []
    assert engine.scans == 0
    assert [timer.key_group for timer in timers.due(1002)] == [0, 1, 2]
    assert engine.scans == 3


def test_namespaces_have_separate_timers() -> None:
    backend = KeyedStateBackend(HeapEngine(), KEY)
    timers = backend.timers("_timers", pa.int64())
    backend.set_current_key(1, ("a",))
    for namespace in (3, 1, 2):
        timers.register(10, namespace)
    timers.delete(10, 2)
    assert [timer.namespace for timer in timers.due(10)] == [1, 3]


def test_timers_need_a_key_and_a_name_of_their_own() -> None:
    backend = KeyedStateBackend(HeapEngine(), KEY)
    with pytest.raises(NoCurrentKeyError):
        backend.timers("_timers").register(1)
    with pytest.raises(StateSchemaMismatchError):
        backend.timers("_timers", pa.int64())
    with pytest.raises(StateSchemaMismatchError):
        backend.state(ValueStateDescriptor("_timers", pa.int64()))


def test_stored_timers_of_another_namespace_type_are_refused_and_the_error_shows_both() -> None:
    engine = HeapEngine()
    before = KeyedStateBackend(engine, KEY)
    before.timers("windows", pa.int64())
    schema = msgspec.json.decode(msgspec.json.encode(before.schema), type=KeyedSchema)
    after = KeyedStateBackend(engine, KEY, schema=schema)
    with pytest.raises(StateSchemaMismatchError, match=r"namespaces of int64, declared as .* of string"):
        after.timers("windows", pa.string())
    with pytest.raises(StateSchemaMismatchError):
        after.timers("windows")
    with pytest.raises(StateSchemaMismatchError, match="name of timers"):
        after.state(ValueStateDescriptor("windows", pa.int64()))
    assert after.timers("windows", pa.int64()).next_ms is None
    assert after.schema == schema


def test_a_schema_from_before_it_listed_timers_is_read_and_gets_declared_timers() -> None:
    old = msgspec.json.decode(b'{"key":[["user","string"]],"states":[],"version":1}', type=KeyedSchema)
    backend = KeyedStateBackend(HeapEngine(), KEY, schema=old)
    backend.timers("windows", pa.int64())
    assert backend.schema.timers_of("windows") == TimersSchema("windows", "int64")
    assert merge_schemas([old, backend.schema]) == merge_schemas([backend.schema, old]) == backend.schema
    other = KeyedStateBackend(HeapEngine(), KEY, schema=old)
    other.timers("windows")
    with pytest.raises(StateSchemaMismatchError):
        merge_schemas([backend.schema, other.schema])


@pytest.mark.parametrize("at_ms", [1.5, 2**63, "1", None])
def test_a_time_that_is_no_whole_number_of_64_bits_is_refused(at_ms: Any) -> None:
    backend = KeyedStateBackend(HeapEngine(), KEY)
    backend.set_current_key(1, ("a",))
    timers = backend.timers("_timers")
    with pytest.raises(SerializationError):
        timers.register(at_ms)


def test_a_whole_number_of_another_class_is_a_time() -> None:
    backend = KeyedStateBackend(HeapEngine(), KEY)
    backend.set_current_key(1, ("a",))
    timers = backend.timers("_timers")
    timers.register(np.int64(5))
    timers.register(5.0)
    assert [timer.timestamp_ms for timer in timers.due(10)] == [5]
