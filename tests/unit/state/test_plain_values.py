"""The short ways of records give what the long ways give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.descriptors import MapStateDescriptor, ValueStateDescriptor
from state.errors import SerializationError
from state.formats import ValueFormats
from state.heap import HeapEngine
from state.keyed import KeyedStateBackend
from state.schema import register
from state.ttl import STAMP_MAX_MS, STAMP_MIN_MS, Ttl, is_expired

TIMES = st.integers(STAMP_MIN_MS, STAMP_MAX_MS)


@given(stamp_ms=TIMES, now_ms=TIMES, duration_ms=st.integers(1, STAMP_MAX_MS))
def test_bytes_tell_that_a_value_is_fresh_as_its_stamp_does(stamp_ms: int, now_ms: int, duration_ms: int) -> None:
    formats = ValueFormats(*register(None, ValueStateDescriptor("value", pa.int64(), Ttl(duration_ms))))
    first, end = formats.stamped_from(now_ms - duration_ms + 1)
    fresh = first <= formats.pack(7, stamp_ms) < end
    assert fresh == (not is_expired(stamp_ms, duration_ms, now_ms))


def test_a_null_is_never_told_fresh_by_its_bytes() -> None:
    formats = ValueFormats(*register(None, ValueStateDescriptor("value", pa.int64(), Ttl(1))))
    first, end = formats.stamped_from(STAMP_MIN_MS)
    assert not first <= formats.pack(None, 0) < end


def test_a_map_key_of_another_type_is_refused_though_an_equal_one_is_known() -> None:
    backend = KeyedStateBackend(HeapEngine(), pa.schema([("key", pa.int64())]))
    counts = backend.map_state(MapStateDescriptor("counts", pa.int64(), pa.int64()))
    backend.set_current_key(1, (1,))
    counts.put(1, 10)
    with pytest.raises(SerializationError):
        counts.get(1.0)


@pytest.mark.parametrize("of_type", [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()])
def test_an_integer_key_is_stored_alike_for_a_record_and_for_a_batch(of_type: pa.DataType) -> None:
    info = np.iinfo(of_type.to_pandas_dtype())
    keys = [int(info.min), 0, 5, int(info.max)]
    backend = KeyedStateBackend(HeapEngine(), pa.schema([("key", of_type)]))
    value = backend.value_state(ValueStateDescriptor("value", pa.int64()))
    for key in keys:
        backend.set_current_key(300, (key,))
        value.update(key % 100)
    found = value.get_many(np.full(len(keys), 300), [pa.array(keys, of_type)])
    assert found.to_pylist() == [key % 100 for key in keys]
    with pytest.raises(SerializationError):
        backend.set_current_key(300, (int(info.max) + 1,))
