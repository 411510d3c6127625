"""Frames of rows in memory, and the few functions of Spark's SQL that the batches use, without a JVM."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import pyarrow as pa

from keyscale.state.keys.hashing import HashId, hash_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Row: TypeAlias = "dict[str, Any]"


class PlayedColumn:
    """An expression over a row."""

    __hash__ = None  # type: ignore[assignment]  # as of Spark's columns, whose == is an expression

    def __init__(self, of: Callable[[Row], Any], name: str = "") -> None:
        self.of, self.name = of, name

    def alias(self, name: str) -> PlayedColumn:
        return PlayedColumn(self.of, name)

    def cast(self, kind: str) -> PlayedColumn:
        numbers = kind == "array<int>"
        return PlayedColumn(lambda row: [*map(int, self.of(row))] if numbers else self.of(row), self.name)

    def _with(self, other: Any, made: Callable[[Any, Any], Any]) -> PlayedColumn:
        return PlayedColumn(lambda row: made(self.of(row), other.of(row) if isinstance(other, PlayedColumn) else other))

    def __eq__(self, other: object) -> Any:
        return self._with(other, operator.eq)

    def __lt__(self, other: Any) -> PlayedColumn:
        return self._with(other, operator.lt)

    def __mod__(self, other: Any) -> PlayedColumn:
        return self._with(other, operator.mod)

    def __mul__(self, other: Any) -> PlayedColumn:
        return self._with(other, operator.mul)

    def __truediv__(self, other: Any) -> PlayedColumn:
        return self._with(other, operator.truediv)

    def bitwiseAND(self, other: Any) -> PlayedColumn:  # noqa: N802 - Spark's name
        return self._with(other, operator.and_)


@dataclass(eq=False)
class PlayedFrame:
    """Rows with the same columns; a kept frame and one that was computed alone say so."""

    columns: list[str]
    rows: list[Row]
    is_kept: bool = False
    times_counted: int = 0
    given: list[Any] = field(default_factory=list)
    """The functions of `mapInArrow`."""

    @property
    def schema(self) -> list[str]:
        return self.columns

    def select(self, *selected: str | PlayedColumn) -> PlayedFrame:
        names: dict[str, Callable[[Row], Any]] = {}
        for column in (col(each) if isinstance(each, str) else each for each in selected):
            if not column.name.endswith("*"):
                names[column.name] = column.of
                continue
            fields = dict.fromkeys(name for row in self.rows for name in column.of(row)) if self.rows else ()
            names |= {name: lambda row, name=name, column=column: column.of(row)[name] for name in fields}
        return PlayedFrame([*names], [{name: of(row) for name, of in names.items()} for row in self.rows])

    def where(self, condition: PlayedColumn | str) -> PlayedFrame:
        rows = self.rows if isinstance(condition, str) else [row for row in self.rows if condition.of(row)]
        return PlayedFrame(self.columns, rows)

    def withColumn(self, name: str, column: PlayedColumn) -> PlayedFrame:  # noqa: N802 - Spark's name
        return PlayedFrame([*self.columns, name], [{**row, name: column.of(row)} for row in self.rows])

    def drop(self, name: str) -> PlayedFrame:
        return self.select(*(f"`{each}`" for each in self.columns if each != name))

    def union(self, other: PlayedFrame) -> PlayedFrame:
        """Joins the rows by the places of their columns, as Spark does."""
        assert len(self.columns) == len(other.columns)
        moved = [dict(zip(self.columns, map(row.get, other.columns), strict=True)) for row in other.rows]
        return PlayedFrame(self.columns, [*self.rows, *moved])

    def unionByName(self, other: PlayedFrame, *, allowMissingColumns: bool) -> PlayedFrame:  # noqa: N802, N803
        assert allowMissingColumns
        columns = [*dict.fromkeys([*self.columns, *other.columns])]
        return PlayedFrame(columns, [{name: row.get(name) for name in columns} for row in [*self.rows, *other.rows]])

    def persist(self, _level: object = None) -> Self:
        self.is_kept = True
        return self

    def unpersist(self) -> None:
        self.is_kept = False

    def count(self) -> int:
        self.times_counted += 1
        return len(self.rows)

    def collect(self) -> list[Row]:
        self.times_counted += 1
        return self.rows

    def mapInArrow(self, function: Any, schema: object) -> PlayedFrame:  # noqa: N802 - Spark's name
        return PlayedFrame(self.columns, self.rows, given=[*self.given, (function, schema)])


def frame_of(*rows: Row, columns: Sequence[str] = ()) -> Any:
    return PlayedFrame([*(columns or rows[0])], [*rows])


def col(name: str) -> PlayedColumn:
    plain = name.removesuffix(".*") if name.endswith(".*") else re.sub("``", "`", re.sub("^`|`$", "", name))
    return PlayedColumn(operator.itemgetter(plain), name if name.endswith(".*") else plain)


def lit(value: Any) -> PlayedColumn:
    return PlayedColumn(lambda _: value)


def struct(*columns: str | PlayedColumn) -> PlayedColumn:
    if columns == ("*",):
        return PlayedColumn(dict)
    found = [col(each) if isinstance(each, str) else each for each in columns]
    return PlayedColumn(lambda row: {each.name: each.of(row) for each in found})


def spark_hash(*columns: PlayedColumn) -> PlayedColumn:
    """Hashes strings and numbers of 32 bits as Spark does."""
    return PlayedColumn(
        lambda row: int(hash_codes([_array(each.of(row)) for each in columns], HashId.SPARK)[0]), "hash"
    )


def arrow_udf(function: Callable[..., pa.Array], **_: Any) -> Callable[..., PlayedColumn]:
    return lambda *columns: PlayedColumn(lambda row: function(*(_array(each.of(row)) for each in columns))[0].as_py())


def _array(value: Any) -> pa.Array:
    return pa.array([value], pa.int32() if isinstance(value, int) else None)


def _unary(function: Callable[[Any], Any]) -> Callable[[PlayedColumn], PlayedColumn]:
    return lambda column: PlayedColumn(lambda row: function(column.of(row)))


functions = cast(
    "Any",
    SimpleNamespace(
        abs=_unary(abs),
        arrow_udf=arrow_udf,
        coalesce=lambda first, other: PlayedColumn(
            lambda row: other.of(row) if first.of(row) is None else first.of(row)
        ),
        col=col,
        floor=_unary(math.floor),
        get=lambda array, place: PlayedColumn(lambda row: array.of(row)[place.of(row)]),
        hash=spark_hash,
        lit=lit,
        split=lambda column, by: PlayedColumn(lambda row: column.of(row).split(by)),
        struct=struct,
    ),
)
