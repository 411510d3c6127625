"""Schemas of streams, and the rules for keys, outputs and unions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql.types import DataType, StructType

from ..errors import InvalidKeyError, InvalidSchemaError, InvalidTopologyError, UnionSchemaError, UnknownColumnError
from ..spark_internals.arrow_schemas import arrow_schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESERVED_PREFIX = "__"  # columns that the runtime adds

Schema: TypeAlias = Mapping[str, str | pa.DataType] | str | StructType | pa.Schema
"""An output schema: {"column": "Spark type" or Arrow type}, a DDL string, a Spark or an Arrow schema."""

_SPARK_NAMES = {
    "bool": "boolean",
    "bytes": "binary",
    "datetime": "timestamp",
    "float32": "float",
    "float64": "double",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "int8": "tinyint",
    "object": "string",
    "str": "string",
    "utf8": "string",
}
_SPARK_NAMES_OF_CLASSES = {"float": "double", "int": "bigint", "string": "string"}


def arrow_schema(declared: Schema) -> pa.Schema:
    """Converts an output schema in any form to Arrow.

    Raises:
        InvalidSchemaError: The declaration is not a schema.
    """
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, Mapping):
        return _schema_of_columns(declared)
    if isinstance(declared, str):
        try:
            declared = DataType.fromDDL(declared)
        except ParseException as refusal:
            raise InvalidSchemaError(
                f"an output schema cannot be parsed: {str(refusal).strip().splitlines()[0]}"
            ) from refusal
    if not isinstance(declared, StructType):
        raise InvalidSchemaError(f"an output schema is declared as a {type(declared).__name__}")
    return arrow_schema_of(declared)


def _schema_of_columns(columns: Mapping[str, str | pa.DataType]) -> pa.Schema:
    named: dict[str, str] = {}
    for name, kind in columns.items():
        if isinstance(kind, pa.DataType):
            continue
        check_type_name(name, kind)
        named[name] = kind
    parsed = arrow_schema(", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in named.items()) or "")
    types = {**columns, **dict(zip(named, parsed.types, strict=True))}
    return pa.schema([parsed.field(name) if name in named else pa.field(name, types[name]) for name in columns])


def check_type_name(column: str, kind: object) -> None:
    """Checks that a column's type is named as Spark names it.

    Raises:
        InvalidSchemaError: The type is a class, or a name of Python, NumPy or Arrow.
    """
    if isinstance(kind, str):
        shown, spark_name = repr(kind), _SPARK_NAMES.get(kind.lower())
    else:
        shown = getattr(kind, "__name__", type(kind).__name__)
        spark_name = (_SPARK_NAMES | _SPARK_NAMES_OF_CLASSES).get(shown)
    if spark_name is not None:
        raise InvalidSchemaError(f"column {column!r} has the type {shown}; Spark's name of it is {spark_name!r}")
    if not isinstance(kind, str):
        raise InvalidSchemaError(
            f"column {column!r} has the type {shown}; give the name of a Spark type, such as 'bigint', or an Arrow type"
        )


def check_schema(schema: pa.Schema, of_what: str) -> None:
    """Checks that a schema can be a stream's.

    Raises:
        InvalidSchemaError: It is empty, has a name twice, or a reserved name.
    """
    if not schema.names:
        raise InvalidSchemaError(f"{of_what} has no columns")
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        raise InvalidSchemaError(f"{of_what} has more than one column named {', '.join(doubled)}")
    reserved = [name for name in schema.names if name.startswith(_RESERVED_PREFIX)]
    if reserved:
        raise InvalidSchemaError(
            f"{of_what} has columns named {', '.join(reserved)}; names that begin with '__' are reserved"
        )


def key_schema(schema: pa.Schema, key_columns: tuple[str, ...]) -> pa.Schema:
    """Returns the schema of the named key columns, each nullable.

    Raises:
        UnknownColumnError: A column is not in the stream.
        InvalidKeyError: There is no column, one is named twice, or a type holds a map.
        InvalidTopologyError: A column is given as something else than its name.
    """
    given = [kind.__name__ for kind in map(type, key_columns) if not issubclass(kind, str)]
    if given:
        raise InvalidTopologyError(f'a key column is given as a {given[0]}; give the names as text: .key_by("a", "b")')
    if not key_columns or len(set(key_columns)) != len(key_columns):
        raise InvalidKeyError(f"a key needs one or more different columns, not ({', '.join(key_columns)})")
    for name in key_columns:
        check_column(schema, name, "key")
        if _holds_map(schema.field(name).type):
            raise InvalidKeyError(f"key column {name!r} has type {schema.field(name).type}, which holds a map")
    return pa.schema([pa.field(name, schema.field(name).type) for name in key_columns])


def check_keys_alike(first: pa.Schema, second: pa.Schema) -> None:
    """Checks that the keys of two streams have the same types.

    With different types, equal keys would not meet.

    Raises:
        InvalidKeyError: The types differ.
    """
    if first.types != second.types:
        kinds = " and ".join(f"({', '.join(map(str, keys.types))})" for keys in (first, second))
        raise InvalidKeyError(f"the keys of two connected streams have the types {kinds}; they must be the same")


def check_column(schema: pa.Schema, name: str, role: str) -> None:
    """Checks that a schema has a column, which is used as `role`.

    Raises:
        UnknownColumnError: It does not.
    """
    if name not in schema.names:
        raise UnknownColumnError(f"{role} column {name!r} is not in the stream, which has: {', '.join(schema.names)}")


def keyed_schema(key: pa.Schema, result: pa.Schema) -> pa.Schema:
    """Returns a schema of the key's columns and then the result's.

    Raises:
        InvalidSchemaError: A column of the result has the name of a key column.
    """
    both = sorted(set(key.names) & set(result.names))
    if both:
        raise InvalidSchemaError(f"the output declares {', '.join(both)}, which the key adds already")
    return pa.schema([*key, *result])


def union_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Returns the columns that all schemas have.

    A column is nullable if it is nullable in any of the schemas.

    Raises:
        UnionSchemaError: The name, type or position of a column differs; the message names the column.
    """
    first, *others = schemas
    for number, other in enumerate(others, 2):
        for place, (wanted, found) in enumerate(zip_longest(first, other), 1):
            if wanted is None or found is None or (wanted.name, wanted.type) != (found.name, found.type):
                raise UnionSchemaError(
                    f"column {place} of stream {number} of the union is {_described(found)}; in the first stream it "
                    f"is {_described(wanted)}"
                )
    nullable = [any(schema.field(place).nullable for schema in schemas) for place in range(len(first))]
    return pa.schema([field.with_nullable(null) for field, null in zip(first, nullable, strict=True)])


def _holds_map(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_holds_map(kind.field(at).type) for at in range(kind.num_fields))


def _described(field: pa.Field | None) -> str:
    return "missing" if field is None else f"{field.name!r} ({field.type})"
