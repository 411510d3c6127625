"""The PostgreSQL sink.

The rows of a batch appear in one transaction with a marker of the batch.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession

from ..errors import (
    InvalidTopologyError,
    SinkOccupiedError,
    SinkPublishError,
    SinkRowsRefusedError,
    SinkUnavailableError,
)
from ..secret import Secret, revealed
from ..spark_internals.arrow_schemas import spark_schema_of
from .dead_letters import DeadLetters, refused
from .postgres_columns import columns_that_lose
from .postgres_connection import OURS, transaction
from .postgres_copy import COPIED, ROW_COLUMN, TASK_COLUMN, CopyRows
from .postgres_moves import OpenMoves
from .postgres_sessions import end_sessions_before, session_name
from .published import Published, Step, decoded_token, is_rewound, last_kept, next_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    import psycopg
    from pyspark.sql import DataFrame

    from .sink import Sink, SinkContext

logger = logging.getLogger(__name__)

MARKERS = "_keyscale_published"
_LAST = (TASK_COLUMN, ROW_COLUMN)
_Place: TypeAlias = tuple[int, int]  # a row's task, and its index in it
_LOCK = 0x6B657973  # "keys": held while creating the table of markers and, with a table's oid, while claiming it


_NAME_OF = sql.SQL(
    "(SELECT relnamespace::regnamespace || '.' || relname FROM pg_class WHERE oid = to_regclass(%(target)s))"
)
_HAS_TARGET = "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'target' AND NOT attisdropped"

_EXPLAIN_MARKER = (
    "EXPLAIN INSERT INTO {} (job_id, uid, attempt, batch_id) VALUES ('', '', 0, 0)"
    " ON CONFLICT (job_id, uid) DO UPDATE SET attempt = 0"
)

_SHAPE = """
SELECT md5(string_agg(part, E'\\n' ORDER BY part)) FROM (
  SELECT (attnum, attname, atttypid, atttypmod, attcollation, attnotnull, attidentity, attgenerated,
          pg_get_expr(adbin, adrelid))::text AS part
    FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
    WHERE attrelid = %(target)s::regclass AND attnum > 0
  UNION ALL
  SELECT (conname, pg_get_constraintdef(oid))::text FROM pg_constraint
    WHERE conrelid = %(target)s::regclass AND contype = 'c'
) AS parts
"""


class _Token(msgspec.Struct, frozen=True):
    job_id: str
    uid: str
    batch_id: int
    attempt: int
    stage: str
    columns: tuple[str, ...]
    tasks: tuple[int, ...]
    dead_letters: str | None = None
    dead_letter_rows: int = 0
    # The sink's table, keys and batch column, which another program may have changed; left out by earlier versions.
    table: str | None = None
    keys: tuple[str, ...] = ()
    batch_column: str | None = None


class PostgresSink:
    """Appends or upserts each batch's rows in a table, exactly once.

    With `keys` it inserts or updates rows by key.

    In `prepare` the executors copy the rows into a staging table, which successive batches share. Then the rows are
    moved to the target in a transaction that stays open. After the batch's commit, `publish` updates the marker of
    (job, uid) in `_keyscale_published` in the same transaction, and commits it; if the transaction was lost, `publish`
    moves the staged rows again. A batch that the marker covers is not published again, and an attempt publishes nothing
    once a newer attempt has begun. Both tables are created in the schema of the target, where the user needs the right
    to create tables. The rows of a batch are written twice.

    A row that the target refuses, by any constraint or trigger, is found before the batch's commit. Such a row fails
    the batch, or becomes a dead letter. Until the batch is published, other writers of the same keys wait.

    A job that goes back to an earlier savepoint deletes its later rows with a `batch_column`, and overwrites them with
    `keys`. Without both it refuses to start, since rows would be duplicated.

    Args:
        url: The address of the database, as libpq takes it. Give a Secret if it holds a password.
        table: `table` or `schema.table`. It has a column, of the same name, for each column of the stream.
        keys: Columns by which rows are inserted or updated; the table needs a unique index on exactly these columns. Of
            several rows with one key in a batch, the last one that the key's subtask emitted counts.
        batch_column: A bigint column of the table for the batch of each row. The table must then belong to this sink
            only.
        dead_letters: A sink for refused rows, which then do not fail the batch. It gets the columns `row`, the row as
            JSON, and `error`, only in batches with refused rows. Rows are then copied a little slower.
        shared: Whether other jobs may also write to the table. The rows of the jobs cannot be distinguished: a fork of
            the job still needs its own table, which is then not checked.
    """

    reads_repeatedly: ClassVar[bool] = False

    def __init__(
        self,
        url: str | Secret,
        table: str,
        *,
        keys: Sequence[str] = (),
        batch_column: str | None = None,
        dead_letters: Sink | None = None,
        shared: bool = False,
    ) -> None:
        if shared and batch_column is not None:
            raise InvalidTopologyError("a PostgreSQL sink with a batch column needs its own table, not a shared table")
        self._url = url
        self._table = table
        self._keys = tuple(keys)
        self._batch_column = batch_column
        self._dead_letters = DeadLetters(dead_letters)
        self._shared = shared
        self._has_markers = False
        self._stages: dict[str, str] = {}  # this run's staging tables, with their shapes
        self._free_stage: str | None = None  # the empty staging table

    def check(self, schema: pa.Schema, context: SinkContext) -> None:
        """Stages and moves no rows in a transaction that is taken back.

        PostgreSQL checks the rights of all statements.

        Raises:
            SinkForbiddenError: The database user lacks a right.
            SinkOccupiedError: Another job writes to the table.
            SinkRowsRefusedError: The target refuses the columns.
            SinkUnavailableError: The database cannot be reached.
        """
        columns = tuple(schema.names)
        stage = f"{_stage_prefix(context.job_id, context.uid)}{context.attempt}_check_{context.unique[:8]}"
        token = _Token(context.job_id, context.uid, context.batch_id, context.attempt, stage, columns, ())
        with self._connection(context) as connection:
            types = {field.name: field.dataType.simpleString() for field in spark_schema_of(schema)}
            _refuse_columns(self._table, _columns_of(connection, self._target), self._needed_columns(columns), types)
            connection.execute(_create_stage(self._sibling(stage), self._target))
            connection.execute(sql.SQL("EXPLAIN ") + self._move(token))
            self._ensure_markers(connection)
            connection.execute(sql.SQL(_EXPLAIN_MARKER).format(self._sibling(MARKERS)))
            if self._batch_column is not None:
                column = sql.Identifier(self._batch_column)
                connection.execute(sql.SQL("EXPLAIN DELETE FROM {} WHERE {} > 0").format(self._target, column))
            if not self._shared:
                self._refuse_a_shared_table(connection, context)
            connection.rollback()
        row = pa.schema([("row", pa.string())])
        self._dead_letters.check(row, context)

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        """Copies the batch to a staging table, then to the target uncommitted.

        Raises:
            SinkRowsRefusedError: The target or its constraints refuse the columns or a row.
            SinkUnavailableError: The database cannot be reached.
        """
        columns = tuple(frame.columns)
        place = (context.job_id, context.uid, context.batch_id, context.attempt)
        token = _Token(*place, "", columns, (), table=self._table, keys=self._keys, batch_column=self._batch_column)
        try:
            with self._connection(context) as connection:
                table = _columns_of(connection, self._target)
                _refuse_columns(self._table, table, self._needed_columns(columns), dict(frame.dtypes))
                token = msgspec.structs.replace(token, stage=self._staging_table(connection, context))
                connection.execute(sql.SQL("EXPLAIN ") + self._move(token))  # fails if publish would fail
                self._create_markers(connection)
            token, letters = self._copied(frame, token)
            letters += self._moved(token, context)
            if letters:
                reasons = Counter(reason for _, reason in letters)
                rows = SparkSession.active().createDataFrame(letters, "row string, error string")
                kept = self._dead_letters.prepare(rows, reasons, context)
                token = msgspec.structs.replace(token, dead_letters=kept, dead_letter_rows=len(letters))
        except Exception:
            self._discard_quietly(token)
            raise
        return msgspec.json.encode(token).decode()

    def _staging_table(self, connection: psycopg.Connection[Any], context: SinkContext) -> str:
        """Returns the name of an empty staging table, reused or new.

        Creating and dropping a table in every batch would bloat PostgreSQL's catalogs. A table is reused once its batch
        is published, as long as the target's columns and checks are unchanged.
        """
        prefix = _stage_prefix(context.job_id, context.uid)
        shape = _shape(connection, self._target)
        free, self._free_stage = self._free_stage, None
        if free is not None and self._stages.get(free) == shape and _exists(connection, self._sibling(free)):
            return free
        if free is not None:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._sibling(free)))
            self._stages.pop(free, None)
        made = f"{prefix}{context.attempt}_{context.batch_id}_{context.unique[:8]}"
        connection.execute(_create_stage(self._sibling(made), self._target))
        self._stages[made] = shape
        return made

    def _emptied(self, stage: str) -> sql.Composed:
        """Returns the statement that empties a staging table of this run.

        A staging table that another driver has left is dropped.
        """
        statement = "TRUNCATE {}" if stage in self._stages else "DROP TABLE IF EXISTS {}"
        return sql.SQL(statement).format(self._sibling(stage))

    def _copied(self, frame: DataFrame, token: _Token) -> tuple[_Token, list[tuple[str, str]]]:
        """Copies the rows into the staging table.

        Returns the refused rows, as JSON, with the reason.
        """
        stage, has_letters = self._sibling(token.stage).as_string(), self._dead_letters.sink is not None
        session = session_name(token.job_id, token.attempt)
        copy = CopyRows(revealed(self._url), session, stage, token.columns, token.uid, has_letters)
        copied = frame.mapInArrow(copy.run, COPIED).collect()
        tasks = tuple(sorted({row.task for row in copied}))
        return msgspec.structs.replace(token, tasks=tasks), [(row.row, row.error) for row in copied if row.error]

    def _moved(self, token: _Token, context: SinkContext) -> list[tuple[str, str]]:
        """Moves the staged rows in the open transaction.

        Refused rows are taken out of the staging table.

        If other writers hold locks, the rows are moved when they are published.
        """
        moves = OpenMoves.of(revealed(self._url), context)
        letters: list[tuple[str, str]] = []
        try:
            moves.take_back()
            reason = moves.try_move(self._move(token), {"tasks": list(token.tasks)})
            if reason is not None and self._dead_letters.sink is None:
                raise SinkRowsRefusedError(f"PostgreSQL refuses: {reason}")
            if reason is not None:
                letters = self._taken_out(
                    token, list(refused(self._places(token), partial(self._try_some, moves, token)))
                )
        except TimeoutError:
            OpenMoves.close(revealed(self._url), token.job_id)
        else:
            moves.keep(token.stage, partial(self._finish, token))
        return letters

    def _try_some(self, moves: OpenMoves, token: _Token, places: Sequence[_Place]) -> str | None:
        tasks, rows = (list(column) for column in zip(*places, strict=True))
        return moves.try_move(self._move(token, some=True), {"some_tasks": tasks, "some_rows": rows})

    def _places(self, token: _Token) -> list[_Place]:
        statement = sql.SQL("SELECT {0}, {1} FROM {2} WHERE {0} = ANY(%s) ORDER BY {0}, {1}")
        with self._connection(token) as connection:
            return connection.execute(
                statement.format(*map(sql.Identifier, _LAST), self._sibling(token.stage)), (list(token.tasks),)
            ).fetchall()

    def _taken_out(self, token: _Token, places: Sequence[tuple[_Place, str]]) -> list[tuple[str, str]]:
        """Deletes refused rows from the staging table.

        Returns each row as JSON, with the reason.
        """
        statement = sql.SQL("DELETE FROM {2} AS staged WHERE {0} = %s AND {1} = %s RETURNING to_jsonb(staged)")
        delete = statement.format(*map(sql.Identifier, _LAST), self._sibling(token.stage))
        letters = []
        with self._connection(token) as connection:
            for place, reason in places:
                for (row,) in connection.execute(delete, place):
                    letters.append((json.dumps({name: row[name] for name in token.columns}), reason))
        return letters

    def _finish(self, token: _Token, connection: psycopg.Connection[Any]) -> bool:
        """Marks moved rows as published; returns whether it did.

        Rows that are already published, or may no longer be published, are not marked.
        """
        if self._step(connection, token) not in {Step.APPLY, Step.REPLACE}:
            return False
        self._set_marker(connection, token.job_id, token.uid, Published(token.attempt, token.batch_id))
        connection.execute(self._emptied(token.stage))
        return True

    def _has_begun(self, connection: psycopg.Connection[Any], token: _Token) -> bool:
        """Returns whether an attempt of the job has opened the sink here.

        Each attempt does so at its start.
        """
        if not _exists(connection, self._sibling(MARKERS)):
            return False
        return self._locked_marker(connection, token.job_id, token.uid) is not None

    def _step(self, connection: psycopg.Connection[Any], token: _Token) -> Step:
        return next_step(self._locked_marker(connection, token.job_id, token.uid), token.attempt, token.batch_id)

    def publish(self, token: str) -> None:
        """Moves a batch from its staging table to its target.

        A batch that is already visible is not moved. The target is beside the staging table.

        Raises:
            SinkOccupiedError: A newer attempt has taken over.
            SinkRowsRefusedError: The target refuses a row that it accepted before the commit.
            SinkPublishError: The staging table is gone.
            SinkUnavailableError: The database cannot be reached.
        """
        key = decoded_token(token, _Token)
        if key is None:
            return
        if not OpenMoves.commit(revealed(self._url), key.job_id, key.stage):
            sink = self._as_staged(key)
            sink._publish_staged(key)
            if sink is not self:
                sink.discard(token)  # the sink does not return to that table
        OpenMoves.forget(revealed(self._url), key.job_id, key.uid)
        if key.stage in self._stages:
            self._free_stage = key.stage
        self._dead_letters.publish(key.dead_letters)

    def _as_staged(self, key: _Token) -> PostgresSink:
        """Returns the sink as it was when a batch was staged.

        Another program may have given it another table since.
        """
        if key.table in {None, self._table}:
            return self
        return PostgresSink(self._url, str(key.table), keys=key.keys, batch_column=key.batch_column)

    def _publish_staged(self, key: _Token) -> None:
        with self._connection(key) as connection:
            # The driver that staged the batch may sleep in a transaction with locks on the same tables and rows.
            end_sessions_before(connection, key.job_id, key.attempt + 1)
            if not _exists(connection, self._sibling(key.stage)) and not self._has_begun(connection, key):
                # The job wrote to another database, or its table is gone.
                logger.warning("sink %s: batch %d is not found in this database", key.uid, key.batch_id)
                return
            self._create_markers(connection)
            step = self._step(connection, key)
            if step is Step.REFUSE:
                raise SinkOccupiedError(f"a newer attempt than {key.attempt} writes the output of sink {key.uid}")
            if step in {Step.APPLY, Step.REPLACE}:
                if not _exists(connection, self._sibling(key.stage)):
                    raise SinkPublishError(f"the staged rows of batch {key.batch_id} of sink {key.uid} are gone")
                if step is Step.REPLACE and (take_back := self._take_back(-1)) is not None:
                    connection.execute(take_back)
                connection.execute(self._move(key), {"tasks": list(key.tasks)})
                self._set_marker(connection, key.job_id, key.uid, Published(key.attempt, key.batch_id))
                connection.execute(self._emptied(key.stage))

    def dead_letters_of(self, token: str) -> int:
        return msgspec.json.decode(token, type=_Token).dead_letter_rows

    def discard(self, token: str) -> None:
        key = msgspec.json.decode(token, type=_Token)
        OpenMoves.close(revealed(self._url), key.job_id)
        self._dead_letters.discard(key.dead_letters)
        if not key.stage:
            return
        self._stages.pop(key.stage, None)
        if self._free_stage == key.stage:
            self._free_stage = None
        with self._connection(key) as connection:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._sibling(key.stage)))

    def take_over(self, context: SinkContext) -> None:
        """Ends the sessions of earlier attempts.

        Their drivers may sleep in a transaction with locks on the tables.

        If the first batch of a new history is committed and not published yet, this takes the output of the earlier
        history back: `publish` takes one sink after the other, and rows of a later sink may refer to rows of this sink.

        Raises:
            SinkUnavailableError: The database cannot be reached.
        """
        with self._connection(context) as connection:
            end_sessions_before(connection, context.job_id, context.attempt)
            if context.batch_id < 0 or not _exists(connection, self._sibling(MARKERS)):
                return
            marker = self._locked_marker(connection, context.job_id, context.uid)
            newer = [each for each in context.rewinds if marker is not None and each.attempt > marker.attempt]
            if marker is None or not newer:
                return
            kept = last_kept(marker, context.batch_id, newer)
            if is_rewound(marker, kept) and (take_back := self._take_back(kept)) is not None:
                connection.execute(take_back)
                # The token of the batch has the rewind's attempt, or a later one.
                self._set_marker(connection, context.job_id, context.uid, Published(newer[-1].attempt, kept))

    def recover(self, context: SinkContext) -> None:
        """Takes the sink over for an attempt.

        Also removes batches that earlier runs have staged.

        Raises:
            SinkOccupiedError: A newer attempt has taken over, another job writes to the table, or it holds rows that
                would be duplicated.
            SinkUnavailableError: The database cannot be reached.
        """
        OpenMoves.close(revealed(self._url), context.job_id)
        self._stages, self._free_stage = {}, None
        with self._connection(context) as connection:
            end_sessions_before(connection, context.job_id, context.attempt)
            self._create_markers(connection)
            marker = self._locked_marker(connection, context.job_id, context.uid)
            if not self._shared:
                self._refuse_a_shared_table(connection, context)
            if marker is not None and marker.attempt > context.attempt:
                raise SinkOccupiedError(f"attempt {marker.attempt} writes the output of sink {context.uid}")
            kept = context.batch_id
            if marker is not None:
                kept = last_kept(marker, context.batch_id, context.rewinds)
            is_left = is_rewound(marker, kept)
            if is_left:
                self._check_take_back(context, kept)
            keeps_output = is_left and context.batch_id < 0
            OpenMoves.note(revealed(self._url), context, self._table, self._take_back(-1) if keeps_output else None)
            if not keeps_output:
                if is_left and (take_back := self._take_back(kept)) is not None:
                    connection.execute(take_back)
                self._set_marker(connection, context.job_id, context.uid, Published(context.attempt, context.batch_id))
            connection.execute(
                sql.SQL("UPDATE {} SET target = {} WHERE job_id = %(job)s AND uid = %(uid)s").format(
                    self._sibling(MARKERS), _NAME_OF
                ),
                {"target": self._target.as_string(), "job": context.job_id, "uid": context.uid},
            )
            prefix = _stage_prefix(context.job_id, context.uid)
            tables = _tables(connection, self._schema, prefix)
            left = [name for name in tables if int(name.removeprefix(prefix).split("_")[0]) <= context.attempt]
            for name in left:
                connection.execute(sql.SQL("DROP TABLE {}").format(self._sibling(name)))
        if left:
            logger.info("sink %s: removed %d batches that earlier runs had staged", context.uid, len(left))
        self._dead_letters.recover(context)

    def _refuse_a_shared_table(self, connection: psycopg.Connection[Any], context: SinkContext) -> None:
        """Refuses a table that another job writes to.

        A table that this sink has written to before is accepted. Markers of earlier versions do not name the table.
        Then the same uid of the original job of a fork counts as the same table, and a marker of this sink counts as a
        marker of this table.
        """
        target = self._target.as_string()
        # Two jobs that start at the same time must see each other's markers.
        connection.execute(
            "SELECT pg_advisory_xact_lock((%s::bigint << 32) + to_regclass(%s)::oid::bigint)", (_LOCK, target)
        )
        statement = sql.SQL(
            "SELECT job_id, uid FROM {markers} WHERE job_id <> %(job)s"
            " AND (target = {name} OR (target IS NULL AND (job_id, uid) = (%(origin)s, %(uid)s)))"
            " AND NOT EXISTS (SELECT 1 FROM {markers} WHERE (job_id, uid) = (%(job)s, %(uid)s)"
            " AND (target IS NULL OR target = {name})) ORDER BY job_id, uid LIMIT 1"
        ).format(markers=self._sibling(MARKERS), name=_NAME_OF)
        values = {"job": context.job_id, "uid": context.uid, "origin": context.forked_from, "target": target}
        row = connection.execute(statement, values).fetchone()
        if row is not None:
            raise SinkOccupiedError(
                f"sink {row[1]} of job {row[0]} writes to table {self._table}: give sink {context.uid} its own"
                " table; or, if both jobs shall write there, create it with shared=True; or, if that job will never"
                f" run again, delete its row of sink {row[1]} from {MARKERS}"
            )

    def _take_back(self, batch_id: int) -> sql.Composed | None:
        """Returns the statement that deletes the rows of later batches.

        None without a column that identifies them: then rows with the same keys replace them.
        """
        if self._batch_column is None:
            return None
        of_batch, last = sql.Identifier(self._batch_column), sql.Literal(batch_id)
        return sql.SQL("DELETE FROM {} WHERE {} > {}").format(self._target, of_batch, last)

    def _check_take_back(self, context: SinkContext, kept: int) -> None:
        """Refuses earlier rows that nothing can replace."""
        if self._batch_column is None and not self._keys:
            left = f"gone back to batch {kept}" if kept >= 0 else "left its history"
            raise SinkOccupiedError(
                f"the job has {left}, but table {self._table} holds later rows:"
                f" give the sink keys or a batch column, or delete those rows and then the row of sink {context.uid}"
                f" from {MARKERS}"
            )

    def _move(self, token: _Token, *, some: bool = False) -> sql.Composed:
        """Returns the statement that moves staged rows into the target.

        It moves the last row of each key.

        Args:
            token: The batch.
            some: Whether it moves only the rows whose places are given as `some_tasks` and `some_rows`.
        """
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
        if some:
            tasks = sql.SQL("({}) IN (SELECT * FROM unnest(%(some_tasks)s::bigint[], %(some_rows)s::bigint[]))").format(
                comma.join(map(sql.Identifier, _LAST))
            )
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

    def _create_markers(self, connection: psycopg.Connection[Any]) -> None:
        """Creates the table of markers, and commits."""
        if self._has_markers:
            return
        self._ensure_markers(connection)
        connection.commit()
        self._has_markers = True

    def _ensure_markers(self, connection: psycopg.Connection[Any]) -> None:
        """Creates the table of markers in the open transaction."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (job_id text, uid text, "
                "attempt bigint NOT NULL, batch_id bigint NOT NULL, "
                "published_at timestamptz NOT NULL DEFAULT now(), target text, PRIMARY KEY (job_id, uid))"
            ).format(self._sibling(MARKERS))
        )
        if not connection.execute(_HAS_TARGET, (self._sibling(MARKERS).as_string(),)).fetchone():
            connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN target text").format(self._sibling(MARKERS)))

    def _locked_marker(self, connection: psycopg.Connection[Any], job_id: str, uid: str) -> Published | None:
        """Returns the sink's marker, locked until the transaction ends."""
        statement = sql.SQL("SELECT attempt, batch_id FROM {} WHERE job_id = %s AND uid = %s FOR UPDATE")
        row = connection.execute(statement.format(self._sibling(MARKERS)), (job_id, uid)).fetchone()
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
            return  # report the first failure; `recover` removes the table

    def _connection(self, of: SinkContext | _Token) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Returns a new connection with a transaction, named by job and attempt.

        The transaction is committed at the end.
        """
        return transaction(revealed(self._url), session_name(of.job_id, of.attempt))

    @property
    def _schema(self) -> str | None:
        schema, _, _ = self._table.rpartition(".")
        return schema or None

    @property
    def _target(self) -> sql.Identifier:
        return sql.Identifier(*self._table.split("."))

    def _sibling(self, name: str) -> sql.Identifier:
        """Returns the identifier of a table in the schema of the target."""
        return sql.Identifier(self._schema, name) if self._schema else sql.Identifier(name)


def _stage_prefix(job_id: str, uid: str) -> str:
    """Returns the prefix of a sink's staging tables."""
    return f"{OURS}{hashlib.sha256(f'{job_id}/{uid}'.encode()).hexdigest()[:12]}_"


def _create_stage(stage: sql.Identifier, target: sql.Identifier) -> sql.Composed:
    like = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING IDENTITY"
    return sql.SQL("CREATE TABLE {} (LIKE {} " + like + ", {} bigint, {} bigint)").format(
        stage, target, sql.Identifier(TASK_COLUMN), sql.Identifier(ROW_COLUMN)
    )


def _shape(connection: psycopg.Connection[Any], target: sql.Identifier) -> str:
    """Returns a digest of the parts that a staging table copies.

    A staging table copies the target's columns with their defaults, and its checks.
    """
    row = connection.execute(_SHAPE, {"target": target.as_string()}).fetchone()
    return "" if row is None else str(row[0])


def _columns_of(connection: psycopg.Connection[Any], target: sql.Identifier) -> dict[str, str]:
    """Returns the types of a table's columns by their names."""
    there = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(target)).description or ()
    return {column.name: column.type_display for column in there}


def _refuse_columns(table: str, there: Mapping[str, str], needed: Sequence[str], stream: Mapping[str, str]) -> None:
    missing = sorted(set(needed) - there.keys())
    if missing:
        raise SinkRowsRefusedError(f"table {table} has no column {', '.join(missing)}")
    losing = columns_that_lose(stream, there)
    if losing:
        raise SinkRowsRefusedError(
            f"table {table} would round values of {', '.join(losing)}: cast the column in the job"
        )


def _exists(connection: psycopg.Connection[Any], table: sql.Identifier) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table.as_string(),)).fetchone()
    return row is not None and bool(row[0])


def _tables(connection: psycopg.Connection[Any], schema: str | None, prefix: str) -> list[str]:
    rows = connection.execute(
        "SELECT tablename FROM pg_tables"
        " WHERE schemaname = coalesce(%s, current_schema()) AND starts_with(tablename, %s)",
        (schema, prefix),
    )
    return [row[0] for row in rows.fetchall()]
