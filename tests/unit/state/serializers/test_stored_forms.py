"""The bytes of stored keys and values, compared with a golden file: bytes once written stay readable."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.serializers.key_codecs import key_codec_for
from keyscale.state.serializers.value_serializer import serializer_for
from tests.support.repository import GOLDEN

GOLDEN = json.loads((GOLDEN / "stored-forms-v1.json").read_text())
UUID = "123e4567-e89b-12d3-a456-426614174000"
SAMPLES = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 0, 127]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "float": (pa.float32(), [-1.5, 0.0, 1.5]),
    "double": (pa.float64(), [-1.5, -0.0, 0.0, 1.5]),
    "string": (pa.string(), ["", "a", "\0\1\2", "é😀", UUID, UUID.upper()]),
    "binary": (pa.binary(), [b"", b"\0\1\xff"]),
    "date": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "timestamp": (pa.timestamp("us", "UTC"), [dt.datetime(2024, 2, 29, 12, 30, 0, 1, tzinfo=dt.UTC)]),
    "decimal": (pa.decimal128(12, 2), [Decimal("-256.00"), Decimal("-0.01"), Decimal("0.00"), Decimal("2.56")]),
    "uuid": (pa.uuid(), [uuid.UUID(UUID)]),
    "list": (pa.list_(pa.int32()), [[], [1, None, -1]]),
    "struct": (pa.struct([("a", pa.int8()), ("b", pa.string())]), [{"a": 1, "b": None}]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_stored_keys_and_values_have_not_changed(name):
    of_type, values = SAMPLES[name]
    codec, serializer = key_codec_for(of_type), serializer_for(of_type)
    assert [codec.encode(value).hex() for value in values] == GOLDEN[name]["keys"]
    assert [serializer.encode(value).hex() for value in values] == GOLDEN[name]["values"]
    assert [codec.decode(bytes.fromhex(raw), 0)[0] for raw in GOLDEN[name]["keys"]] == values
    assert [serializer.decode(bytes.fromhex(raw), 0) for raw in GOLDEN[name]["values"]] == values


def stored_entries():
    engine = HeapEngine()
    clock = BatchClock(processing_time_ms=1_700_000_000_000)
    backend = KeyedStateBackend(engine, pa.schema([("a", pa.string()), ("b", pa.int32())]), clock)
    value = backend.state(ValueStateDescriptor("value", pa.int64(), Ttl(1000)))
    windowed = backend.state(MapStateDescriptor("map", pa.string(), pa.int64(), namespace_type=pa.int64()))
    elements = backend.state(ListStateDescriptor("list", pa.string()))
    backend.set_current_key(258, ("k", -1))
    value.update(7)
    windowed.set_current_namespace(60)
    windowed.put_all({"x": 1, None: None})
    elements.add_all(map(str, range(3)))
    value.put_many(np.array([1]), [pa.array(["m"]), pa.array([2], pa.int32())], pa.array([8]))
    return [
        [run.family, key.hex(), raw.hex()]
        for run in backend.drain()
        for key, raw in zip(run.keys, run.values, strict=True)
    ]


def test_stored_entries_have_not_changed():
    assert stored_entries() == GOLDEN["entries"]
