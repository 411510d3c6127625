"""The hash of a key in state is XXH64 of the key's stored form, for every type and length, and never changes."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.state.keys.key_hash import SEED, key_hashes, xxh64_matrix, xxh64_rows
from keyscale.state.serializers.key_columns import EncodedColumn
from keyscale.state.serializers.key_serializer import KeySerializer
from tests.support.repository import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Sequence

_GOLDEN = GOLDEN / "key-hash-v1.json"
_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [0, 1, -1, 2**63 - 1, None]),
    (pa.int32(), [0, 7, None]),
    (pa.string(), ["", "a", "ada", "0b7e1f0e-3c0a-4a53-9c0d-2f1f6d1b8a11", "ü" * 40, "nul\0inside", None]),
    (pa.binary(), [b"", b"\0", b"\xff" * 70]),
    (pa.float64(), [0.0, -0.0, 1.5, float("nan"), None]),
    (pa.bool_(), [True, False, None]),
    (pa.date32(), [dt.date(1970, 1, 1), dt.date(2024, 2, 29)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)]),
    (pa.decimal128(12, 2), [Decimal("0.00"), Decimal("-17.25")]),
    (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": None, "b": None}]),
]


def scalar_xxh64(raw: bytes, seed: int) -> int:
    """The published algorithm for a single byte string, with plain integers."""

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & _MASK

    def one_round(lane: int, word: int) -> int:
        return rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK

    def number(at: int, width: int) -> int:
        return int.from_bytes(raw[at : at + width], "little")

    at = 0
    if len(raw) >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at + 32 <= len(raw):
            lanes = [one_round(lane, number(at + 8 * place, 8)) for place, lane in enumerate(lanes)]
            at += 32
        code = sum(rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            code = ((code ^ one_round(0, lane)) * _P1 + _P4) & _MASK
    else:
        code = (seed + _P5) & _MASK
    code = (code + len(raw)) & _MASK
    while at + 8 <= len(raw):
        code = (rotated(code ^ one_round(0, number(at, 8)), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= len(raw):
        code = (rotated(code ^ (number(at, 4) * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in raw[at:]:
        code = rotated(code ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    code = (code ^ code >> 33) * _P2 & _MASK
    code = (code ^ code >> 29) * _P3 & _MASK
    return code ^ code >> 32


def hashes_of(items: Sequence[bytes], seed: int = SEED) -> list[int]:
    return xxh64_rows(EncodedColumn.of(items), seed).tolist()  # type: ignore[no-any-return]  # NumPy's tolist


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hashes_are_the_published_ones(raw: bytes, code: int) -> None:
    assert hashes_of([raw], 0) == [code]
    assert scalar_xxh64(raw, 0) == code


@given(st.lists(st.binary(max_size=100), max_size=30), st.integers(0, _MASK))
def test_a_column_is_hashed_like_its_rows(items: list[bytes], seed: int) -> None:
    assert hashes_of(items, seed) == [scalar_xxh64(item, seed) for item in items]


@given(st.integers(0, 80), st.integers(0, 6), st.data())
def test_a_column_of_fixed_width_is_hashed_like_one_of_variable_width(
    width: int, count: int, data: st.DataObject
) -> None:
    items = data.draw(st.lists(st.binary(min_size=width, max_size=width), min_size=count, max_size=count))
    matrix = np.frombuffer(b"".join(items), np.uint8).reshape(count, width)
    assert xxh64_matrix(matrix, SEED).tolist() == hashes_of(items)


@pytest.mark.parametrize(("of_type", "values"), KEYS, ids=lambda part: str(part)[:20])
def test_a_key_of_any_type_is_hashed_by_its_stored_form(of_type: pa.DataType, values: list[Any]) -> None:
    serializer = KeySerializer(pa.schema([("key", of_type)]))
    expected = [scalar_xxh64(serializer.encode((value,)), SEED) for value in values]
    assert key_hashes([pa.array(values, of_type)]).tolist() == expected
    sliced = pa.array([values[0], *values], of_type).slice(1)
    assert key_hashes([sliced, sliced]).tolist() == [
        scalar_xxh64(serializer.encode((value,)) * 2, SEED) for value in values
    ]


def test_the_hash_of_a_key_is_the_same_as_in_the_first_release() -> None:
    golden = json.loads(_GOLDEN.read_text())
    found = {
        str(of_type): [f"{code:016x}" for code in key_hashes([pa.array(values, of_type)])] for of_type, values in KEYS
    }
    assert found == golden
