"""Spark's columns, and the functions of its SQL that the product uses, over rows of Python, without a JVM."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from keyscale.state.keys.hashing import HashId, hash_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Value = Callable[[Mapping[str, Any]], Any]

_CASTS: dict[str, tuple[Callable[[Any], Any], DataType]] = {
    "array<int>": (lambda values: [*map(int, values)], ArrayType(IntegerType())),
    "bigint": (int, LongType()),
    "binary": (lambda value: value if isinstance(value, bytes) else str(value).encode(), BinaryType()),
    "int": (int, IntegerType()),
    "long": (int, LongType()),
    "string": (str, StringType()),
}


class UnresolvedError(AnalysisException):
    """Spark's error for a column that is not there."""

    def getCondition(self) -> str:  # noqa: N802 - Spark's name
        return "UNRESOLVED_COLUMN.WITH_SUGGESTION"


def _text(_: StructType) -> StructField:
    return StructField("", StringType())


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[PlayedColumn, Any], PlayedColumn]:
    return lambda column, other: _of(function, column, lit(other))


@dataclass(frozen=True, slots=True, eq=False)
class PlayedColumn:  # noqa: PLW1641 - as Spark's, whose `==` is an expression
    """A column, with nulls as in SQL.

    Attributes:
        value: Computes the column's value in a row.
        names: The name in a frame; two names for a list that becomes rows, `*` for a struct that becomes columns.
        field_in: Returns the column's field in a frame with a schema; texts, unless a test needs another type.
        branches: The conditions of a column of `when`, with their values.
        explodes: Whether each element of the value becomes a row, beside its place.
    """

    value: Value
    names: tuple[str, ...] = ("",)
    field_in: Callable[[StructType], StructField] = _text
    branches: tuple[tuple[PlayedColumn, PlayedColumn], ...] = ()
    explodes: bool = False

    def alias(self, *names: str) -> PlayedColumn:
        return dataclasses.replace(self, names=names)

    def isNull(self) -> PlayedColumn:  # noqa: N802 - Spark's name
        return PlayedColumn(lambda row: self.value(row) is None)

    def when(self, condition: PlayedColumn, value: object) -> PlayedColumn:
        return _when((*self.branches, (condition, lit(value))))

    def cast(self, kind: str | StructType) -> PlayedColumn:
        function: Callable[[Any], Any] = lambda value: value  # noqa: E731 - of a kind that changes no value
        of: DataType = StringType()
        if isinstance(kind, StructType):
            function, of = lambda value: dict(zip(kind.names, value.values(), strict=True)), kind
        elif kind in _CASTS:
            function, of = _CASTS[kind]
        return dataclasses.replace(_of(function, self), names=self.names, field_in=lambda _: StructField("", of))

    def __getitem__(self, name: str) -> PlayedColumn:
        return _of(lambda value: value[name], self)

    __eq__ = _binary(operator.eq)  # type: ignore[assignment]
    __lt__ = _binary(operator.lt)
    __gt__ = _binary(operator.gt)
    __ge__ = _binary(operator.ge)
    __add__ = _binary(operator.add)
    __mod__ = _binary(operator.mod)
    __mul__ = _binary(operator.mul)
    __truediv__ = _binary(operator.truediv)
    bitwiseAND = _binary(operator.and_)  # noqa: N815 - Spark's name

    def __or__(self, other: PlayedColumn) -> PlayedColumn:
        return PlayedColumn(lambda row: _decided((self.value(row), other.value(row)), by=True))

    def __and__(self, other: PlayedColumn) -> PlayedColumn:
        return PlayedColumn(lambda row: _decided((self.value(row), other.value(row)), by=False))


def lit(value: object) -> PlayedColumn:
    return value if isinstance(value, PlayedColumn) else PlayedColumn(lambda _: value)


def col(path: str) -> PlayedColumn:
    """Returns a column of the rows or a field of a struct; a name in backquotes is one name, whatever it holds."""
    parts = [plain or quoted.replace("``", "`") for quoted, plain in re.findall(r"`((?:[^`]|``)+)`|([^.`]+)", path)]
    name = parts[-1]
    fields = parts[:-1] if name == "*" else parts

    def value(row: Any) -> Any:
        return reduce(lambda found, part: None if found is None else found[part], fields, row)

    def field_in(schema: StructType) -> StructField:
        found = StructField("", schema)
        for part in fields:
            if part not in found.dataType.names:  # type: ignore[attr-defined]  # of a struct
                raise UnresolvedError(f"{part} cannot be resolved\nin the plan")
            found = found.dataType[part]  # type: ignore[index]  # as above
        return found

    return PlayedColumn(value, (name,), field_in)


def when(condition: PlayedColumn, value: object) -> PlayedColumn:
    return _when(((condition, lit(value)),))


def coalesce(*columns: PlayedColumn) -> PlayedColumn:
    return PlayedColumn(lambda row: next((found for each in columns if (found := each.value(row)) is not None), None))


def octet_length(column: PlayedColumn) -> PlayedColumn:
    return _of(lambda value: len(value.encode() if isinstance(value, str) else value), column)


def create_map(*pairs: PlayedColumn) -> PlayedColumn:
    def value(row: Mapping[str, Any]) -> dict[Any, Any]:
        found = [each.value(row) for each in pairs]
        return dict(zip(found[::2], found[1::2], strict=True))

    return PlayedColumn(value)


def element_at(column: PlayedColumn, key: PlayedColumn) -> PlayedColumn:
    return _of(lambda found, name: found.get(name), column, key)


def aggregate(column: PlayedColumn, start: PlayedColumn, add: Callable[..., PlayedColumn]) -> PlayedColumn:
    def value(row: Mapping[str, Any]) -> Any:
        elements = column.value(row)
        return None if elements is None else reduce(add, map(lit, elements), start).value(row)

    return PlayedColumn(value)


def concat_ws(separator: str, *columns: PlayedColumn) -> PlayedColumn:
    return PlayedColumn(lambda row: separator.join(found for each in columns if (found := each.value(row)) is not None))


def replace(column: PlayedColumn, text: PlayedColumn, by: PlayedColumn) -> PlayedColumn:
    return _of(str.replace, column, text, by)


def abs(column: PlayedColumn) -> PlayedColumn:  # noqa: A001 - Spark's name, as below
    return _of(operator.abs, column)


def floor(column: PlayedColumn) -> PlayedColumn:
    return _of(math.floor, column)


def get(array: PlayedColumn, place: PlayedColumn) -> PlayedColumn:
    return _of(operator.getitem, array, place)


def split(column: PlayedColumn, by: str) -> PlayedColumn:
    return _of(str.split, column, lit(by))


def struct(*columns: str | PlayedColumn) -> PlayedColumn:
    if columns == ("*",):
        return PlayedColumn(dict)
    found = [named(each) for each in columns]
    return PlayedColumn(lambda row: {each.names[0]: each.value(row) for each in found})


def posexplode(path: str) -> PlayedColumn:
    column = col(path)

    def field_in(schema: StructType) -> StructField:
        of_list = column.field_in(schema).dataType
        assert isinstance(of_list, ArrayType)
        return StructField("", of_list.elementType)

    return dataclasses.replace(column, field_in=field_in, explodes=True)


def arrow_udf(function: Callable[..., pa.Array], **_: Any) -> Callable[..., PlayedColumn]:
    return lambda *columns: PlayedColumn(
        lambda row: function(*(_array(each.value(row)) for each in columns))[0].as_py()
    )


def hash(*columns: PlayedColumn) -> PlayedColumn:  # noqa: A001
    """Hashes strings and numbers of 32 bits as Spark does."""
    return arrow_udf(lambda *arrays: pa.array(hash_codes([*arrays], HashId.SPARK), pa.int32()))(*columns)


def named(column: str | PlayedColumn) -> PlayedColumn:
    """Returns a column that is given by its name or itself."""
    return col(column) if isinstance(column, str) else column


def _array(value: Any) -> pa.Array:
    return pa.array([value], pa.int32() if isinstance(value, int) else None)


def _of(function: Callable[..., Any], *columns: PlayedColumn) -> PlayedColumn:
    """Returns a column that is null if one of its arguments is null."""

    def value(row: Mapping[str, Any]) -> Any:
        found = [each.value(row) for each in columns]
        return None if None in found else function(*found)

    return PlayedColumn(value)


def _when(branches: tuple[tuple[PlayedColumn, PlayedColumn], ...]) -> PlayedColumn:
    return PlayedColumn(
        lambda row: next((value.value(row) for condition, value in branches if condition.value(row)), None),
        branches=branches,
    )


def _decided(values: tuple[bool | None, bool | None], *, by: bool) -> bool | None:
    if by in values:
        return by
    return None if None in values else not by
