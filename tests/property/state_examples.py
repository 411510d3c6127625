"""Random state of one kind: its declaration, its content, and a store that the state library has filled."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.inspection.state_table import shown_type
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
    def key_schema(self) -> pa.Schema:
        return pa.schema([(f"k{place}", of_type) for place, (of_type, _) in enumerate(self.key)])

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
def examples(draw: Callable[..., Any], keys: dict[pa.DataType, Any] = KEYS) -> Example:
    kind = draw(st.sampled_from(StateKind))
    key = draw(st.lists(typed(keys), min_size=1, max_size=2))
    namespace, map_key = draw(st.none() | typed(SCALARS)), draw(typed(SCALARS))
    value = draw(typed(VALUES))
    example = Example(kind, key, namespace, map_key, value, draw(st.none() | st.just(TTL)), {})
    whole = st.tuples(*(st.none() | values for _, values in key))
    scopes = st.none() if namespace is None else namespace[1]
    nullable = st.none() | value[1] if kind is StateKind.MAP else value[1]
    parts = st.lists(st.tuples(map_key[1], nullable), min_size=1, max_size=3)
    for one, scope, part in draw(st.lists(st.tuples(whole, scopes, parts), max_size=5)):
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


def written(
    example: Example, group_of: Callable[[int, tuple[Any, ...]], int] = lambda place, _: place
) -> tuple[HeapEngine, KeyedStateBackend]:
    """Returns a filled store; a key's group follows from its place in the content and the key."""
    engine, clock = HeapEngine(), BatchClock(processing_time_ms=5000)
    backend = KeyedStateBackend(engine, example.key_schema, clock)
    state: KeyedState = backend.state(example.descriptor)
    for place, (key, scope, content) in enumerate(example.content.values()):
        backend.set_current_key(group_of(place, key), key)
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


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Returns rows as sorted text; the entries of a nested map have no order."""

    def text(row: dict[str, Any]) -> str:
        value = row["value"]
        if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
            row = {**row, "value": sorted(value, key=repr)}
        return repr(sorted((name, each) for name, each in row.items() if name != "ttl_started_at"))

    return sorted(map(text, rows))
