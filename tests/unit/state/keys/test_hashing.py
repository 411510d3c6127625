"""Hash codes: golden vectors of Java, published ones of Spark, and equal results for single keys and columns."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from keyscale.state.errors import SerializationError, UnsupportedTypeError
from keyscale.state.keys.hashing import HashId, hash_code, hash_codes
from keyscale.state.keys.key_groups import murmur_hash, murmur_hashes
from keyscale.state.serializers.key_columns import encode_column
from tests.support.repository import GOLDEN

VECTORS_FILE = GOLDEN / "java-hash-v1.json"
TYPES = {
    "string": pa.string(),
    "int64": pa.int64(),
    "int32": pa.int32(),
    "int16": pa.int16(),
    "int8": pa.int8(),
    "bool": pa.bool_(),
    "double": pa.float64(),
    "float": pa.float32(),
    "decimal(38,2)": pa.decimal128(38, 2),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
}


def vectors(of_type):
    return [each for each in json.loads(VECTORS_FILE.read_text()) if each["type"] == of_type]


def decoded(of_type, value):  # noqa: PLR0911 (one branch a type)
    match of_type:
        case "double":
            return struct.unpack(">d", bytes.fromhex(value.zfill(16)))[0]
        case "float":
            return struct.unpack(">f", bytes.fromhex(value.zfill(8)))[0]
        case "decimal(38,2)":
            return Decimal(value)
        case "date":
            return dt.date.fromisoformat(value)
        case "timestamp":
            return dt.datetime.fromisoformat(value)
        case "binary":
            return bytes.fromhex(value)
        case _:
            return value


@pytest.mark.parametrize("of_type", TYPES)
def test_java_hash_codes_are_equal_to_those_of_java(of_type):
    found = vectors(of_type)
    values = [decoded(of_type, each["value"]) for each in found]
    # -0.0 is the same key as 0.0 here, and another one in Java.
    is_real = of_type in {"double", "float"}
    expected = [0 if is_real and value == 0 else each["hash"] for each, value in zip(found, values, strict=True)]
    assert found
    assert [hash_code((value,), (TYPES[of_type],), HashId.JAVA) for value in values] == expected
    assert hash_codes([pa.array(values, TYPES[of_type])], HashId.JAVA).tolist() == expected


def test_murmur_hash_is_flinks():
    found = vectors("murmur")
    assert [murmur_hash(each["value"]) for each in found] == [each["hash"] for each in found]


def test_a_code_whose_hash_would_be_the_smallest_int_hashes_to_zero_alone_and_in_a_column():
    code = -2_089_875_627  # the only one: it is scrambled to -2**31, which has no absolute value as an int
    assert murmur_hash(code) == 0
    assert murmur_hashes(np.array([code, 0], np.int32)).tolist() == [0, murmur_hash(0)]


@pytest.mark.parametrize(
    ("value", "of_type", "expected"),
    [  # from Spark: SELECT hash(...)
        ("a", pa.string(), 1485273170),
        ("Spark", pa.string(), 228093765),
        (1, pa.int32(), -559580957),
        (1, pa.int64(), -1712319331),
        (True, pa.bool_(), -559580957),
        (None, pa.string(), 42),
    ],
)
def test_spark_hash_codes_are_equal_to_those_of_spark(value, of_type, expected):
    assert hash_code((value,), (of_type,), HashId.SPARK) == expected
    assert hash_codes([pa.array([value], of_type)], HashId.SPARK).tolist() == [expected]


def test_several_java_columns_combine_as_in_flinks_tuples():
    first = hash_code(("a",), None, HashId.JAVA)
    second = hash_code((7,), None, HashId.JAVA)
    assert hash_code(("a", 7), None, HashId.JAVA) == 31 * first + second
    assert hash_codes([pa.array(["a"]), pa.array([7])], HashId.JAVA).tolist() == [31 * first + second]


def test_a_null_column_leaves_a_spark_hash_unchanged_and_counts_as_zero_in_java():
    assert hash_code((None, 5), (pa.string(), pa.int64()), HashId.SPARK) == hash_code((5,), None, HashId.SPARK)
    assert hash_code((None,), (pa.string(),), HashId.JAVA) == 0


def test_negative_zero_is_the_same_key_as_zero_and_has_its_hash():
    for of_type in (pa.float32(), pa.float64()):
        column = pa.array([-0.0, 0.0], of_type)
        assert len(set(encode_column(column).to_list())) == 1
        for form in HashId:
            codes = {hash_code((value,), (of_type,), form) for value in (-0.0, 0.0)}
            assert codes == set(hash_codes([column], form).tolist())
            assert len(codes) == 1


def test_every_nan_has_one_hash():
    other = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    for form in HashId:
        column = hash_codes([pa.array([math.nan, other])], form).tolist()
        assert column == [hash_code((math.nan,), None, form)] * 2


def test_hashes_of_rows_of_many_lengths_agree_with_hashes_of_single_keys():
    texts = ["é" * n + "x" for n in range(40)] + ["long " * 5000]
    column = pa.array(texts)
    for form in HashId:
        assert hash_codes([column], form).tolist() == [hash_code((text,), None, form) for text in texts]


def test_a_type_without_a_hash_is_refused_by_name():
    with pytest.raises(UnsupportedTypeError, match="map"):
        hash_codes([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], HashId.SPARK)
    with pytest.raises(UnsupportedTypeError, match="list"):
        hash_code(([1],), (pa.list_(pa.int64()),), HashId.JAVA)


def test_a_value_of_another_type_is_refused_and_not_shown_in_the_message():
    with pytest.raises(SerializationError) as caught:
        hash_code(("secret",), (pa.int64(),), HashId.SPARK)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("hash_id", HashId)
@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("nanoseconds", [-123_456_789, -1500, -1001, -1000, -999, -1, 0, 1, 999, 1500])
def test_nanoseconds_hash_alike_one_by_one_and_by_column_before_1970_too(
    hash_id: HashId, zone: str | None, nanoseconds: int
) -> None:
    column = pa.array([nanoseconds], pa.int64()).cast(pa.timestamp("ns", zone))
    assert hash_code((column[0].as_py(),), [column.type], hash_id) == hash_codes([column], hash_id)[0]


@pytest.mark.parametrize("hash_id", HashId)
def test_signalling_nans_hash_as_every_other_nan_and_warn_of_nothing(hash_id: HashId) -> None:
    doubles = np.array([0x7FF0000000000001, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    floats = np.array([0x7F800001, 0x7FC00001], np.uint32).view(np.float32)
    for column in (pa.array(doubles), pa.array(floats)):
        assert len(set(hash_codes([column], hash_id))) == 1
        assert len(set(encode_column(column).arrow().to_pylist())) == 1
