"""The stored key: injective, ordered by its parts, and sorted and grouped in batches like single keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from keyscale.state.keys.stored_key import (
    KeyBatch,
    StoredKey,
    decode_index,
    encode_index,
    parse_stored_key,
    prefix_end,
    sort_rows,
)
from keyscale.state.serializers.key_codecs import key_codec_for
from keyscale.state.serializers.key_columns import encode_column
from keyscale.state.serializers.key_serializer import KeySerializer
from tests.property.state_columns import TEXT

GROUPS = st.integers(0, 32767)
KEYS = KeySerializer(pa.schema([("a", pa.string()), ("b", pa.int64())]))
WINDOW, MAP_KEY = key_codec_for(pa.int64()), key_codec_for(pa.string())
PARTS = st.tuples(GROUPS, TEXT, st.integers(-5, 5), st.integers(-5, 5), TEXT)


def stored(parts):
    group, text, number, window, map_key = parts
    return group.to_bytes(2, "big") + KEYS.encode((text, number)) + WINDOW.encode(window) + MAP_KEY.encode(map_key)


@given(PARTS, PARTS)
def test_different_parts_make_different_stored_keys_ordered_by_the_parts(left, right):
    assert (stored(left) == stored(right)) == (left == right)

    def by_parts(parts):
        group, text, number, window, map_key = parts
        return group, text.encode(), number, window, map_key.encode()

    assert (stored(left) < stored(right)) == (by_parts(left) < by_parts(right))


@given(PARTS)
def test_a_stored_key_is_parsed_into_its_parts(parts):
    group, text, number, window, map_key = parts
    assert parse_stored_key(stored(parts), KEYS, WINDOW, MAP_KEY) == StoredKey(group, (text, number), window, map_key)


@given(GROUPS, st.binary(max_size=6), st.binary(max_size=6))
def test_exactly_the_keys_with_a_prefix_are_before_its_end(group, prefix, key):
    prefix = group.to_bytes(2, "big") + prefix
    key = group.to_bytes(2, "big") + key
    assert (prefix <= key < prefix_end(prefix)) == key.startswith(prefix)


@given(st.integers(0, 2**80), st.integers(0, 2**80))
def test_list_indices_are_ordered_and_come_back(left, right):
    assert decode_index(encode_index(left)) == left
    assert (encode_index(left) < encode_index(right)) == (left < right)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3)), max_size=20))
def test_a_batch_of_keys_of_one_width_is_sorted_and_grouped(rows):
    check_batch(rows, pa.int64())


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.none() | st.sampled_from(["", "a", "b", "ab", "\0", "b" * 40])), max_size=20
    )
)
def test_a_batch_of_keys_of_many_widths_is_sorted_and_grouped(rows):
    check_batch(rows, pa.string())


def check_batch(rows, of_type):
    codec = key_codec_for(of_type)
    expected = [group.to_bytes(2, "big") + codec.encode(key) for group, key in rows]
    batch = KeyBatch.encode(
        np.array([group for group, _ in rows], np.int32), encode_column(pa.array([key for _, key in rows], of_type))
    )
    assert batch.rows() == expected
    assert batch.distinct == sorted(set(expected))
    assert [batch.distinct[place] for place in batch.groups] == expected
    assert batch.first_rows.tolist() == [expected.index(key) for key in batch.distinct]
    assert batch.last_rows.tolist() == [len(rows) - 1 - expected[::-1].index(key) for key in batch.distinct]


@given(st.integers(1, 20).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), min_size=1)))
def test_rows_of_one_width_are_sorted_stably_and_grouped(rows):
    rows += rows[::2]
    order, first = sort_rows(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), len(rows[0])))
    assert order.tolist() == sorted(range(len(rows)), key=lambda row: rows[row])
    ordered = [rows[row] for row in order]
    assert first.tolist() == [at == 0 or ordered[at] != ordered[at - 1] for at in range(len(rows))]
