"""A frame of Spark over rows of Python, and a session that makes and reads such frames, without a JVM."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.support.sinks.file_system import MappedFrame, ModelSession
from tests.support.spark.played_columns import PlayedColumn, lit, named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Rows = list[dict[str, Any]]


def frame_of(*rows: dict[str, Any], schema: StructType | Sequence[str] = ()) -> Any:
    """Returns a frame of one partition, with the columns of its first row as texts unless a schema says others."""
    if not isinstance(schema, StructType):
        schema = StructType([StructField(name, StringType()) for name in schema or rows[0]])
    return PlayedFrame(schema, [[*rows]])


@dataclass(eq=False)
class PlayedFrame:
    """A frame, which says whether it is kept and how often it was computed alone.

    Attributes:
        schema: The schema.
        partitions: The rows of each partition.
    """

    schema: StructType
    partitions: list[Rows]
    isStreaming: bool = True  # noqa: N815 - Spark's name, as those below
    is_kept: bool = False
    times_counted: int = 0
    written: dict[str, Any] = field(default_factory=dict)
    """The options of `write`."""

    @property
    def columns(self) -> list[str]:
        return self.schema.names

    @property
    def rows(self) -> Rows:
        return [row for rows in self.partitions for row in rows]

    def select(self, *columns: str | PlayedColumn) -> PlayedFrame:
        chosen = [one for each in columns for one in self._spread(named(each))]
        fields = []
        for each in chosen:
            found = each.field_in(self.schema)
            if each.explodes:
                fields.append(StructField(each.names[0], LongType()))
            fields.append(StructField(each.names[-1], found.dataType, found.nullable, found.metadata))
        return PlayedFrame(StructType(fields), [_selected(rows, chosen) for rows in self.partitions])

    def withColumn(self, name: str, column: PlayedColumn) -> PlayedFrame:  # noqa: N802
        return self.withColumns({name: column})

    def withColumns(self, columns: Mapping[str, PlayedColumn]) -> PlayedFrame:  # noqa: N802
        made = {name: column.alias(name) for name, column in columns.items()}
        return self.select(*({name: _quoted(name) for name in self.columns} | made).values())

    def drop(self, *names: str) -> PlayedFrame:
        return self.select(*(_quoted(each) for each in self.columns if each not in names))

    def where(self, condition: PlayedColumn | str) -> PlayedFrame:
        holds: Any = condition
        if isinstance(condition, str):
            name = condition.removesuffix(" IS NOT NULL")
            assert condition == "true" or name != condition
            holds = lit(True) if condition == "true" else PlayedColumn(lambda row: row[name] is not None)
        return PlayedFrame(self.schema, [list(filter(holds.value, rows)) for rows in self.partitions])

    def union(self, other: PlayedFrame) -> PlayedFrame:
        """Joins the rows by the places of their columns, as Spark does."""
        assert len(self.columns) == len(other.columns)
        moved = [
            [dict(zip(self.columns, map(row.get, other.columns), strict=True)) for row in rows]
            for rows in other.partitions
        ]
        return PlayedFrame(self.schema, [*self.partitions, *moved])

    def unionByName(self, other: PlayedFrame, *, allowMissingColumns: bool) -> PlayedFrame:  # noqa: N802, N803
        assert allowMissingColumns
        fields = {each.name: each for each in [*other.schema.fields, *self.schema.fields]}
        names = [*dict.fromkeys([*self.columns, *other.columns])]
        rows = [
            [{name: row.get(name) for name in names} for row in rows] for rows in self.partitions + other.partitions
        ]
        return PlayedFrame(StructType([fields[name] for name in names]), rows)

    def distinct(self) -> PlayedFrame:
        return self

    def groupBy(self, name: str) -> Any:  # noqa: N802
        counts = Counter(row[name] for row in self.rows)
        rows = [{name: value, "count": count} for value, count in counts.items()]
        return SimpleNamespace(count=lambda: frame_of(*rows, schema=[name, "count"]))

    def coalesce(self, partitions: int) -> PlayedFrame:
        assert partitions == 1
        return PlayedFrame(self.schema, [self.rows])

    def persist(self, _level: object = None) -> Self:
        self.is_kept = True
        return self

    def unpersist(self) -> None:
        self.is_kept = False

    def count(self) -> int:
        return len(self.collect())

    def collect(self) -> list[Any]:
        self.times_counted += 1
        return [_Row(row) for row in self.rows]

    def mapInArrow(self, function: Callable[[Any], Any], _: str) -> MappedFrame:  # noqa: N802
        return MappedFrame(((tuple(map(pa.Table.from_pylist, self.partitions)), function),))

    @property
    def write(self) -> PlayedFrame:
        return self

    def options(self, **options: Any) -> PlayedFrame:
        return PlayedFrame(self.schema, self.partitions, written=options)

    def parquet(self, path: str) -> None:
        """Writes the files of each partition, each with as many records as it may have."""
        Path(path).mkdir(parents=True)
        for number, rows in enumerate(self.partitions):
            size = self.written.get("maxRecordsPerFile") or max(1, len(rows))
            for chunk, at in enumerate(range(0, max(1, len(rows)), size)):
                name = f"part-{number:05}-f00-c{chunk:03}.parquet"
                Path(path, name).write_bytes(pickle.dumps(rows[at : at + size]))

    def _spread(self, column: PlayedColumn) -> list[PlayedColumn]:
        """Returns the columns of a column: a struct's, if all its fields are asked for."""
        if column.names != ("*",):
            return [column]
        names = dict.fromkeys(name for row in self.rows for name in column.value(row))
        return [column[name].alias(name) for name in names]


@dataclass(frozen=True, slots=True)
class PlayedSession(ModelSession):
    """A session that makes played frames, and reads the files that played frames have written."""

    @property
    def read(self) -> Any:
        def schema(columns: StructType) -> Any:
            return SimpleNamespace(parquet=lambda *paths: PlayedFrame(columns, _read(paths)))

        return SimpleNamespace(schema=schema)

    def createDataFrame(self, rows: Rows, schema: StructType) -> PlayedFrame:  # noqa: N802
        return PlayedFrame(schema, [rows])


class _Row(dict[str, Any]):
    """A row, whose fields are also attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def _selected(rows: Rows, columns: Sequence[PlayedColumn]) -> Rows:
    """Returns the rows of some columns: several of a row for a column that explodes."""
    found = []
    for row in rows:
        made: Rows = [{}]
        for each in columns:
            values = [*enumerate(each.value(row))] if each.explodes else [(each.value(row),)]
            made = [one | dict(zip(each.names, value, strict=True)) for one in made for value in values]
        found += made
    return found


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _read(paths: tuple[str, ...]) -> list[Rows]:
    files = [file for path in map(Path, paths) for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    return [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301 - our own files
