"""Values of Python become values of a declared type without loss, or are refused in words without the value."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.errors import SerializationError, UnsupportedTypeError
from keyscale.state.serializers.arrow_columns import (
    canonical_floats,
    column_over,
    decimal_unscaled,
    fixed_values,
    valid_mask,
    variable_bytes,
)
from keyscale.state.serializers.conversions import column_of, converter
from keyscale.state.serializers.key_serializer import KeySerializer

DAY, MOMENT = dt.date(2026, 3, 4), dt.datetime(2026, 3, 4, 5, 6, 7)  # noqa: DTZ001 (a local time)
POINT = pa.struct([("x", pa.int8()), ("y", pa.string())])


@pytest.mark.parametrize(
    ("of_type", "value", "converted"),
    [
        (pa.bool_(), np.bool_(True), True),
        (pa.int8(), 127.0, 127),
        (pa.int8(), Decimal(-128), -128),
        (pa.uint8(), True, 1),
        (pa.uint8(), 255, 255),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.float64(), 2**53, float(2**53)),
        (pa.float32(), math.inf, math.inf),
        (pa.decimal128(4, 2), 12, Decimal("12.00")),
        (pa.decimal128(4, 2), Decimal("12.340"), Decimal("12.34")),
        (pa.binary(), "é", b"\xc3\xa9"),
        (pa.binary(2), bytearray(b"ab"), b"ab"),
        (pa.date32(), DAY, DAY),
        (pa.date32(), dt.datetime(2026, 3, 4), DAY),  # noqa: DTZ001
        (pa.timestamp("us", "UTC"), MOMENT, MOMENT.replace(tzinfo=dt.UTC)),
        (pa.timestamp("s"), MOMENT, MOMENT),
        (pa.timestamp("ms"), MOMENT.replace(microsecond=8000), MOMENT.replace(microsecond=8000)),
        (pa.time64("us"), dt.time(1, 2, 3, 4), dt.time(1, 2, 3, 4)),
        (pa.list_(pa.int8()), (1, None, 2.0), [1, None, 2]),
        (pa.map_(pa.string(), pa.int8()), {"a": 1.0, "b": None}, [("a", 1), ("b", None)]),
        (pa.map_(pa.string(), pa.int8()), [("a", 1), ["b", 2]], [("a", 1), ("b", 2)]),
        (POINT, {"y": None, "x": 1.0}, {"x": 1, "y": None}),
        (POINT, (1, "a"), {"x": 1, "y": "a"}),
    ],
)
def test_a_value_that_a_type_holds_without_loss_is_converted(of_type: pa.DataType, value: Any, converted: Any) -> None:
    assert converter(of_type)(value) == converted
    assert type(converter(of_type)(value)) is type(converted)


@pytest.mark.parametrize(
    ("of_type", "value", "words"),
    [
        (pa.bool_(), 1, "an int is not a value of type bool"),
        (pa.int8(), 128, "an int out of range"),
        (pa.int8(), -129, "an int out of range"),
        (pa.uint8(), -1, "an int out of range"),
        (pa.uint8(), 256, "an int out of range"),
        (pa.int8(), 1.5, "a float with a fraction"),
        (pa.int64(), math.nan, "a float that is not finite"),
        (pa.int64(), Decimal("Infinity"), "a Decimal that is not finite"),
        (pa.int64(), "1", "a str is not"),
        (pa.float64(), 2**53 + 1, "an int with more digits than the type"),
        (pa.float64(), 10**400, "an int out of range"),
        (pa.float32(), 1e39, "a float out of range"),
        (pa.float64(), Decimal(1), "a Decimal is not"),
        (pa.decimal128(4, 2), Decimal("1.234"), "a Decimal with more digits"),
        (pa.decimal128(4, 2), 100, "an int with more digits"),
        (pa.decimal128(4, 2), Decimal("NaN"), "a Decimal that is not finite"),
        (pa.string(), b"a", "a bytes is not"),
        (pa.binary(2), b"abc", "a bytes of 3 bytes"),
        (pa.binary(), "\ud800", "a str with a lone surrogate"),
        (pa.date32(), MOMENT, "a datetime with a time of day"),
        (pa.date32(), MOMENT.replace(tzinfo=dt.UTC), "a datetime is not"),
        (pa.timestamp("us"), MOMENT.replace(tzinfo=dt.UTC), "a datetime is not"),
        (pa.timestamp("s"), MOMENT.replace(microsecond=1), "a datetime with fractions of the type's unit"),
        (pa.timestamp("ms"), MOMENT.replace(microsecond=1), "a datetime with fractions of the type's unit"),
        (pa.time32("ms"), dt.time(1, 2, 3, 4), "a time is not"),
        (pa.duration("s"), "secret", "a str is not"),
        (pa.list_(pa.int8()), "12", "a str is not"),
        (pa.list_(pa.int8()), {1: 2}, "a dict is not"),
        (pa.list_(pa.int8()), 5, "an int is not"),
        (pa.map_(pa.string(), pa.int8()), [("a", 1, 2)], "a list of something else than pairs"),
        (pa.map_(pa.string(), pa.int8()), ["ab"], "a list of something else than pairs"),
        (POINT, (1,), "a tuple of 1 values"),
        (POINT, {"x": 1, "yy": "a"}, r"a dict without the field 'y' \(it has 'yy'\)"),
        (POINT, {"x": 1, "y": "a", "secret": 2}, "a dict with 1 field that the declaration lacks"),
        (POINT, {"x": 300, "y": "a"}, "field 'x': an int out of range"),
    ],
)
def test_a_value_that_a_type_would_change_is_refused_in_words(of_type: pa.DataType, value: Any, words: str) -> None:
    with pytest.raises(SerializationError, match=words) as refused:
        converter(of_type)(value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "of_type", "expected"),
    [
        (pa.chunked_array([[1, None], [2]], pa.int64()), pa.int8(), [1, None, 2]),
        (pa.array([1.0, None]), pa.int8(), [1, None]),
        (pa.array([dt.datetime(2026, 3, 4)], pa.timestamp("us")), pa.date32(), [DAY]),  # noqa: DTZ001
        (pa.array([1.5, math.inf]), pa.float32(), [1.5, math.inf]),
        (pa.array([{"x": 1, "y": "a"}]), POINT, [{"x": 1, "y": "a"}]),
        (pa.nulls(2), POINT, [None, None]),
        ([None, True, 2.0], pa.int16(), [None, 1, 2]),
    ],
)
def test_a_column_is_converted_as_its_values_are(values: Any, of_type: pa.DataType, expected: list[Any]) -> None:
    column = column_of(values, of_type)
    assert (column.type, column.to_pylist()) == (of_type, expected)


@pytest.mark.parametrize(
    ("values", "of_type", "words"),
    [
        (pa.array([1, 300]), pa.int8(), "an int out of range"),
        (pa.array([1e39]), pa.float32(), "a float out of range"),
        (pa.array([MOMENT]), pa.date32(), "with a time of day"),
        (pa.array(["1"]), pa.int8(), "a column of type string"),
        (pa.array([{"x": 1}]), POINT, "without the field 'y'"),
        ([b"\xff"], pa.string(), "a bytes is not"),
        (["a", "\ud800"], pa.string(), "one of these values of: str"),
    ],
)
def test_a_column_with_a_value_that_a_type_would_change_is_refused(
    values: Any, of_type: pa.DataType, words: str
) -> None:
    with pytest.raises(SerializationError, match=words):
        column_of(values, of_type)


# Arrow's buffers.


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([True, False, True, True]), [False, True, True]),
        (pa.array([9, 1, 2, 3], pa.uint16()), [1, 2, 3]),
        (pa.array([9, -1, 0, 1], pa.timestamp("s")), [-1_000_000, 0, 1_000_000]),
        (pa.array([9, -1, 999, 1001], pa.timestamp("ns", "UTC")), [-1, 0, 1]),
        (pa.array([9, 86_400_000, 0, -86_400_000], pa.date64()), [1, 0, -1]),
        (pa.array([9, 1, 0, -1], pa.date32()), [1, 0, -1]),
        (pa.array([Decimal(9), Decimal("1.5"), Decimal(0), Decimal("-0.1")], pa.decimal128(4, 1)), [15, 0, -1]),
    ],
)
def test_the_values_of_a_part_of_a_column_are_those_of_its_rows(column: pa.Array, expected: list[Any]) -> None:
    part = column.slice(1)
    assert fixed_values(part).tolist() == expected
    assert fixed_values(part.slice(3)).tolist() == []
    assert valid_mask(part) is None
    assert fixed_values(pa.nulls(2, column.type)).shape == (2,)


@pytest.mark.parametrize("of_type", [pa.decimal128(19, 0), pa.decimal256(5, 0), pa.string(), pa.list_(pa.int8())])
def test_a_column_without_values_of_64_bits_is_refused(of_type: pa.DataType) -> None:
    with pytest.raises(UnsupportedTypeError):
        fixed_values(pa.nulls(1, of_type))


@pytest.mark.parametrize("of_type", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(2)])
def test_null_rows_of_a_part_of_a_column_have_no_bytes(of_type: pa.DataType) -> None:
    column = pa.array([b"zz", b"ab", None, b"cd"] if "binary" in str(of_type) else ["zz", "ab", None, "cd"], of_type)
    part = column.slice(1)
    offsets, data = variable_bytes(part)
    found = [bytes(data[start:end]) for start, end in pairwise(offsets)]
    assert found == [b"ab", b"", b"cd"]
    mask = valid_mask(part)
    assert mask is not None
    assert mask.tolist() == [True, False, True]
    assert variable_bytes(part.slice(3))[0].tolist() == [0]


def test_floats_have_one_form_of_nan_and_of_zero() -> None:
    odd_nan = np.array([0xFFF8_0000_0000_0001], np.uint64).view(np.float64)[0]
    floats = canonical_floats(pa.array([odd_nan, -0.0, 1.5]))
    assert floats.view(np.uint64).tolist() == [0x7FF8_0000_0000_0000, 0, 0x3FF8_0000_0000_0000]


@pytest.mark.parametrize("values", [[True, False] * 5 + [True], [1, 2, 3], [1.5, -2.5]])
def test_numbers_are_a_column_over_the_same_values(values: list[Any]) -> None:
    assert column_over(np.array(values)).to_pylist() == values
    assert column_over(np.array(values)[::2]).to_pylist() == values[::2]


def test_a_decimal_is_rounded_half_up_to_its_scale_or_refused() -> None:
    of_type = pa.decimal128(4, 2)
    cases = {"1.005": 101, "-1.005": -101, "1.004": 100, "99.99": 9999, "0": 0}
    assert {text: decimal_unscaled(Decimal(text), of_type) for text in cases} == cases
    for refused in (Decimal("99.995"), Decimal(-100), Decimal("NaN"), Decimal("Infinity"), 1.5):
        with pytest.raises(SerializationError):
            decimal_unscaled(refused, of_type)


# Keys of several columns.


def test_keys_in_columns_have_the_stored_form_of_single_keys() -> None:
    serializer = KeySerializer(pa.schema([("id", pa.int64()), ("name", pa.string()), ("tag", pa.uuid())]))
    tags = [uuid.UUID(int=number) for number in (1, 2)]
    columns = [
        pa.chunked_array([[1], [None]], pa.int32()),
        pa.array(["a", "b"]),
        pa.array([tag.bytes for tag in tags], pa.binary(16)).cast(pa.uuid()),
    ]
    keys = [(1, "a", tags[0]), (None, "b", tags[1])]
    stored = serializer.encode_columns(columns).to_list()
    assert stored == [serializer.encode(key) for key in keys]
    assert [serializer.decode(b"xx" + each, 2) for each in stored] == [
        (key, 2 + len(each)) for key, each in zip(keys, stored, strict=True)
    ]


def test_keys_with_other_columns_are_refused() -> None:
    serializer = KeySerializer(pa.schema([("id", pa.int8()), ("name", pa.string())]))
    with pytest.raises(SerializationError, match="a key has 1 column instead of 2"):
        serializer.encode((1,))
    with pytest.raises(SerializationError, match="keys have 3 columns instead of 2"):
        serializer.encode_columns([pa.array([1])] * 3)
    with pytest.raises(SerializationError, match="a key column of type int64 cannot be cast to int8"):
        serializer.encode_columns([pa.array([300]), pa.array(["a"])])
