"""Frames of Spark over rows of Python: what streams and a Kafka sink do with records before they are written."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.types import StringType, StructField, StructType

from tests.support.sinks.file_system import MappedFrame, ModelSession, TableFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.spark.played_columns import PlayedColumn

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RowSession(ModelSession):
    """A session that reads the files of row frames, with the columns that they were written with."""

    @property
    def read(self) -> Any:
        def schema(columns: StructType) -> Any:
            return SimpleNamespace(parquet=lambda *paths: RowFrame(self, columns.names, _read(paths)))

        return SimpleNamespace(schema=schema)

    def createDataFrame(self, rows: Rows, schema: StructType) -> RowFrame:  # noqa: N802 - Spark's name
        return RowFrame(self, schema.names, [list(rows)], {each.name: each for each in schema.fields})


@dataclass(frozen=True, slots=True)
class RowFrame:
    """A frame.

    Attributes:
        session: The session.
        columns: The names of the columns.
        partitions: The rows of each partition.
        fields: The fields of the columns that are not nullable strings.
    """

    session: ModelSession
    columns: list[str]
    partitions: list[Rows]
    fields: dict[str, StructField] = field(default_factory=dict)
    isStreaming: bool = True  # noqa: N815 - Spark's name
    writes: dict[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> StructType:
        return StructType([self.fields.get(name, StructField(name, StringType())) for name in self.columns])

    def withColumn(self, name: str, column: PlayedColumn) -> RowFrame:  # noqa: N802 - Spark's name, as below
        return self.withColumns({name: column})

    def withColumns(self, columns: Mapping[str, PlayedColumn]) -> RowFrame:  # noqa: N802
        def changed(row: dict[str, Any]) -> dict[str, Any]:
            return row | {name: column.value(row) for name, column in columns.items()}

        return self._next(list(dict.fromkeys([*self.columns, *columns])), changed)

    def drop(self, *names: str) -> RowFrame:
        return self.select(*(name for name in self.columns if name not in names))

    def select(self, *columns: str | PlayedColumn) -> RowFrame:
        names = [each if isinstance(each, str) else each.name for each in columns]
        if unknown := [name for name in names if name not in self.columns]:
            raise UnresolvedError(f"{unknown[0]} cannot be resolved\nin the plan")
        return self._next(list(names), lambda row: {name: row[name] for name in names})

    def where(self, condition: PlayedColumn | str) -> RowFrame:
        def holds(row: dict[str, Any]) -> bool:
            if isinstance(condition, str):
                name, rest = condition.split(" ", 1)
                assert rest == "IS NOT NULL"
                return row[name] is not None
            return bool(condition.value(row))

        return replace(self, partitions=[list(filter(holds, rows)) for rows in self.partitions])

    def distinct(self) -> RowFrame:
        return self

    def collect(self) -> list[Any]:
        return [_Row(row) for rows in self.partitions for row in rows]

    def groupBy(self, name: str) -> Any:  # noqa: N802
        counts = Counter(row[name] for row in self.collect_rows())
        rows = [{name: value, "count": count} for value, count in counts.items()]
        return SimpleNamespace(count=lambda: RowFrame(self.session, [name, "count"], [rows]))

    def coalesce(self, partitions: int) -> RowFrame:
        assert partitions == 1
        return replace(self, partitions=[self.collect_rows()])

    def collect_rows(self) -> Rows:
        return [row for rows in self.partitions for row in rows]

    @property
    def write(self) -> RowFrame:
        return self

    def options(self, **options: Any) -> RowFrame:
        return replace(self, writes=options)

    def parquet(self, path: str) -> None:
        """Writes the files of each partition, each with as many records as it may have."""
        Path(path).mkdir(parents=True)
        for number, rows in enumerate(self.partitions):
            size = self.writes.get("maxRecordsPerFile") or max(1, len(rows))
            for chunk, at in enumerate(range(0, max(1, len(rows)), size)):
                name = f"part-{number:05}-f00-c{chunk:03}.parquet"
                Path(path, name).write_bytes(pickle.dumps((self.columns, rows[at : at + size])))

    def mapInArrow(self, function: Callable[[Any], Any], _: str) -> MappedFrame:  # noqa: N802
        tables = tuple(pa.Table.from_pylist(rows) for rows in self.partitions)
        return MappedFrame(((TableFrame(self.session, tables), function),))

    def _next(self, columns: list[str], change: Callable[[dict[str, Any]], dict[str, Any]]) -> RowFrame:
        return replace(self, columns=columns, partitions=[list(map(change, rows)) for rows in self.partitions])


class UnresolvedError(AnalysisException):
    """Spark's error for a column that is not there."""

    def getCondition(self) -> str:  # noqa: N802 - Spark's name
        return "UNRESOLVED_COLUMN.WITH_SUGGESTION"


class _Row(dict[str, Any]):
    """A row, whose fields are also attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def _read(paths: tuple[str, ...]) -> list[Rows]:
    files = [file for path in map(Path, paths) for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    return [pickle.loads(file.read_bytes())[1] for file in files]  # noqa: S301 - our own files
