"""Timers fire once each, in order of time for every key, whatever is registered, deleted, drained and rescaled between."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.descriptors import ValueStateDescriptor
from state.errors import NoCurrentKeyError, StateSchemaMismatchError
from state.heap import HeapEngine
from state.keyed import KeyedStateBackend
from state.schema import KeyedSchema, TimersSchema
from state.schema_merge import merge_schemas

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
def test_what_fires_is_what_is_registered_and_due(steps: list[tuple[str, str, int]]) -> None:
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


def test_a_timer_that_is_registered_by_one_that_fires_is_given_if_it_is_due() -> None:
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


def test_namespaces_are_apart() -> None:
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
        backend.value_state(ValueStateDescriptor("_timers", pa.int64()))


def test_stored_timers_of_another_namespace_are_refused_with_both_in_the_error() -> None:
    engine = HeapEngine()
    before = KeyedStateBackend(engine, KEY)
    before.timers("windows", pa.int64())
    schema = msgspec.json.decode(msgspec.json.encode(before.schema), type=KeyedSchema)
    after = KeyedStateBackend(engine, KEY, schema=schema)
    with pytest.raises(StateSchemaMismatchError, match=r'"namespace":"int64".* declared as .*"namespace":"string"'):
        after.timers("windows", pa.string())
    with pytest.raises(StateSchemaMismatchError):
        after.timers("windows")
    with pytest.raises(StateSchemaMismatchError, match="name of timers"):
        after.value_state(ValueStateDescriptor("windows", pa.int64()))
    assert after.timers("windows", pa.int64()).next_ms is None
    assert after.schema == schema


def test_a_schema_from_before_timers_were_in_it_is_read_and_takes_what_is_declared() -> None:
    old = msgspec.json.decode(b'{"key":[["user","string"]],"states":[],"version":1}', type=KeyedSchema)
    backend = KeyedStateBackend(HeapEngine(), KEY, schema=old)
    backend.timers("windows", pa.int64())
    assert backend.schema.timers_of("windows") == TimersSchema("windows", "int64")
    assert merge_schemas([old, backend.schema]) == merge_schemas([backend.schema, old]) == backend.schema
    other = KeyedStateBackend(HeapEngine(), KEY, schema=old)
    other.timers("windows")
    with pytest.raises(StateSchemaMismatchError):
        merge_schemas([backend.schema, other.schema])
