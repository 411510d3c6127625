"""The fast code paths for single records give the same results as the general ones."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import CorruptValueError, SerializationError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.formats import ValueFormats
from keyscale.state.keyed.stamp import STAMP_MAX_MS, STAMP_MIN_MS
from keyscale.state.keyed.ttl import Ttl, is_expired
from keyscale.state.serializers.value_serializer import serializer_for

if TYPE_CHECKING:
    from collections.abc import Callable

TIMES = st.integers(STAMP_MIN_MS, STAMP_MAX_MS)


@given(stamp_ms=TIMES, now_ms=TIMES, duration_ms=st.integers(1, STAMP_MAX_MS))
def test_the_check_of_bytes_agrees_with_the_stamp_on_whether_a_value_is_fresh(
    stamp_ms: int, now_ms: int, duration_ms: int
) -> None:
    formats = ValueFormats(ValueStateDescriptor("value", pa.int64(), Ttl(duration_ms)).stored(), 0)
    first, end = formats.stamped_from(now_ms - duration_ms + 1)
    fresh = first <= formats.pack(7, stamp_ms) < end
    assert fresh == (not is_expired(stamp_ms, duration_ms, now_ms))


def test_a_null_is_never_fresh_by_its_bytes() -> None:
    formats = ValueFormats(ValueStateDescriptor("value", pa.int64(), Ttl(1)).stored(), 0)
    first, end = formats.stamped_from(STAMP_MIN_MS)
    assert not first <= formats.pack(None, 0) < end


def test_a_map_key_of_another_type_is_refused_even_if_an_equal_one_is_cached() -> None:
    backend = KeyedStateBackend(HeapEngine(), pa.schema([("key", pa.int64())]))
    counts = backend.state(MapStateDescriptor("counts", pa.int64(), pa.int64()))
    backend.set_current_key(1, (1,))
    counts.put(1, 10)
    with pytest.raises(SerializationError):
        counts.get(1.0)


@pytest.mark.parametrize("of_type", [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()])
def test_an_integer_key_has_the_same_stored_form_for_a_record_and_for_a_batch(of_type: pa.DataType) -> None:
    info = np.iinfo(of_type.to_pandas_dtype())
    keys = [int(info.min), 0, 5, int(info.max)]
    backend = KeyedStateBackend(HeapEngine(), pa.schema([("key", of_type)]))
    value = backend.state(ValueStateDescriptor("value", pa.int64()))
    for key in keys:
        backend.set_current_key(300, (key,))
        value.update(key % 100)
    found = value.get_many(np.full(len(keys), 300), [pa.array(keys, of_type)])
    assert found.to_pylist() == [key % 100 for key in keys]
    with pytest.raises(SerializationError):
        backend.set_current_key(300, (int(info.max) + 1,))


class _Text(str):
    __slots__ = ()


class _Level(enum.IntEnum):
    HIGH = 3


FIELD_TYPES = [pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.uint32(), pa.float64(), pa.string()]
FIELD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 65), 1 << 65),
    st.integers(-130, 130),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals(),
    st.datetimes(),
    st.uuids(),
    st.sampled_from(
        [_Text("t"), _Level.HIGH, np.int64(3), np.float32(1.5), np.bool_(True), np.str_("n"), "\ud800", [1]]
    ),
)


def _encoded(encode: Callable[[Any], bytes], value: Any) -> bytes | None:
    try:
        return encode(value)
    except SerializationError:
        return None


@given(st.sampled_from(FIELD_TYPES), FIELD_VALUES)
def test_encoding_a_struct_in_one_step_gives_the_same_as_field_by_field(of_type: pa.DataType, value: Any) -> None:
    """Structs in a list are encoded field by field, after one byte of the list itself."""
    struct = pa.struct([("a b", of_type), ("other", pa.int64())])
    at_once, by_field = serializer_for(struct), serializer_for(pa.list_(struct))
    row = {"a b": value}
    encoded = _encoded(at_once.encode, row)
    whole = _encoded(lambda each: by_field.encode([each]), row)
    assert encoded == (None if whole is None else whole[1:])
    if encoded is not None:
        assert repr(at_once.decode(encoded, 0)) == repr(by_field.decode(whole or b"", 0)[0])  # NaN differs from itself


def test_a_struct_with_unknown_missing_or_too_many_fields_is_refused() -> None:
    serializer = serializer_for(pa.struct([("a", pa.int64()), ("b", pa.string())]))
    for wrong in ({"c": 1}, {"b": "x"}, {"a": 1, "b": "x", "c": 1}, (1, "x", 2), (1,), "ab", 7):
        with pytest.raises(SerializationError):
            serializer.encode(wrong)
    assert serializer.encode({"a": None, "b": "x"}) == serializer.encode((None, "x"))


ROWS = st.lists(
    st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(-5, 5), "b": st.none() | st.text(max_size=5)})
)


@given(ROWS)
def test_a_column_of_structs_is_stored_and_read_like_its_rows(rows: list[dict[str, Any] | None]) -> None:
    serializer = serializer_for(pa.struct([("a", pa.int32()), ("b", pa.string())]))
    payloads = serializer.encode_array(pa.array([None, *rows], serializer.type)[1:])
    stored = [None if row is None else payload for row, payload in zip(rows, payloads, strict=True)]
    assert stored == [None if row is None else serializer.encode(row) for row in rows]
    assert serializer.decode_array(stored).to_pylist() == rows


@pytest.mark.parametrize("damaged", [b"", b"\x91", b"\x91\x01", b"\x93\x01\xa1x\xc0", b"\x92\xa1x\xa1x", b"\x01"])
def test_a_column_with_a_damaged_row_is_refused(damaged: bytes) -> None:
    serializer = serializer_for(pa.struct([("a", pa.int32()), ("b", pa.string())]))
    with pytest.raises(CorruptValueError):
        serializer.decode_array([serializer.encode((1, "x")), damaged])


@pytest.mark.parametrize("names", [("a", "b"), ("a b", ""), ("class", "_x"), ("__init__", "b")])
def test_a_struct_with_any_field_names_is_read_as_it_was_written(names: tuple[str, str]) -> None:
    serializer = serializer_for(pa.struct([(names[0], pa.int64()), (names[1], pa.string())]))
    value = {names[0]: 1, names[1]: None}
    assert serializer.decode(b"?" + serializer.encode(value), 1) == value


def test_a_stored_struct_of_other_parts_is_corrupt() -> None:
    wide = serializer_for(pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    for of_type in (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.string())])):
        with pytest.raises(CorruptValueError):
            serializer_for(of_type).decode(wide.encode({"a": 1, "b": 2}), 0)
