"""Hash codes: golden vectors of real Java, published ones of Spark, and one answer from both forms."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from state.errors import SerializationError, UnsupportedTypeError
from state.hashing import HashId, hash_code, hash_codes
from state.key_groups import murmur_hash

GOLDEN = Path(__file__).parents[2] / "golden" / "java-hash-v1.json"
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
    return [each for each in json.loads(GOLDEN.read_text()) if each["type"] == of_type]


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
def test_java_hash_codes_are_those_of_real_java(of_type):
    found = vectors(of_type)
    values = [decoded(of_type, each["value"]) for each in found]
    expected = [each["hash"] for each in found]
    assert found
    assert [hash_code((value,), (TYPES[of_type],), HashId.JAVA) for value in values] == expected
    assert hash_codes([pa.array(values, TYPES[of_type])], HashId.JAVA).tolist() == expected


def test_murmur_hash_is_flinks():
    found = vectors("murmur")
    assert [murmur_hash(each["value"]) for each in found] == [each["hash"] for each in found]


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
def test_spark_hash_codes_are_those_of_real_spark(value, of_type, expected):
    assert hash_code((value,), (of_type,), HashId.SPARK) == expected
    assert hash_codes([pa.array([value], of_type)], HashId.SPARK).tolist() == [expected]


def test_several_java_columns_combine_as_flinks_tuples_do():
    first = hash_code(("a",), None, HashId.JAVA)
    second = hash_code((7,), None, HashId.JAVA)
    assert hash_code(("a", 7), None, HashId.JAVA) == 31 * first + second
    assert hash_codes([pa.array(["a"]), pa.array([7])], HashId.JAVA).tolist() == [31 * first + second]


def test_a_null_column_leaves_a_spark_hash_as_it_was_and_counts_zero_in_java():
    assert hash_code((None, 5), (pa.string(), pa.int64()), HashId.SPARK) == hash_code((5,), None, HashId.SPARK)
    assert hash_code((None,), (pa.string(),), HashId.JAVA) == 0


def test_negative_zero_hashes_as_zero_in_spark_only():
    assert hash_code((-0.0,), None, HashId.SPARK) == hash_code((0.0,), None, HashId.SPARK)
    assert hash_code((-0.0,), None, HashId.JAVA) != hash_code((0.0,), None, HashId.JAVA)


def test_every_nan_has_one_hash():
    other = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    for form in HashId:
        column = hash_codes([pa.array([math.nan, other])], form).tolist()
        assert column == [hash_code((math.nan,), None, form)] * 2


def test_rows_of_many_lengths_and_one_very_long_one_agree_with_the_form_for_one_key():
    texts = ["é" * n + "x" for n in range(40)] + ["long " * 5000]
    column = pa.array(texts)
    for form in HashId:
        assert hash_codes([column], form).tolist() == [hash_code((text,), None, form) for text in texts]


def test_a_type_without_a_hash_is_refused_by_name():
    with pytest.raises(UnsupportedTypeError, match="map"):
        hash_codes([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], HashId.SPARK)
    with pytest.raises(UnsupportedTypeError, match="list"):
        hash_code(([1],), (pa.list_(pa.int64()),), HashId.JAVA)


def test_a_value_of_another_type_is_refused_without_being_shown():
    with pytest.raises(SerializationError) as caught:
        hash_code(("secret",), (pa.int64(),), HashId.SPARK)
    assert "secret" not in str(caught.value)
