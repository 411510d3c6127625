"""Random state of every kind and type, written by the state library, equals the rows of its table."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import CorruptValueError
from keyscale.state.inspection import state_table
from keyscale.state.inspection.state_table import keyed_tables, shown_type
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from keyscale.state.keyed.schema import StateKind
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.serializers.pickled import Pickled
from tests.property.histories import EXAMPLES
from tests.property.state_columns import KEYS, SCALARS, VALUES, typed

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.state.keyed.descriptors import StateDescriptor
    from keyscale.state.keyed.keyed_state import KeyedState

TTL = Ttl(1000)


@dataclass(frozen=True)
class Newest:
    """Keeps the newest input, as a reduce function and as an aggregate."""

    def __call__(self, _: Any, right: Any, /) -> Any:
        return right

    def create_accumulator(self) -> None:
        return None

    def add(self, value: Any, _: Any, /) -> Any:
        return value

    def get_result(self, accumulator: Any, /) -> Any:
        return accumulator

    def merge(self, _: Any, right: Any, /) -> Any:
        return right


@dataclass
class Example:
    """A state's declaration, and its content by key and namespace."""

    kind: StateKind
    key: list[tuple[pa.DataType, Any]]
    namespace: tuple[pa.DataType, Any] | None
    map_key: tuple[pa.DataType, Any]
    value: tuple[pa.DataType, Any]
    ttl: Ttl | None
    content: dict[Any, tuple[tuple[Any, ...], Any, list[tuple[Any, Any]]]]

    @property
    def descriptor(self) -> StateDescriptor[Any]:
        of_type, scope = self.value[0], None if self.namespace is None else self.namespace[0]
        match self.kind:
            case StateKind.VALUE:
                return ValueStateDescriptor("s", of_type, self.ttl, scope)
            case StateKind.MAP:
                return MapStateDescriptor("s", self.map_key[0], of_type, self.ttl, scope)
            case StateKind.LIST:
                return ListStateDescriptor("s", of_type, self.ttl, scope)
            case StateKind.REDUCING:
                return ReducingStateDescriptor("s", of_type, Newest(), self.ttl, scope)
            case StateKind.AGGREGATING:
                return AggregatingStateDescriptor("s", of_type, Newest(), self.ttl, scope)


@st.composite
def examples(draw: Callable[..., Any]) -> Example:
    kind = draw(st.sampled_from(StateKind))
    key = draw(st.lists(typed(KEYS), min_size=1, max_size=2))
    namespace, map_key = draw(st.none() | typed(SCALARS)), draw(typed(SCALARS))
    value = draw(typed(VALUES))
    example = Example(kind, key, namespace, map_key, value, draw(st.none() | st.just(TTL)), {})
    keys = st.tuples(*(st.none() | values for _, values in key))
    scopes = st.none() if namespace is None else namespace[1]
    nullable = st.none() | value[1] if kind is StateKind.MAP else value[1]
    parts = st.lists(st.tuples(map_key[1], nullable), min_size=1, max_size=3)
    for one, scope, part in draw(st.lists(st.tuples(keys, scopes, parts), max_size=5)):
        if kind is StateKind.MAP:
            unique = {plain(name, map_key[0]): (name, each) for name, each in part}
            content = list(unique.values())
        elif kind is StateKind.LIST:
            content = [(place, each) for place, (_, each) in enumerate(part)]
        else:
            content = [(None, part[0][1])]
        example.content[plain(one, None), plain(scope, None)] = (one, scope, content)
    return example


def plain(value: Any, of_type: pa.DataType | None) -> Any:
    """Returns a value in a form that can be compared, and that tells -0.0, 0 and True apart."""
    return repr(value) if of_type is None else repr(pa.array([value], of_type).to_pylist())


def shown(value: Any, of_type: pa.DataType) -> Any:
    """Returns the value that a table shows."""
    if isinstance(value, uuid.UUID):
        value = str(value)
    return pa.array([value], shown_type(of_type)).to_pylist()[0]


def written(example: Example) -> tuple[HeapEngine, KeyedStateBackend]:
    engine, clock = HeapEngine(), BatchClock(processing_time_ms=5000)
    schema = pa.schema([(f"k{place}", of_type) for place, (of_type, _) in enumerate(example.key)])
    backend = KeyedStateBackend(engine, schema, clock)
    state: KeyedState = backend.state(example.descriptor)
    for place, (key, scope, content) in enumerate(example.content.values()):
        backend.set_current_key(place, key)
        if example.namespace is not None:
            state.set_current_namespace(scope)
        for name, value in content:
            put(example.kind, state, name, value)
    engine.write_runs(backend.drain())
    return engine, backend


def put(kind: StateKind, state: Any, name: Any, value: Any) -> None:
    if kind is StateKind.VALUE:
        state.update(value)
    elif kind is StateKind.MAP:
        state.put(name, value)
    else:
        state.add(value)


def expected(example: Example, *, nested: bool) -> list[dict[str, Any]]:
    rows = []
    for place, (key, scope, content) in enumerate(example.content.values()):
        row: dict[str, Any] = {
            "key": {f"k{at}": shown(each, example.key[at][0]) for at, each in enumerate(key)},
            "key_group": place,
        }
        if example.namespace is not None:
            row["namespace"] = shown(scope, example.namespace[0])
        values = [(name, shown(value, example.value[0])) for name, value in content]
        if example.kind is StateKind.MAP:
            values = [(shown(name, example.map_key[0]), value) for name, value in values]
        if nested and example.kind in {StateKind.MAP, StateKind.LIST}:
            is_map = example.kind is StateKind.MAP
            rows.append({**row, "value": values if is_map else [value for _, value in values]})
            continue
        name_of = {StateKind.MAP: "map_key", StateKind.LIST: "list_index"}.get(example.kind)
        for name, value in values:
            rows.append({**row, "value": value, **({} if name_of is None else {name_of: name})})
    return rows


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Returns rows as sorted text; the entries of a nested map have no order."""

    def text(row: dict[str, Any]) -> str:
        value = row["value"]
        if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
            row = {**row, "value": sorted(value, key=repr)}
        return repr(sorted((name, each) for name, each in row.items() if name != "ttl_started_at"))

    return sorted(map(text, rows))


@settings(max_examples=EXAMPLES * 3)
@given(examples(), st.booleans())
def test_the_rows_are_what_was_written(example: Example, nested: bool) -> None:
    engine, backend = written(example)
    (table,) = keyed_tables(backend.schema, nested=nested)
    batches = list(table.batches(engine.scan("s", b"", None)))
    rows = pa.Table.from_batches(batches, table.schema).to_pylist()
    assert comparable(rows) == comparable(expected(example, nested=nested))
    if example.ttl is not None and not (nested and example.kind in {StateKind.MAP, StateKind.LIST}):
        assert {row["ttl_started_at"].timestamp() for row in rows} <= {5.0}
    else:
        assert "ttl_started_at" not in table.schema.names


@settings(max_examples=EXAMPLES)
@given(examples())
def test_the_range_of_a_key_has_exactly_the_rows_of_the_key(example: Example) -> None:
    engine, backend = written(example)
    (table,) = keyed_tables(backend.schema)
    for place, (key, _, content) in enumerate(example.content.values()):
        entries = [each for each in engine.scan("s", *table.range_of(place, key)) if table.is_of(each[0], key)]
        assert len(entries) == len(content)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(st.text(max_size=3), st.integers(-(2**40), 2**40)), unique=True, max_size=8))
def test_timers_are_rows_and_are_found_by_their_key(timers: list[tuple[str, int]]) -> None:
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, pa.schema([("user", pa.string())]))
    queue = backend.timers("alarms", pa.int32())
    for key, at_ms in timers:
        backend.set_current_key(len(key), (key,))
        queue.register(at_ms, 7)
    engine.write_runs(backend.drain())
    (table,) = keyed_tables(backend.schema)
    rows = pa.Table.from_batches(table.batches(engine.scan("alarms", b"", None)), table.schema).to_pylist()
    assert sorted((row["key"]["user"], row["time_ms"], row["namespace"], row["key_group"]) for row in rows) == sorted(
        (key, at_ms, 7, len(key)) for key, at_ms in timers
    )
    for key, _ in timers:
        found = [raw for raw, _ in engine.scan("alarms", *table.range_of(len(key), (key,))) if table.is_of(raw, (key,))]
        assert len(found) == len([each for each, _ in timers if each == key])


def test_pickled_objects_stay_bytes_and_run_no_code() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("a pickle was loaded",))

    engine = HeapEngine()
    backend = KeyedStateBackend(engine, pa.schema([("user", pa.string())]))
    backend.set_current_key(0, ("ada",))
    backend.state(ValueStateDescriptor("model", Pickled())).update(Bomb())
    engine.write_runs(backend.drain())
    (table,) = keyed_tables(backend.schema)
    (batch,) = table.batches(engine.scan("model", b"", None))
    assert table.schema.field("value").type == pa.binary()
    assert b"a pickle was loaded" in batch["value"][0].as_py()


def test_batches_have_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, pa.schema([("user", pa.int64())]))
    state = backend.state(ValueStateDescriptor("text", pa.string()))
    for key in range(100):
        backend.set_current_key(0, (key,))
        state.update("x" * 100)
    engine.write_runs(backend.drain())
    (table,) = keyed_tables(backend.schema)
    monkeypatch.setattr(state_table, "BATCH_ROWS_MAX", 30)
    assert [each.num_rows for each in table.batches(engine.scan("text", b"", None))] == [30, 30, 30, 10]
    monkeypatch.setattr(state_table, "BATCH_BYTES_MAX", 1000)
    assert max(each.num_rows for each in table.batches(engine.scan("text", b"", None))) < 10


def test_a_damaged_entry_is_an_error() -> None:
    backend = KeyedStateBackend(HeapEngine(), pa.schema([("user", pa.int64())]))
    backend.state(ValueStateDescriptor("count", pa.int64()))
    (table,) = keyed_tables(backend.schema)
    with pytest.raises(CorruptValueError):
        list(table.batches([(b"\0\0\1", b"")]))
