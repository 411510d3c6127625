"""Relied on: the functions by which Spark converts columns for functions over pandas, and their results.

A failure here means that processors of DataFrames get other values than in Spark, or that they fail.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]  # publishes no types
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from keyscale.jobs.spark_internals.arrow_schemas import spark_schema_of
from keyscale.jobs.spark_internals.pandas_columns import column_of_series, series_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

AT = dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=dt.UTC)
PLACE = pa.struct([("x", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
COLUMNS = {
    "flag": pa.array([True, None]),
    "n": pa.array([2**53 + 1, 2]),
    "few": pa.array([1, None], pa.int8()),
    "x": pa.array([0.5, None], pa.float32()),
    "text": pa.array(["a", None]),
    "raw": pa.array([b"\0", None]),
    "day": pa.array([AT.date(), None]),
    "at": pa.array([AT, None], pa.timestamp("us", "UTC")),
    "local": pa.array([AT.replace(tzinfo=None), None], pa.timestamp("us")),
    "price": pa.array([Decimal("1.20"), None], pa.decimal128(10, 2)),
    "many": pa.array([[1, None], None], pa.list_(pa.int32())),
    "by": pa.array([[("k", AT)], None], pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
    "place": pa.array([{"x": 1, "at": AT}, None], PLACE),
}


def described(series: Any) -> str:
    return f"{series.dtype} {[type(each).__name__ for each in series]} {series.tolist()}"


def described_in_each_row(series: pd.Series) -> pd.Series:
    return pd.Series([described(series)] * len(series))


def test_series_are_those_that_spark_gives_to_its_own_functions_and_come_back(spark: SparkSession) -> None:
    batch = pa.record_batch(COLUMNS)
    rows = spark.createDataFrame(pa.Table.from_batches([batch]), spark_schema_of(batch.schema)).coalesce(1)
    as_text = F.pandas_udf(described_in_each_row, "string")
    names = [name for name in COLUMNS if name != "place"]  # a struct would be a DataFrame
    by_spark = rows.select([as_text(name).alias(name) for name in names]).collect()[0].asDict()
    ours = {field.name: series_of(batch.column(field.name), field) for field in batch.schema}
    assert {name: described(ours[name]) for name in names} == by_spark
    assert ours["place"].tolist() == [{"x": 1, "at": pd.Timestamp(AT).tz_localize(None)}, None]
    for field in batch.schema:
        assert column_of_series(ours[field.name], field).to_pylist() == batch.column(field.name).to_pylist()


def test_a_value_that_would_change_raises_except_for_nanoseconds() -> None:
    for series, kind in ((pd.Series([1.5]), pa.int64()), (pd.Series([300]), pa.int8())):
        with pytest.raises(ValueError, match="unsafe"):
            column_of_series(series, pa.field("n", kind))
    times = pd.Series([pd.Timestamp(7, unit="ns")])
    assert column_of_series(times, pa.field("at", pa.timestamp("us", "UTC")))[0].value == 0
