"""Conversion between a processor's tuples and stored structs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from math import isnan
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - as usual in PySpark

from keyscale.state.doors.values import SerializationError
from keyscale.units import counted

from ..errors import InvalidSchemaError
from ..spark_internals.arrow_schemas import arrow_type_of
from .ddl import parse_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    Convert: TypeAlias = Callable[[Any], Any]

StateColumns: TypeAlias = "T.StructType | str"
"""A state's schema as processors write it: a StructType or a DDL string."""


class RowCodec:
    """Converts a state's values: tuples in the order of its columns.

    As in Spark, it also accepts a Row, a list, a dict of all columns, and a single value in place of a tuple of one
    value. NumPy and pandas scalars become Python values, and pandas' missing values become null. As in Spark, returned
    timestamps have no time zone; they are in UTC.
    """

    def __init__(self, columns: StateColumns) -> None:
        """Creates the codec for the columns of a schema.

        Raises:
            InvalidSchemaError: `columns` is not a schema.
        """
        schema: Any = parse_columns(columns) if isinstance(columns, str) else columns  # a user may pass anything
        if not isinstance(schema, T.StructType) or not schema.fields:
            raise InvalidSchemaError(
                f"a state's schema is declared as a {type(columns).__name__}; give a StructType or a DDL string"
            )
        self.type: pa.DataType = pa.struct(
            [pa.field(field.name, arrow_type_of(field.dataType)) for field in schema.fields]
        )
        self._names = tuple(schema.names)
        self._row = T.Row(*self._names)
        self._to_stored = [_to_stored(field.dataType) for field in schema.fields]
        self._from_stored = [_from_stored(field.dataType) for field in schema.fields]

    def stored(self, value: Any) -> dict[str, Any]:
        """Returns the stored form of a value.

        Raises:
            SerializationError: The value does not have the schema's columns.
        """
        if len(self._names) == 1 and value is not None and not isinstance(value, (tuple, list, dict)):
            value = (value,)
        values = _values(value, self._names)
        return {
            name: None if each is None else convert(each)
            for name, convert, each in zip(self._names, self._to_stored, values, strict=True)
        }

    def value(self, stored: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the value of a stored form."""
        return tuple(self._converted(stored))

    def row(self, stored: dict[str, Any]) -> T.Row:
        """Returns the value of a stored form as a Row."""
        return self._row(*self._converted(stored))

    def _converted(self, stored: dict[str, Any]) -> list[Any]:
        return [
            each if each is None or convert is None else convert(each)
            for convert, each in zip(self._from_stored, map(stored.get, self._names), strict=True)
        ]


def _values(value: Any, names: tuple[str, ...]) -> tuple[Any, ...] | list[Any]:
    if isinstance(value, dict):
        value = [value.get(name) for name in names] if value.keys() <= set(names) else ()
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        found = counted(len(value), "value") if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"
        raise SerializationError(
            f"a state with the columns {', '.join(names)} was given {found}; give a tuple of {len(names)}"
        )
    return value


def _to_stored(of_type: T.DataType) -> Convert:
    """Returns the conversion of non-null values to their stored form."""
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
        if isinstance(of_type.keyType, (T.ArrayType, T.MapType, T.StructType)):
            raise InvalidSchemaError("a map in a state has nested keys; declare a map state with these keys")
        key, item = _to_stored(of_type.keyType), _to_stored(of_type.valueType)
        return lambda values: {key(name): None if each is None else item(each) for name, each in values.items()}
    convert = next((convert for kind, convert in _CONVERSIONS.items() if isinstance(of_type, kind)), _unchanged)
    is_real = isinstance(of_type, (T.FloatType, T.DoubleType))
    exact = _EXACT_TYPES.get(type(of_type))

    def to_stored(value: Any) -> Any:
        if type(value) is exact:
            return value
        plain = _plain(value)
        is_missing = type(plain).__name__ in _MISSING or (not is_real and isinstance(plain, float) and isnan(plain))
        return None if is_missing else convert(plain)

    return to_stored


def _from_stored(of_type: T.DataType) -> Convert | None:
    """Returns the conversion of non-null stored values for a processor.

    Returns None if the values need no conversion.
    """
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
        key = _from_stored(of_type.keyType) or _unchanged
        value = _from_stored(of_type.valueType) or _unchanged
        return lambda values: {key(name): None if each is None else value(each) for name, each in values.items()}
    if isinstance(of_type, T.TimestampType):
        return lambda at: at.replace(tzinfo=None)  # stored in UTC
    return None


def _plain(value: Any) -> Any:
    """Converts a NumPy or pandas scalar to a Python value."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    return value


def _unchanged(value: Any) -> Any:
    return value


def _real(value: Any) -> Any:
    return float(value) if isinstance(value, int) else value


def _integer(value: Any) -> Any:
    """Converts a whole float to an integer.

    An integer column in pandas may hold floats.
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _date(value: Any) -> Any:
    return value.date() if isinstance(value, dt.datetime) else value


def _instant(value: Any) -> Any:
    """Converts a datetime to UTC.

    A datetime without a time zone counts as UTC, as in records.
    """
    if not isinstance(value, dt.datetime):
        return value
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


def _wall_clock(value: Any) -> Any:
    """Returns a datetime without its time zone, with the same reading."""
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


_CONVERSIONS: dict[type[T.DataType], Convert] = {
    T.BinaryType: _bytes,
    T.DateType: _date,
    T.DoubleType: _real,
    T.FloatType: _real,
    T.IntegralType: _integer,
    T.TimestampNTZType: _wall_clock,
    T.TimestampType: _instant,
}
_EXACT_TYPES: dict[type[T.DataType], type] = {
    T.BinaryType: bytes,
    T.BooleanType: bool,
    T.ByteType: int,
    T.DecimalType: Decimal,
    T.DoubleType: float,
    T.FloatType: float,
    T.IntegerType: int,
    T.LongType: int,
    T.ShortType: int,
    T.StringType: str,
}
_MISSING = frozenset({"NAType", "NaTType"})  # the types of pandas' NA and NaT, without importing pandas
