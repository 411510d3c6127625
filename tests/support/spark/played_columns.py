"""Spark's columns and functions over rows of Python, without a JVM: those that sinks and steps of streams use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Value = Callable[[Mapping[str, Any]], Any]

_CASTS: dict[str, Callable[[Any], Any]] = {
    "binary": lambda value: value if isinstance(value, bytes) else str(value).encode(),
    "int": int,
    "string": str,
}


@dataclass(frozen=True, slots=True, eq=False)
class PlayedColumn:
    """A column, with nulls as in SQL.

    Attributes:
        value: Computes the column's value in a row.
        branches: The conditions of a column of `when`, with their values.
        name: The name of a column of the rows.
    """

    value: Value
    branches: tuple[tuple[PlayedColumn, PlayedColumn], ...] = ()
    name: str = ""

    def isNull(self) -> PlayedColumn:  # noqa: N802 - Spark's name
        return PlayedColumn(lambda row: self.value(row) is None)

    def when(self, condition: PlayedColumn, value: object) -> PlayedColumn:
        return _when((*self.branches, (condition, lit(value))))

    def cast(self, kind: str) -> PlayedColumn:
        return _of(_CASTS.get(kind, lambda value: value), self)

    def __getitem__(self, name: str) -> PlayedColumn:
        return _of(lambda value: value[name], self)

    def __lt__(self, other: object) -> PlayedColumn:
        return _of(lambda left, right: left < right, self, lit(other))

    def __gt__(self, other: object) -> PlayedColumn:
        return _of(lambda left, right: left > right, self, lit(other))

    def __ge__(self, other: object) -> PlayedColumn:
        return _of(lambda left, right: left >= right, self, lit(other))

    def __add__(self, other: object) -> PlayedColumn:
        return _of(lambda left, right: left + right, self, lit(other))

    def __or__(self, other: PlayedColumn) -> PlayedColumn:
        return PlayedColumn(lambda row: _decided((self.value(row), other.value(row)), by=True))

    def __and__(self, other: PlayedColumn) -> PlayedColumn:
        return PlayedColumn(lambda row: _decided((self.value(row), other.value(row)), by=False))


def lit(value: object) -> PlayedColumn:
    return value if isinstance(value, PlayedColumn) else PlayedColumn(lambda _: value)


def col(name: str) -> PlayedColumn:
    """Returns a column of the rows; a name in backquotes is one name, whatever it holds."""
    plain = name[1:-1].replace("``", "`") if name.startswith("`") else name
    assert name != plain or "." not in name, "Spark takes a field of a struct"
    return PlayedColumn(lambda row: row[plain], name=plain)


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


def _of(function: Callable[..., Any], *columns: PlayedColumn) -> PlayedColumn:
    """Returns a column that is null if one of its arguments is null."""

    def value(row: Mapping[str, Any]) -> Any:
        found = [each.value(row) for each in columns]
        return None if None in found else function(*found)

    return PlayedColumn(value)


def _when(branches: tuple[tuple[PlayedColumn, PlayedColumn], ...]) -> PlayedColumn:
    return PlayedColumn(
        lambda row: next((value.value(row) for condition, value in branches if condition.value(row)), None), branches
    )


def _decided(values: tuple[bool | None, bool | None], *, by: bool) -> bool | None:
    if by in values:
        return by
    return None if None in values else not by
