"""Columns as a test declares them, without Spark's parser, which needs a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from jobs.errors import InvalidSchemaError
from jobs.topology import check_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

_ATOMIC = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "int": pa.int32(),
    "long": pa.int64(),
    "smallint": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "tinyint": pa.int8(),
}


def schema_of(columns: pa.Schema | Mapping[str, str | pa.DataType]) -> pa.Schema:
    """An Arrow schema of columns.

    Raises:
        InvalidSchemaError: A type has another name than those of Spark's atomic types, or the columns are no stream's.
    """
    if not isinstance(columns, pa.Schema):
        columns = pa.schema([pa.field(name, _type_of(name, kind)) for name, kind in columns.items()])
    check_schema(columns, "a declared stream")
    return columns


def _type_of(name: str, kind: str | pa.DataType) -> pa.DataType:
    if not isinstance(kind, str):
        return kind
    found = _ATOMIC.get(kind.lower())
    if found is None:
        message = f"column {name!r} has the type {kind!r}; give nested and decimal types as Arrow's"
        raise InvalidSchemaError(message)
    return found
