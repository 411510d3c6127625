"""Serializers: values come back, keys keep their order, and columns are stored like single values."""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.state.errors import CorruptValueError, SerializationError
from keyscale.state.serializers.key_codecs import key_codec_for
from keyscale.state.serializers.key_columns import encode_column
from keyscale.state.serializers.key_serializer import KeySerializer
from keyscale.state.serializers.type_names import type_from_json, type_to_json
from keyscale.state.serializers.value_serializer import serializer_for
from tests.property.state_columns import KEYS, SCALARS, TEXT, UUID_TEXT, VALUES, typed

CANONICAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@given(st.data())
def test_every_value_comes_back_as_it_was(data):
    of_type, strategy = data.draw(typed(VALUES))
    value = data.draw(strategy)
    serializer = serializer_for(of_type)
    assert serializer.decode(b"xx" + serializer.encode(value), 2) == value


@given(st.data())
def test_a_column_is_stored_like_its_values_and_comes_back(data):
    of_type, strategy = data.draw(typed(VALUES))
    values = data.draw(st.lists(strategy, max_size=6))
    array = pa.array([None, *values], of_type)[1:]
    serializer = serializer_for(of_type)
    stored = serializer.encode_array(array)
    assert stored == [serializer.encode(value) for value in values]
    assert serializer.decode_array([*stored, None]).to_pylist() == [*array.to_pylist(), None]


@given(st.data())
def test_every_key_comes_back_and_delimits_itself(data):
    of_type, strategy = data.draw(typed(KEYS))
    value, rest = data.draw(st.none() | strategy), data.draw(st.binary(max_size=4))
    codec = key_codec_for(of_type)
    raw = codec.encode(value)
    assert codec.decode(b"xx" + raw + rest, 2) == (value, 2 + len(raw))
    if codec.width is not None and value is not None:
        assert len(raw) == codec.width


@given(st.data())
def test_stored_scalar_keys_have_the_order_of_the_values_with_null_first(data):
    of_type, strategy = data.draw(typed(SCALARS))
    values = data.draw(st.lists(strategy, min_size=2, max_size=8))

    def order(value):
        text = isinstance(value, str)
        return (not CANONICAL.fullmatch(value), value.encode()) if text else (False, value)

    codec = key_codec_for(of_type)
    for left, right in pairwise(sorted(values, key=order)):
        smaller, larger = codec.encode(left), codec.encode(right)
        assert smaller < larger if left != right else smaller == larger
        assert codec.encode(None) < smaller


@given(st.data())
def test_a_key_column_is_stored_like_its_values(data):
    of_type, strategy = data.draw(typed(KEYS))
    values = data.draw(st.lists(st.none() | strategy, max_size=8))
    array = pa.array([None, *values], of_type)[1:]
    codec = key_codec_for(of_type)
    assert encode_column(array).to_list() == [codec.encode(value) for value in values]


@given(st.lists(st.tuples(st.none() | TEXT, st.integers(-9, 9), st.none() | UUID_TEXT), max_size=8))
def test_keys_of_several_columns_are_stored_as_their_parts_and_are_distinct(keys):
    serializer = KeySerializer(pa.schema([("a", pa.string()), ("b", pa.int32()), ("c", pa.string())]))
    columns = [pa.array([key[i] for key in keys], serializer.schema.field(i).type) for i in range(3)]
    stored = serializer.encode_columns(columns).to_list()
    assert stored == [serializer.encode(key) for key in keys]
    assert [serializer.decode(raw) for raw in stored] == [
        (key, len(raw)) for key, raw in zip(keys, stored, strict=True)
    ]
    assert len(set(stored)) == len(set(keys))


@given(UUID_TEXT)
def test_a_canonical_uuid_string_takes_17_bytes(text):
    assert len(key_codec_for(pa.string()).encode(text)) == 17


@given(st.lists(UUID_TEXT, min_size=1, max_size=4), st.data())
def test_a_column_of_uuids_and_one_similar_string_is_stored_like_its_values(uuids, data):
    place, at = data.draw(st.integers(0, len(uuids) - 1)), data.draw(st.integers(0, 35))
    other = data.draw(st.sampled_from(["-", "0", "9", "a", "f", "A", "F", "g", "/", ":", "@", "`", " ", "~"]))
    column = [*uuids[:place], uuids[place][:at] + other + uuids[place][at + 1 :], *uuids[place + 1 :]]
    codec = key_codec_for(pa.string())
    assert encode_column(pa.array(["skipped", *column])[1:]).to_list() == [codec.encode(value) for value in column]


@given(st.text(st.characters(categories=("Cs",)), min_size=1, max_size=3))
def test_a_string_that_is_not_valid_unicode_is_refused(text):
    with pytest.raises(SerializationError):
        key_codec_for(pa.string()).encode(text)


@given(st.data())
def test_cut_bytes_are_never_read_as_a_key_of_fixed_width(data):
    of_type, strategy = data.draw(typed({t: s for t, s in SCALARS.items() if t == pa.string()}))
    raw = key_codec_for(of_type).encode(data.draw(strategy))
    with pytest.raises(CorruptValueError):
        key_codec_for(of_type).decode(raw[:-1], 0)


@given(st.sampled_from(list(VALUES)))
def test_a_type_comes_back_from_its_json(of_type):
    json = msgspec.json.decode(msgspec.json.encode(type_to_json(of_type)))
    assert type_from_json(json) == of_type


@pytest.mark.parametrize(
    ("of_type", "value"),
    [
        (pa.int8(), 128),
        (pa.int64(), "7"),
        (pa.string(), 7),
        (pa.bool_(), 1),
        (pa.struct([("a", pa.int8())]), {"b": 1}),
        (pa.struct([("a", pa.int8())]), {"a": 300}),
        (pa.list_(pa.string()), "text"),
        (pa.list_(pa.int64()), [1.5]),
    ],
)
def test_a_value_that_is_not_of_the_type_is_refused(of_type, value):
    with pytest.raises(SerializationError):
        serializer_for(of_type).encode(value)
