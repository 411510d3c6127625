"""Columns as users give them to batch forms."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from state.errors import SerializationError


def column_of(values: Any, of_type: pa.DataType) -> pa.Array:
    """Values as one Arrow array of a type; a column of another type is cast, if no value is lost.

    Raises:
        SerializationError: It cannot be.
    """
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if not isinstance(values, pa.Array):
            return pa.array(values, of_type)
        return values if values.type == of_type else values.cast(of_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        message = f"a column cannot be made one of type {of_type}"
        raise SerializationError(message) from error
