"""Output schemas in the forms that users write them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from jobs.errors import InvalidSchemaError

Schema: TypeAlias = Mapping[str, str] | str | StructType | pa.Schema
"""An output schema: {"column": "Spark type"}, a DDL string, a Spark or an Arrow schema."""


def arrow_schema(declared: Schema) -> pa.Schema:
    """An output schema in any of its forms as Arrow's.

    Raises:
        InvalidSchemaError: It is none.
    """
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, Mapping):
        declared = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in declared.items())
    if isinstance(declared, str):
        try:
            declared = DataType.fromDDL(declared)
        except ParseException as refusal:
            message = f"an output schema cannot be read: {str(refusal).strip().splitlines()[0]}"
            raise InvalidSchemaError(message) from refusal
    if not isinstance(declared, StructType):
        message = f"an output schema is declared as a {type(declared).__name__}"
        raise InvalidSchemaError(message)
    return to_arrow_schema(declared, timezone="UTC")
