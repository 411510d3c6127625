"""What a StatefulProcessor keeps in state comes back as it was, and its schemas are read without a JVM."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # publishes no types
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812 - the name that every Spark user knows

from jobs.errors import InvalidSchemaError
from jobs.transform_with_state.ddl import parse_columns
from jobs.transform_with_state.row_codec import RowCodec
from state.errors import SerializationError

NESTED = T.StructType(
    [
        T.StructField("flag", T.BooleanType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("day", T.DateType()),
        T.StructField("price", T.DecimalType(10, 2)),
        T.StructField("raw", T.BinaryType()),
        T.StructField("tags", T.ArrayType(T.StringType())),
        T.StructField("sizes", T.MapType(T.StringType(), T.DoubleType())),
        T.StructField("place", T.StructType([T.StructField("x", T.IntegerType()), T.StructField("y", T.FloatType())])),
        T.StructField("places", T.ArrayType(T.StructType([T.StructField("n", T.ShortType())]))),
    ]
)


def test_every_type_of_a_state_comes_back_as_it_went_in_and_structs_as_rows() -> None:
    value = (
        True, dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, 2), dt.date(2024, 2, 29),  # noqa: DTZ001 - a local time
        Decimal("1.25"), b"\0\1", ["a", None], {"m": 1.5}, Row(x=1, y=0.5), [Row(n=1), None],
    )  # fmt: skip
    codec = RowCodec(NESTED)
    stored = codec.stored(value)
    assert pa.array([stored], codec.type).to_pylist()[0]["place"] == {"x": 1, "y": 0.5}
    back = codec.value(stored)
    assert back == value
    assert back[8].x == 1
    assert back[9][0].n == 1
    assert codec.value(codec.stored((None,) * 10)) == (None,) * 10


def test_numpy_and_pandas_scalars_are_stored_as_pythons_own() -> None:
    codec = RowCodec("n bigint, x double, at timestamp, flag boolean")
    stored = codec.stored((np.int32(3), np.float32(0.5), pd.Timestamp("2024-02-29 01:00"), np.bool_(True)))
    assert codec.value(stored) == (3, 0.5, dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC), True)
    assert [type(each) for each in stored.values()] == [int, float, dt.datetime, bool]
    assert codec.stored({"x": 1, "n": 2}) == {"n": 2, "x": 1.0, "at": None, "flag": None}


@pytest.mark.parametrize("value", [None, (), (1, 2), 7, {"m": 1}, "a"])
def test_a_value_that_has_not_the_states_columns_is_refused(value: Any) -> None:
    with pytest.raises(SerializationError, match="columns n"):
        RowCodec("n int").stored(value)


def test_a_ddl_string_of_nested_types_is_read_without_a_jvm() -> None:
    parsed = parse_columns(
        "`a b` decimal(12,2) NOT NULL COMMENT 'a, b int', c array<struct<x: int, y map<string, date>>>, d DEC"
    )
    assert parsed == T.StructType(
        [
            T.StructField("a b", T.DecimalType(12, 2), nullable=False),
            T.StructField(
                "c",
                T.ArrayType(
                    T.StructType(
                        [
                            T.StructField("x", T.IntegerType()),
                            T.StructField("y", T.MapType(T.StringType(), T.DateType())),
                        ]
                    )
                ),
            ),
            T.StructField("d", T.DecimalType(10, 0)),
        ]
    )


@pytest.mark.parametrize("ddl", ["", "int", "n int,", "n array<int", "n int m int", "n decimal(x)", "1 int", "n int !"])
def test_what_is_no_ddl_string_is_refused(ddl: str) -> None:
    with pytest.raises(InvalidSchemaError, match="StructType"):
        parse_columns(ddl)
