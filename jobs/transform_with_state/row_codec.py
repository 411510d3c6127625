"""Between the tuples and Rows that a processor keeps in state and the structs that are stored."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.pandas.types import to_arrow_type

from jobs.errors import InvalidSchemaError
from jobs.transform_with_state.ddl import parse_columns
from state.errors import SerializationError

if TYPE_CHECKING:
    from collections.abc import Callable

    Convert: TypeAlias = Callable[[Any], Any]

StateColumns: TypeAlias = "T.StructType | str"
"""A state's schema as processors write it: a StructType or a DDL string."""


class RowCodec:
    """Values of one state: tuples in the order of its columns, as Spark takes and gives them.

    A Row, a list and a dict of all columns are taken as well. NumPy and pandas scalars become Python's; timestamps are given in UTC.
    """

    def __init__(self, columns: StateColumns) -> None:
        """For the columns of a schema.

        Raises:
            InvalidSchemaError: It is none.
        """
        schema: Any = parse_columns(columns) if isinstance(columns, str) else columns  # a user may give anything
        if not isinstance(schema, T.StructType) or not schema.fields:
            message = f"a state's schema is declared as a {type(columns).__name__}; give a StructType or a DDL string"
            raise InvalidSchemaError(message)
        self.type: pa.DataType = pa.struct(
            [pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC")) for field in schema.fields]
        )
        self._names = tuple(schema.names)
        self._to_stored = [_to_stored(field.dataType) for field in schema.fields]
        self._from_stored = [_from_stored(field.dataType) for field in schema.fields]

    def stored(self, value: Any) -> dict[str, Any]:
        """What is stored for a value.

        Raises:
            SerializationError: It does not have the schema's columns.
        """
        values = _values(value, self._names)
        return {
            name: None if each is None else convert(each)
            for name, convert, each in zip(self._names, self._to_stored, values, strict=True)
        }

    def value(self, stored: dict[str, Any]) -> tuple[Any, ...]:
        """The value that was stored."""
        return tuple(
            [
                each if each is None or convert is None else convert(each)
                for convert, each in zip(self._from_stored, map(stored.get, self._names), strict=True)
            ]
        )


def _values(value: Any, names: tuple[str, ...]) -> tuple[Any, ...] | list[Any]:
    if isinstance(value, dict):
        value = [value.get(name) for name in names] if value.keys() <= set(names) else ()
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        found = f"{len(value)} values" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"
        message = f"a state of the columns {', '.join(names)} was given {found}; give a tuple of as many"
        raise SerializationError(message)
    return value


def _to_stored(of_type: T.DataType) -> Convert:
    """What makes a value that is not null one that is stored."""
    if isinstance(of_type, T.StructType):
        names, converts = tuple(of_type.names), [_to_stored(field.dataType) for field in of_type.fields]
        return lambda value: {
            name: None if each is None else convert(each)
            for name, convert, each in zip(names, converts, _values(value, names), strict=True)
        }
    if isinstance(of_type, T.ArrayType):
        item = _to_stored(of_type.elementType)
        return lambda values: [None if each is None else item(each) for each in values]
    if isinstance(of_type, T.MapType):
        key, item = _to_stored(of_type.keyType), _to_stored(of_type.valueType)
        return lambda values: {key(name): None if each is None else item(each) for name, each in values.items()}
    if isinstance(of_type, T.TimestampType):
        return _instant
    if isinstance(of_type, (T.FloatType, T.DoubleType)):
        return lambda value: float(_plain(value))
    return _plain


def _from_stored(of_type: T.DataType) -> Convert | None:
    """What makes a stored value that is not null one that a processor sees; None if it is the same."""
    if isinstance(of_type, T.StructType):
        row = T.Row(*of_type.names)
        converts = [_from_stored(field.dataType) for field in of_type.fields]
        return lambda stored: row(
            *[
                each if each is None or convert is None else convert(each)
                for convert, each in zip(converts, stored.values(), strict=True)
            ]
        )
    if isinstance(of_type, T.ArrayType):
        item = _from_stored(of_type.elementType)
        return None if item is None else lambda values: [None if each is None else item(each) for each in values]
    if isinstance(of_type, T.MapType):
        value = _from_stored(of_type.valueType)
        return (
            None
            if value is None
            else lambda values: {name: None if each is None else value(each) for name, each in values.items()}
        )
    return None


def _plain(value: Any) -> Any:
    """A NumPy or pandas scalar as Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    return value


def _instant(value: Any) -> Any:
    """A point in time; one that names no time zone is in UTC, as records are."""
    plain = _plain(value)
    return plain.replace(tzinfo=dt.UTC) if isinstance(plain, dt.datetime) and plain.tzinfo is None else plain
