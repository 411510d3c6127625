"""Frames of Spark played on lists of dictionaries, for fast tests of columns that are renamed, divided and exploded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, LongType, StructField, StructType

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class PlayedColumn:
    """A column over a row."""

    names: tuple[str, ...]
    read: Callable[[dict[str, Any]], Any]
    type_in: Callable[[StructType], Any]
    explodes: bool = False

    def alias(self, *names: str) -> PlayedColumn:
        return replace(self, names=names)

    def __truediv__(self, divisor: float) -> PlayedColumn:
        return replace(self, read=lambda row: self.read(row) / divisor)

    def cast(self, kind: str | StructType) -> PlayedColumn:
        if isinstance(kind, StructType):

            def renamed(row: dict[str, Any]) -> dict[str, Any]:
                return dict(zip(kind.names, self.read(row).values(), strict=True))

            return replace(self, read=renamed, type_in=lambda _: kind)
        assert kind == "bigint"
        return replace(self, read=lambda row: int(self.read(row)), type_in=lambda _: LongType())


class PlayedFunctions:
    """Takes the place of `pyspark.sql.functions`, which need a running Spark."""

    def col(self, path: str) -> PlayedColumn:
        parts = path.split(".")

        def read(row: dict[str, Any]) -> Any:
            found: Any = row
            for part in parts:
                found = None if found is None else found[part]
            return found

        def type_in(schema: StructType) -> DataType:
            found: Any = schema
            for part in parts:
                found = found[part].dataType
            return found  # type: ignore[no-any-return]

        return PlayedColumn((parts[-1],), read, type_in)

    def posexplode(self, path: str) -> PlayedColumn:
        column = self.col(path)

        def type_in(schema: StructType) -> DataType:
            of_list = column.type_in(schema)
            assert isinstance(of_list, ArrayType)
            return of_list.elementType

        return replace(column, type_in=type_in, explodes=True)


@dataclass(frozen=True, slots=True)
class PlayedFrame:
    """Some rows with their schema."""

    schema: StructType
    rows: list[dict[str, Any]]

    @property
    def columns(self) -> list[str]:
        return self.schema.names

    def select(self, *columns: str | PlayedColumn) -> PlayedFrame:
        chosen = [PlayedFunctions().col(each) if isinstance(each, str) else each for each in columns]
        fields = []
        for each in chosen:
            kinds = [LongType(), each.type_in(self.schema)] if each.explodes else [each.type_in(self.schema)]
            fields += [StructField(name, kind) for name, kind in zip(each.names, kinds, strict=True)]
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            made: list[dict[str, Any]] = [{}]
            for each in chosen:
                values = [[*pair] for pair in enumerate(each.read(row))] if each.explodes else [[each.read(row)]]
                made = [one | dict(zip(each.names, value, strict=True)) for one in made for value in values]
            rows += made
        return PlayedFrame(StructType(fields), rows)

    def withColumn(self, name: str, column: PlayedColumn) -> PlayedFrame:  # noqa: N802 - Spark's name
        others = [each for each in self.columns if each != name]
        return self.select(*others, column.alias(name)).select(*self.columns)

    def where(self, condition: str) -> PlayedFrame:
        name, _, rest = condition.partition(" ")
        assert rest == "IS NOT NULL"
        return replace(self, rows=[row for row in self.rows if row[name] is not None])

    def collect(self) -> list[dict[str, Any]]:
        return self.rows
