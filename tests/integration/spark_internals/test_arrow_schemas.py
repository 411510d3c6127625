"""Relied on: Spark's own mapping of types to Arrow's.

A failure here means that jobs read other types than they declare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, StructType

from keyscale.jobs.spark_internals.arrow_schemas import arrow_schema_of, arrow_type_of, spark_schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

DECLARED = (
    "text string, flag boolean, small tinyint, number bigint, real double, price decimal(10,2), day date,"
    " at timestamp, local timestamp_ntz, bytes binary, list array<int>, map map<string,bigint>, nested struct<a: int>"
)


def test_the_schema_of_a_tasks_arrow_batches_is_the_schema_of_the_job(spark: SparkSession) -> None:
    schema = StructType.fromDDL(DECLARED)
    by_spark = spark.createDataFrame([], schema).toArrow().schema
    ours = arrow_schema_of(schema)
    assert ours.names == by_spark.names
    assert ours.types == by_spark.types, "toArrow and pyspark.sql.pandas.types no longer go by one mapping"


@pytest.mark.usefixtures("spark")  # Spark parses the schema
def test_a_schema_comes_back_from_arrow_as_it_was() -> None:
    schema = StructType.fromDDL(DECLARED)
    assert spark_schema_of(arrow_schema_of(schema)).simpleString() == schema.simpleString()


def test_a_single_type_is_mapped_as_in_a_schema() -> None:
    assert arrow_type_of(DecimalType(10, 2)) == pa.decimal128(10, 2)
