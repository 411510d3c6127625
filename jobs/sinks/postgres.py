"""A table of PostgreSQL: the rows of a batch appear in one transaction with the marker that the batch is there."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import psycopg
from psycopg import sql

from jobs.errors import SinkOccupiedError, SinkPublishError, SinkRowsRefusedError, SinkUnavailableError
from jobs.secret import Secret, revealed
from jobs.sinks.postgres_copy import ROW_COLUMN, TASK_COLUMN, CopyRows, errors_without_data
from jobs.sinks.published import Published, Step, is_rewound, next_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from jobs.sinks.contract import SinkContext

MARKERS = "_keyscale_published"
_STAGE = "_keyscale_"
_LAST = (TASK_COLUMN, ROW_COLUMN)
_LOCK = 0x6B657973  # "keys": of whoever makes the table of markers


class _Token(msgspec.Struct, frozen=True):
    job_id: str
    uid: str
    batch_id: int
    attempt: int
    stage: str
    columns: tuple[str, ...]
    tasks: tuple[int, ...]


class PostgresSink:
    """Appends each batch's rows to a table, or with `keys` inserts and updates by them; exactly once.

    `prepare` has the executors copy the rows into a table of the batch's own. After the commit `publish` moves them, and the
    marker of (job, uid) in `_keyscale_published`, in one transaction; a batch that the marker contains is left alone, and so is
    everything once a newer attempt has begun. Both kinds of table are made in the schema of the target, where the
    user needs the right to create them; the rows of a batch pass through it twice.

    NOT NULL and CHECK constraints of the target refuse rows before the commit, and fail the batch. A unique or foreign key can
    only refuse them afterwards: the job then fails, at every start, until the table lets the rows in.

    A job that goes back to an earlier savepoint takes its later rows back with `batch_column`. With `keys` it overwrites
    them. With neither it refuses to start: rows would be there twice.

    Args:
        url: Of the database, as libpq takes it. Give a Secret if it holds a password.
        table: `table` or `schema.table`. It has a column for each of the stream's, found by name.
        keys: Columns by which rows are inserted or updated; the table needs a unique index on exactly these. Of several rows
            of one key in a batch the last one counts that its subtask has put out.
        batch_column: A bigint column of the table that is to hold each row's batch. The table must then be this sink's alone.
    """

    reads_repeatedly: ClassVar[bool] = False

    def __init__(
        self, url: str | Secret, table: str, *, keys: Sequence[str] = (), batch_column: str | None = None
    ) -> None:
        self._url = url
        self._table = table
        self._keys = tuple(keys)
        self._batch_column = batch_column
        self._has_markers = False

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        """Copies the batch into a table of its own.

        Raises:
            SinkRowsRefusedError: The target or its constraints refuse the columns or a row.
            SinkUnavailableError: The database cannot be reached.
        """
        stage = f"{_stage_prefix(context.job_id, context.uid)}{context.attempt}_{context.batch_id}_{context.unique[:8]}"
        columns = tuple(frame.columns)
        token = _Token(context.job_id, context.uid, context.batch_id, context.attempt, stage, columns, ())
        try:
            with self._connection() as connection:
                _refuse_missing_columns(connection, self._target, self._table, self._needed_columns(columns))
                connection.execute(_create_stage(self._sibling(stage), self._target))
                connection.execute(sql.SQL("EXPLAIN ") + self._move(token))  # refuses what publish would be refused
            copy = CopyRows(revealed(self._url), self._sibling(stage).as_string(), columns, context.uid)
            written = frame.mapInArrow(copy.run, "task bigint").collect()
        except Exception:
            self._discard_quietly(token)
            raise
        tasks = tuple(sorted(row.task for row in written))
        return msgspec.json.encode(msgspec.structs.replace(token, tasks=tasks)).decode()

    def publish(self, token: str) -> None:
        """Moves a batch from its own table into the target, unless it is there.

        Raises:
            SinkOccupiedError: A newer attempt has taken over.
            SinkRowsRefusedError: A unique or foreign key refuses a row.
            SinkPublishError: The batch's own table is gone.
            SinkUnavailableError: The database cannot be reached.
        """
        key = msgspec.json.decode(token, type=_Token)
        with self._connection() as connection:
            step = next_step(self._locked_marker(connection, key.job_id, key.uid), key.attempt, key.batch_id)
            if step is Step.REFUSE:
                message = f"a newer attempt than {key.attempt} writes the output of sink {key.uid}"
                raise SinkOccupiedError(message)
            if step is Step.APPLY:
                if not _exists(connection, self._sibling(key.stage)):
                    message = f"the staged rows of batch {key.batch_id} of sink {key.uid} are gone"
                    raise SinkPublishError(message)
                connection.execute(self._move(key), {"tasks": list(key.tasks)})
                self._set_marker(connection, key.job_id, key.uid, Published(key.attempt, key.batch_id))
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._sibling(key.stage)))

    def discard(self, token: str) -> None:
        key = msgspec.json.decode(token, type=_Token)
        with self._connection() as connection:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._sibling(key.stage)))

    def recover(self, context: SinkContext) -> None:
        """Takes the sink over for an attempt, and removes what earlier ones have left.

        Raises:
            SinkOccupiedError: A newer attempt has it, or the table holds rows that would be there twice.
            SinkUnavailableError: The database cannot be reached.
        """
        with self._connection() as connection:
            marker = self._locked_marker(connection, context.job_id, context.uid)
            if marker is not None and marker.attempt > context.attempt:
                message = f"attempt {marker.attempt} writes the output of sink {context.uid}"
                raise SinkOccupiedError(message)
            if is_rewound(marker, context.batch_id):
                self._take_back(connection, context)
            self._set_marker(connection, context.job_id, context.uid, Published(context.attempt, context.batch_id))
            prefix = _stage_prefix(context.job_id, context.uid)
            for name in _tables(connection, self._schema, prefix):
                if int(name.removeprefix(prefix).split("_")[0]) < context.attempt:
                    connection.execute(sql.SQL("DROP TABLE {}").format(self._sibling(name)))

    def _take_back(self, connection: psycopg.Connection[Any], context: SinkContext) -> None:
        """Deletes the rows of batches that the job's history no longer contains, where they can be told."""
        if self._batch_column is not None:
            statement = sql.SQL("DELETE FROM {} WHERE {} > %s").format(self._target, sql.Identifier(self._batch_column))
            connection.execute(statement, (context.batch_id,))
        elif not self._keys:
            message = (
                f"table {self._table} holds rows of batches after {context.batch_id}, to which the job has gone back: give the "
                f"sink keys or a batch column; or remove them, and then the row of sink {context.uid} from {MARKERS}"
            )
            raise SinkOccupiedError(message)

    def _move(self, token: _Token) -> sql.Composed:
        """The statement that moves the staged rows into the target; of each key the last one."""
        names = [sql.Identifier(name) for name in token.columns]
        into, values = list(names), list[sql.Composable](names)
        if self._batch_column is not None:
            into.append(sql.Identifier(self._batch_column))
            values.append(sql.Literal(token.batch_id))
        keys = [sql.Identifier(name) for name in self._keys]
        comma = sql.SQL(", ")
        once = sql.SQL("DISTINCT ON ({}) ").format(comma.join(keys)) if keys else sql.SQL("")
        order: list[sql.Composable] = [*keys, *(sql.SQL("{} DESC").format(sql.Identifier(c)) for c in _LAST)]
        tasks = sql.SQL("{} = ANY(%(tasks)s)").format(sql.Identifier(TASK_COLUMN)) if token.tasks else sql.SQL("false")
        statement = sql.SQL("INSERT INTO {} ({}) SELECT {}{} FROM {} WHERE {}").format(
            self._target, comma.join(into), once, comma.join(values), self._sibling(token.stage), tasks
        )
        if not keys:
            return statement
        updates = [sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in into if name not in keys]
        action = sql.SQL("UPDATE SET ") + comma.join(updates) if updates else sql.SQL("NOTHING")
        conflict = sql.SQL(" ORDER BY {} ON CONFLICT ({}) DO ").format(comma.join(order), comma.join(keys))
        return statement + conflict + action

    def _needed_columns(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        batch = () if self._batch_column is None else (self._batch_column,)
        return tuple(dict.fromkeys((*columns, *self._keys, *batch)))

    def _locked_marker(self, connection: psycopg.Connection[Any], job_id: str, uid: str) -> Published | None:
        """The sink's marker, which nobody else can change before the transaction ends."""
        markers = self._sibling(MARKERS)
        if not self._has_markers:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (job_id text, uid text, attempt bigint NOT NULL, batch_id bigint NOT NULL, "
                    "published_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job_id, uid))"
                ).format(markers)
            )
            connection.commit()
            self._has_markers = True
        statement = sql.SQL("SELECT attempt, batch_id FROM {} WHERE job_id = %s AND uid = %s FOR UPDATE")
        row = connection.execute(statement.format(markers), (job_id, uid)).fetchone()
        return None if row is None else Published(*row)

    def _set_marker(self, connection: psycopg.Connection[Any], job_id: str, uid: str, marker: Published) -> None:
        statement = sql.SQL(
            "INSERT INTO {} (job_id, uid, attempt, batch_id) VALUES (%s, %s, %s, %s) ON CONFLICT (job_id, uid) "
            "DO UPDATE SET attempt = EXCLUDED.attempt, batch_id = EXCLUDED.batch_id, published_at = now()"
        )
        values = (job_id, uid, marker.attempt, marker.batch_id)
        connection.execute(statement.format(self._sibling(MARKERS)), values)

    def _discard_quietly(self, token: _Token) -> None:
        try:
            self.discard(msgspec.json.encode(token).decode())
        except (SinkUnavailableError, SinkRowsRefusedError):
            return  # the first failure is the one to tell; `recover` removes what is left

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction of its own connection; committed at the end."""
        with errors_without_data(), psycopg.connect(revealed(self._url)) as connection:
            yield connection

    @property
    def _schema(self) -> str | None:
        schema, _, _ = self._table.rpartition(".")
        return schema or None

    @property
    def _target(self) -> sql.Identifier:
        return sql.Identifier(*self._table.split("."))

    def _sibling(self, name: str) -> sql.Identifier:
        """A table beside the target."""
        return sql.Identifier(self._schema, name) if self._schema else sql.Identifier(name)


def _stage_prefix(job_id: str, uid: str) -> str:
    """What the names of all batches' own tables of a sink begin with."""
    return f"{_STAGE}{hashlib.sha256(f'{job_id}/{uid}'.encode()).hexdigest()[:12]}_"


def _create_stage(stage: sql.Identifier, target: sql.Identifier) -> sql.Composed:
    like = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING IDENTITY"
    return sql.SQL("CREATE TABLE {} (LIKE {} " + like + ", {} bigint, {} bigint)").format(
        stage, target, sql.Identifier(TASK_COLUMN), sql.Identifier(ROW_COLUMN)
    )


def _refuse_missing_columns(
    connection: psycopg.Connection[Any], target: sql.Identifier, table: str, needed: Sequence[str]
) -> None:
    there = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(target)).description or ()
    missing = sorted(set(needed) - {column.name for column in there})
    if missing:
        message = f"table {table} has no column {', '.join(missing)}"
        raise SinkRowsRefusedError(message)


def _exists(connection: psycopg.Connection[Any], table: sql.Identifier) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table.as_string(),)).fetchone()
    return row is not None and bool(row[0])


def _tables(connection: psycopg.Connection[Any], schema: str | None, prefix: str) -> list[str]:
    rows = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = coalesce(%s, current_schema()) AND starts_with(tablename, %s)",
        (schema, prefix),
    )
    return [row[0] for row in rows.fetchall()]
