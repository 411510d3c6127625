"""Changed declarations: which are accepted, which are refused, and that no value is misread."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import CorruptValueError, StateSchemaMismatchError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.schema import KeyedSchema

KEY = pa.schema([("key", pa.int64())])
PERSON = pa.struct([("name", pa.string()), ("age", pa.int32())])


def reopened(engine, backend):
    """Returns the backend of the next run, which knows the schema only from the manifest."""
    engine.write_runs(backend.drain())
    schema = msgspec.json.decode(msgspec.json.encode(backend.schema), type=KeyedSchema)
    return KeyedStateBackend(engine, KEY, schema=schema)


def value_of(backend, of_type):
    state = backend.state(ValueStateDescriptor("value", of_type))
    backend.set_current_key(1, (7,))
    return state


@pytest.mark.parametrize(
    ("old", "value", "new", "expected"),
    [
        (pa.int8(), -7, pa.int64(), -7),
        (pa.uint16(), 7, pa.uint64(), 7),
        (pa.int32(), 7, pa.float64(), 7.0),
        (pa.float32(), 1.5, pa.float64(), 1.5),
        (pa.decimal128(5, 2), Decimal("1.23"), pa.decimal128(12, 4), Decimal("1.2300")),
        (pa.decimal128(30, 2), Decimal("9" * 28 + ".25"), pa.decimal128(38, 4), Decimal("9" * 28 + ".2500")),
        (pa.decimal128(38, 0), Decimal("7" * 38), pa.decimal256(76, 38), Decimal("7" * 38 + "." + "0" * 38)),
        (pa.string(), "x", pa.large_string(), "x"),
        (
            PERSON,
            {"name": "x", "age": 3},
            pa.struct([*PERSON, pa.field("born", pa.date32())]),
            {"name": "x", "age": 3, "born": None},
        ),
        (PERSON, {"name": "x", "age": 3}, pa.struct([("age", pa.int64())]), {"age": 3}),
        (
            PERSON,
            {"name": "x", "age": None},
            pa.struct([("age", pa.float64()), ("name", pa.string())]),
            {"age": None, "name": "x"},
        ),
        (pa.list_(pa.int8()), [1, None], pa.list_(pa.int32()), [1, None]),
        (pa.list_(PERSON), [{"name": "x", "age": 1}], pa.list_(pa.struct([("age", pa.int64())])), [{"age": 1}]),
    ],
)  # fmt: skip
def test_a_compatible_type_reads_old_values_and_mixes_with_new_ones(old, value, new, expected):
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    value_of(backend, old).update(value)
    backend = reopened(engine, backend)
    state = value_of(backend, new)
    assert state.value() == expected
    backend.set_current_key(1, (8,))
    state.update(expected)
    backend = reopened(engine, backend)
    rows = value_of(backend, new).get_many(np.array([1, 1, 1]), pa.array([7, 8, 9]))
    assert rows.to_pylist() == [expected, expected, None]
    assert len(backend.schema.states[0].formats) == (1 if old == new or new == pa.large_string() else 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.uint32()),
        (pa.string(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.decimal128(10, 2), pa.decimal128(10, 4)),
        (PERSON, pa.struct([("name", pa.int64())])),
        (pa.list_(pa.int64()), pa.list_(pa.string())),
    ],
)
def test_an_incompatible_type_is_refused_with_both_schemas(old, new):
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    value_of(backend, old)
    with pytest.raises(StateSchemaMismatchError, match=r"stored as .* declared as"):
        value_of(reopened(engine, backend), new)


def test_going_back_to_an_earlier_type_is_refused_once_values_may_not_fit_it():
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    value_of(backend, pa.int32()).update(1)
    backend = reopened(engine, backend)
    value_of(backend, pa.int64()).update(2**40)
    with pytest.raises(StateSchemaMismatchError):
        value_of(reopened(engine, backend), pa.int32())


def test_a_dropped_field_that_is_declared_again_is_read_from_values_that_have_it():
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    value_of(backend, PERSON).update({"name": "x", "age": 3})
    backend = reopened(engine, backend)
    state = value_of(backend, pa.struct([("name", pa.string())]))
    backend.set_current_key(1, (8,))
    state.update({"name": "y"})
    state = value_of(reopened(engine, backend), PERSON)
    assert state.get_many(np.array([1, 1]), pa.array([7, 8])).to_pylist() == [
        {"name": "x", "age": 3},
        {"name": "y", "age": None},
    ]


@pytest.mark.parametrize(
    "declared",
    [
        ListStateDescriptor("map", pa.int64()),
        MapStateDescriptor("map", pa.int64(), pa.int64()),
        MapStateDescriptor("map", pa.string(), pa.int64(), namespace_type=pa.int64()),
    ],
)
def test_another_kind_map_key_or_namespace_is_refused(declared):
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    backend.state(MapStateDescriptor("map", pa.string(), pa.int64()))
    with pytest.raises(StateSchemaMismatchError):
        reopened(engine, backend).state(declared)


def test_keys_of_another_type_are_refused_and_other_names_are_not():
    schema = KeyedStateBackend(HeapEngine(), KEY).schema
    KeyedStateBackend(HeapEngine(), pa.schema([("renamed", pa.int64())]), schema=schema)
    with pytest.raises(StateSchemaMismatchError):
        KeyedStateBackend(HeapEngine(), pa.schema([("key", pa.string())]), schema=schema)


def test_a_value_of_a_format_that_the_schema_does_not_have_is_never_read():
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    value_of(backend, pa.int32()).update(1)
    backend = reopened(engine, backend)
    value_of(backend, pa.int64()).update(2)
    engine.write_runs(backend.drain())
    forgetful = KeyedStateBackend(engine, KEY)
    with pytest.raises(CorruptValueError):
        value_of(forgetful, pa.int32()).value()


def test_timestamps_come_back_in_their_zone():
    engine = HeapEngine()
    backend = KeyedStateBackend(engine, KEY)
    moment = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    value_of(backend, pa.timestamp("us", "UTC")).update(moment)
    assert value_of(reopened(engine, backend), pa.timestamp("us", "UTC")).value() == moment
