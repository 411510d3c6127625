"""Random state of every kind and type, written by the state library, equals the rows of its table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import CorruptValueError
from keyscale.state.inspection import state_table
from keyscale.state.inspection.state_table import keyed_tables
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import END_OF_TIME_MS, BatchClock, TimeDomain
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.schema import StateKind
from keyscale.state.keyed.stamp import STAMP_MIN_MS
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.serializers.pickled import Pickled
from tests.property.histories import EXAMPLES
from tests.property.state_columns import SCALARS, typed
from tests.property.state_examples import Example, comparable, examples, shown, written


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


INTEGERS = {of_type: values for of_type, values in SCALARS.items() if pa.types.is_integer(of_type)}


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


@settings(max_examples=EXAMPLES)
@given(st.data(), st.lists(typed(INTEGERS), min_size=1, max_size=3))
def test_keys_of_integers_are_decoded_together_as_one_by_one(data: st.DataObject, columns: list[Any]) -> None:
    backend = KeyedStateBackend(
        engine := HeapEngine(), pa.schema([(f"k{at}", each) for at, (each, _) in enumerate(columns)])
    )
    state = backend.state(ValueStateDescriptor("s", pa.int64()))
    null = data.draw(st.booleans())
    for key in data.draw(st.sets(st.tuples(*(values for _, values in columns)), min_size=1, max_size=5)):
        backend.set_current_key(len(columns), (None, *key[1:]) if null else key)
        state.update(1)
    engine.write_runs(backend.drain())
    (table,) = keyed_tables(backend.schema)
    entries = list(engine.scan("s", b"", None))
    together = table.batch(entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_table, "decoded_integers", lambda *_: None)
        assert together == table.batch(entries)
    together.validate(full=True)


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


@pytest.mark.parametrize(("event_time_ms", "year"), [(STAMP_MIN_MS, 1), (END_OF_TIME_MS, 6429), (0, 1970)])
def test_the_start_of_a_ttl_before_all_dates_is_shown_as_the_first_date(event_time_ms: int, year: int) -> None:
    engine, clock = HeapEngine(), BatchClock(event_time_ms=event_time_ms)
    backend = KeyedStateBackend(engine, pa.schema([("user", pa.string())]), clock)
    backend.set_current_key(0, ("ada",))
    backend.state(ValueStateDescriptor("s", pa.int64(), Ttl(1, time_domain=TimeDomain.EVENT))).update(1)
    engine.write_runs(backend.drain())
    (table,) = keyed_tables(backend.schema)
    (batch,) = table.batches(engine.scan("s", b"", None))
    assert batch.to_pylist()[0]["ttl_started_at"].year == year


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
