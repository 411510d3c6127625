"""The executors' part of the PostgreSQL sink: each task copies its rows into the batch's own table."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.types.json import Jsonb
from pyspark import TaskContext

from jobs.errors import SinkRowsRefusedError, SinkUnavailableError
from jobs.runtime.failures import CarriedFailure, TaskOrigin
from state.errors import KeyscaleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TASK_COLUMN = "_keyscale_task"
ROW_COLUMN = "_keyscale_row"

_AWAY = ("08", "28", "53", "57", "58")  # SQLSTATE classes: connection, authorization, resources, shutdown, system


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Copies a partition's rows, each with its task and its place in it, in one transaction.

    A task that is run twice copies twice: only the rows of tasks that the driver has heard of count.

    Attributes:
        url: Of the database.
        stage: The batch's table, quoted.
        columns: The stream's.
        uid: The sink's, for errors.
    """

    url: str = field(repr=False)
    stage: str
    columns: tuple[str, ...]
    uid: str

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gives the task's id once its rows are durable.

        Raises:
            CarriedFailure: PostgreSQL refused rows or is away.
        """
        task = TaskContext.get()
        assert task is not None  # noqa: S101 - Spark runs this in a task
        task_id = task.taskAttemptId()
        try:
            self._copy(batches, task_id)
        except KeyscaleError as error:
            raise CarriedFailure(error, TaskOrigin(self.uid, task.partitionId())) from None
        yield pa.RecordBatch.from_pydict({"task": pa.array([task_id], pa.int64())})

    def _copy(self, batches: Iterator[pa.RecordBatch], task_id: int) -> None:
        columns = sql.SQL(", ").join(map(sql.Identifier, (*self.columns, TASK_COLUMN, ROW_COLUMN)))
        # The table's name comes quoted from the sink.
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.SQL(self.stage), columns)
        place = 0
        first = next(batches, None)
        if first is None:
            return
        with (
            errors_without_data(),
            psycopg.connect(self.url) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for batch in chain([first], batches):
                values = [_values(batch.column(at)) for at in range(batch.num_columns)]
                for row in zip(*values, strict=True):
                    copy.write_row((*row, task_id, place))
                    place += 1


def _values(column: pa.Array) -> list[Any]:
    """A column's values as psycopg writes them: what is nested as JSON, arrays of plain values as arrays."""
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    if pa.types.is_nested(column.type) and not _is_plain_list(column.type):
        return [None if value is None else Jsonb(value, dumps=_to_json) for value in values]
    return values


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def _is_plain_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind)) and not _is_nested(kind.value_type)


_to_json: Callable[[Any], str] = partial(json.dumps, default=str)


@contextmanager
def errors_without_data() -> Iterator[None]:
    """Turns PostgreSQL's errors, whose texts quote rows, into ours, which name table, column and constraint.

    Raises:
        SinkUnavailableError: It is away, or lets nobody in.
        SinkRowsRefusedError: It refuses what it was asked.
    """
    try:
        yield
    except psycopg.Error as error:
        kind, state = type(error).__name__, error.sqlstate
        if state is None or state[:2] in _AWAY:
            message = f"PostgreSQL cannot be used: {kind}{f' ({state})' if state else ''}"
            raise SinkUnavailableError(message) from None
        where = [
            f"{what} {name}"
            for what, name in (
                ("table", error.diag.table_name),
                ("column", error.diag.column_name),
                ("constraint", error.diag.constraint_name),
            )
            if name
        ]
        message = f"PostgreSQL refuses: {kind} ({state}){', ' if where else ''}{', '.join(where)}"
        raise SinkRowsRefusedError(message) from None
