"""Values of a StatefulProcessor survive a round trip through state, and its schemas are parsed without a JVM."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # publishes no types
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812 - as usual in PySpark

from keyscale.jobs.errors import InvalidSchemaError
from keyscale.jobs.transform_with_state.ddl import parse_columns
from keyscale.jobs.transform_with_state.row_codec import RowCodec
from keyscale.state.errors import SerializationError

# ruff: noqa: DTZ001 - state has times without a zone

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


def test_values_of_every_type_survive_a_round_trip_and_structs_become_rows() -> None:
    value = (
        True, dt.datetime(2024, 2, 29, 1, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, 2), dt.date(2024, 2, 29),
        Decimal("1.25"), b"\0\1", ["a", None], {"m": 1.5}, Row(x=1, y=0.5), [Row(n=1), None],
    )  # fmt: skip
    codec = RowCodec(NESTED)
    stored = codec.stored(value)
    assert pa.array([stored], codec.type).to_pylist()[0]["place"] == {"x": 1, "y": 0.5}
    back = codec.value(stored)
    assert back == (value[0], dt.datetime(2024, 2, 29, 1), *value[2:])
    assert back[8].x == 1
    assert back[9][0].n == 1
    assert codec.row(stored).place.y == 0.5
    assert codec.value(codec.stored((None,) * 10)) == (None,) * 10


def test_a_timestamp_is_returned_without_a_zone_in_utc_at_any_depth() -> None:
    codec = RowCodec("at timestamp, nested struct<at: timestamp>, many array<timestamp>, by map<timestamp, timestamp>")
    paris = dt.datetime(2024, 2, 29, 2, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    utc = dt.datetime(2024, 2, 29, 1)
    stored = codec.stored((paris, Row(at=utc), [paris, None], {paris: utc}))
    assert codec.value(stored) == (utc, Row(at=utc), [utc, None], {utc: utc})


def test_numpy_and_pandas_scalars_are_stored_as_pythons() -> None:
    codec = RowCodec("n bigint, x double, at timestamp, flag boolean")
    stored = codec.stored((np.int32(3), np.float32(0.5), pd.Timestamp("2024-02-29 01:00"), np.bool_(True)))
    assert codec.value(stored) == (3, 0.5, dt.datetime(2024, 2, 29, 1), True)
    assert [type(each) for each in stored.values()] == [int, float, dt.datetime, bool]
    assert codec.stored({"x": 1, "n": 2}) == {"n": 2, "x": 1.0, "at": None, "flag": None}


def test_what_pandas_has_for_a_missing_value_is_stored_as_null() -> None:
    codec = RowCodec("n bigint, at timestamp, day date, flag boolean, text string")
    assert codec.value(codec.stored((np.nan, pd.NaT, pd.NaT, pd.NA, np.nan))) == (None,) * 5
    assert codec.value(codec.stored((np.float64(3.0), None, None, None, None)))[0] == 3
    assert np.isnan(RowCodec("x double").value(RowCodec("x double").stored((np.nan,)))[0])


def test_values_of_related_types_are_converted_as_in_spark() -> None:
    codec = RowCodec("local timestamp_ntz, day date, raw binary")
    moment = dt.datetime(2024, 2, 29, 2, tzinfo=dt.timezone(dt.timedelta(hours=5)))
    assert codec.value(codec.stored((moment, moment, "é"))) == (
        dt.datetime(2024, 2, 29, 2),
        dt.date(2024, 2, 29),
        "é".encode(),
    )


def test_the_value_of_a_single_column_needs_no_tuple() -> None:
    assert RowCodec("name string").stored("key") == {"name": "key"}
    assert RowCodec("n int").stored(7) == {"n": 7}


def test_a_map_with_nested_keys_is_refused_when_it_is_declared() -> None:
    with pytest.raises(InvalidSchemaError, match="nested keys"):
        RowCodec("m map<struct<a: int>, string>")


@pytest.mark.parametrize("value", [None, (), (1, 2), {"m": 1}])
def test_a_value_without_the_states_columns_is_refused(value: Any) -> None:
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
def test_an_invalid_ddl_string_is_refused(ddl: str) -> None:
    with pytest.raises(InvalidSchemaError, match="StructType"):
        parse_columns(ddl)
