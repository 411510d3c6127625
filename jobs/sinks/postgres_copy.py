"""The executors' part of the PostgreSQL sink.

Each task copies its rows into the batch's staging table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.types.json import Jsonb
from pyspark import TaskContext

from keyscale.errors import KeyscaleError

from ..operators.failures import CarriedFailure, TaskOrigin
from .dead_letters import refused
from .postgres_connection import described, is_of_rows, transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TASK_COLUMN = "_keyscale_task"
ROW_COLUMN = "_keyscale_row"

COPIED = "task bigint, row string, error string"
"""The schema of a task's result: its id, and then each refused row, as JSON, with the reason."""


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Copies a partition's rows in one transaction.

    Each row gets its task and its index in the task.

    A task that runs twice copies its rows twice; only rows of tasks with results in the driver count.

    Attributes:
        url: The address of the database.
        session: The name of the database sessions.
        stage: The batch's staging table, quoted.
        columns: The stream's columns.
        uid: The sink's uid, for errors.
        may_refuse: Whether a refused row is left out and returned, instead of failing the task.
    """

    url: str = field(repr=False)
    session: str
    stage: str
    columns: tuple[str, ...]
    uid: str
    may_refuse: bool = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copies the rows, then yields the task's id and the refused rows.

        Raises:
            CarriedFailure: PostgreSQL refused rows or does not answer.
        """
        task = TaskContext.get()
        assert task is not None  # noqa: S101 - Spark runs this in a task
        task_id = task.taskAttemptId()
        try:
            letters = self._copy(batches, task_id)
        except KeyscaleError as error:
            raise CarriedFailure(error, TaskOrigin(self.uid, task.partitionId())) from None
        returned = [(task_id, None, None), *((task_id, self._as_json(row), reason) for row, reason in letters)]
        columns = dict(zip(("task", "row", "error"), zip(*returned, strict=True), strict=True))
        yield pa.RecordBatch.from_pydict(
            {
                "task": pa.array(columns["task"], pa.int64()),
                "row": pa.array(columns["row"], pa.string()),
                "error": pa.array(columns["error"], pa.string()),
            }
        )

    def _copy(self, batches: Iterator[pa.RecordBatch], task_id: int) -> list[tuple[Sequence[Any], str]]:
        """Copies the rows; returns refused rows with the reason."""
        columns = sql.SQL(", ").join(map(sql.Identifier, (*self.columns, TASK_COLUMN, ROW_COLUMN)))
        # The sink passes the quoted name of the table.
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.SQL(self.stage), columns)
        first = next(batches, None)
        if first is None:
            return []
        rows = _numbered(chain([first], batches), task_id)
        with transaction(self.url, self.session) as connection:
            if self.may_refuse:
                accept = partial(_accept, connection, statement)
                return [letter for some in rows for letter in refused(some, accept)]
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                for some in rows:
                    for row in some:
                        copy.write_row(row)
        return []

    def _as_json(self, row: Sequence[Any]) -> str:
        """Returns the stream's columns of a row as JSON.

        Bytes are in hexadecimal, as PostgreSQL writes them.
        """
        plain = (value.obj if isinstance(value, Jsonb) else value for value in row)
        plain = (f"\\x{value.hex()}" if isinstance(value, bytes) else value for value in plain)
        return _to_json(dict(zip(self.columns, plain, strict=False)))  # without the task and the index


def _accept(connection: psycopg.Connection[Any], statement: sql.Composed, rows: Sequence[Sequence[Any]]) -> str | None:
    """Copies all rows or no row; returns the reason of a refusal."""
    try:
        with connection.transaction(), connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        if not is_of_rows(error):
            raise
        return described(error)
    return None


def _numbered(batches: Iterator[pa.RecordBatch], task_id: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yields the rows of each batch, with their task and index."""
    place = 0
    for batch in batches:
        values = [_values(batch.column(at)) for at in range(batch.num_columns)]
        places = range(place, place + batch.num_rows)
        yield [(*row, task_id, at) for at, *row in zip(places, *values, strict=True)]
        place += batch.num_rows


def _values(column: pa.Array) -> list[Any]:
    """Returns a column's values for psycopg.

    Nested values are JSON, but arrays of plain values are arrays.
    """
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    if pa.types.is_nested(column.type) and not _is_plain_list(column.type):
        return [None if value is None else Jsonb(value, dumps=_to_json) for value in values]
    return values


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _is_plain_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind)) and not _is_nested(kind.value_type)


_to_json: Callable[[Any], str] = partial(json.dumps, default=str)
