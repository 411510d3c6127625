"""Converts schemas between Spark and Arrow by Spark's own rules.

These are the rules by which Spark exchanges Arrow with Python.

It relies on `pyspark.sql.pandas.types` (since Spark 2.3, undocumented). The public alternative is slower and needs a
session: the schema of `spark.createDataFrame(<an empty Arrow table>)` and of `frame.limit(0).toArrow()`.

Times without a zone stay without one, and times with one are in UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Converts an Arrow schema to Spark's."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Converts a Spark schema to Arrow's."""
    return to_arrow_schema(schema, timezone="UTC")


def arrow_type_of(kind: DataType) -> pa.DataType:
    """Converts a Spark type to Arrow's."""
    return to_arrow_type(kind, timezone="UTC")
