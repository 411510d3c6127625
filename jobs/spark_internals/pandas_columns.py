"""Converts columns to pandas Series and back, by Spark's rules.

These are Spark's rules for functions over pandas.

It relies on `pyspark.sql.conversion` (in this form since Spark 4.3, undocumented). The public alternative is to run the
function in a stage of Spark's own, such as `mapInPandas`; there it could not read state.

Times are in UTC. pandas is imported with the first column, not earlier: the import takes most of a second.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.conversion import ArrowArrayToPandasConversion, PandasToArrowConversion

from .arrow_schemas import spark_schema_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_UTC = "UTC"


def series_of(column: pa.Array, field: pa.Field) -> Any:
    """Converts a column to a Series as Spark does for functions.

    Raises:
        ArrowInvalid: A time is out of range for pandas' nanoseconds.
    """
    spark_type = _spark_schema(field).fields[0].dataType
    return ArrowArrayToPandasConversion.convert(column, spark_type, ser_name=field.name, timezone=_UTC)


def column_of_series(series: Any, field: pa.Field) -> pa.Array:
    """Converts a function's Series to a column.

    A struct has a DataFrame instead of a Series.

    As with Spark's setting `spark.sql.execution.pandas.convertToArrowArraySafely`, values are never rounded or wrapped
    around; only nanoseconds are dropped, which Spark's types do not have.

    Raises:
        Exception: The Series does not fit; of many types, and with the user's data in its message.
    """
    converted = PandasToArrowConversion.convert(
        [series],
        _spark_schema(field),
        timezone=_UTC,
        safecheck=not pa.types.is_timestamp(field.type),
        arrow_cast=True,
        assign_cols_by_name=True,
    )
    return converted.column(0)


@cache
def _spark_schema(field: pa.Field) -> StructType:
    return spark_schema_of(pa.schema([field]))
