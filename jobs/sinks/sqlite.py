"""A sink of rows in a table of an SQLite file."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, ClassVar

import msgspec

from ..errors import SinkOccupiedError, SinkUnavailableError
from .published import Published, Step, decoded_token, is_rewound, last_kept, next_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from .sink import SinkContext

_TABLES = (
    "CREATE TABLE IF NOT EXISTS rows (batch_id INTEGER, row TEXT)",
    "CREATE TABLE IF NOT EXISTS staged (id TEXT, row TEXT)",
    "CREATE TABLE IF NOT EXISTS marker (job_id TEXT, uid TEXT, attempt INTEGER, batch_id INTEGER)",
)


class SqliteToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A staged batch, in the commit log."""

    sqlite: int  # the version of the token
    staged_id: str
    attempt: int
    batch_id: int


class SqliteSink:
    """Writes each row as JSON to an SQLite file, exactly once.

    The file is on the driver's host, and its table is `rows`. Batch, marker and the deletion of staged rows are one transaction.

    Args:
        path: The file, which belongs to one sink of one job.
        lock_wait_s: How long the sink waits for another process's lock on the file.
    """

    reads_repeatedly: ClassVar[bool] = False

    def __init__(self, path: str, *, lock_wait_s: float = 5.0) -> None:
        self._path, self._lock_wait_s = path, lock_wait_s

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        rows = [json.dumps(row.asDict(recursive=True), default=str) for row in frame.collect()]
        with self._transaction() as file:
            file.executemany("INSERT INTO staged VALUES (?, ?)", [(context.unique, row) for row in rows])
        return msgspec.json.encode(SqliteToken(1, context.unique, context.attempt, context.batch_id)).decode()

    def publish(self, token: str) -> None:
        staged = decoded_token(token, SqliteToken)
        if staged is None:
            return
        with self._transaction() as file:
            step = next_step(_marker(file), staged.attempt, staged.batch_id)
            if step is Step.REFUSE:
                raise SinkOccupiedError(f"a newer attempt writes to {self._path}")
            if step is Step.REPLACE:
                file.execute("DELETE FROM rows WHERE batch_id >= ?", (staged.batch_id,))
            if step is not Step.DONE:
                copied = "INSERT INTO rows SELECT ?, row FROM staged WHERE id = ? ORDER BY rowid"
                file.execute(copied, (staged.batch_id, staged.staged_id))
                file.execute("UPDATE marker SET attempt = ?, batch_id = ?", (staged.attempt, staged.batch_id))
            file.execute("DELETE FROM staged WHERE id = ?", (staged.staged_id,))

    def discard(self, token: str) -> None:
        if (staged := decoded_token(token, SqliteToken)) is not None:
            with self._transaction() as file:
                file.execute("DELETE FROM staged WHERE id = ?", (staged.staged_id,))

    def recover(self, context: SinkContext) -> None:
        with self._transaction() as file:
            marker, owner = _marker(file), file.execute("SELECT job_id, uid FROM marker").fetchone()
            if owner is not None and owner != (context.job_id, context.uid):
                raise SinkOccupiedError(f"{self._path} belongs to sink {owner[1]} of job {owner[0]}")
            if marker is not None and marker.attempt > context.attempt:
                raise SinkOccupiedError(f"a newer attempt writes to {self._path}")
            last = context.batch_id if marker is None else last_kept(marker, context.batch_id, context.rewinds)
            if is_rewound(marker, last):
                file.execute("DELETE FROM rows WHERE batch_id > ?", (last,))
            visible = -1 if marker is None else min(marker.batch_id, last)
            file.execute("DELETE FROM staged")
            file.execute("DELETE FROM marker")
            file.execute(
                "INSERT INTO marker VALUES (?, ?, ?, ?)", (context.job_id, context.uid, context.attempt, visible)
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=self._lock_wait_s, isolation_level=None)) as file:
                file.execute("BEGIN IMMEDIATE")
                for table in _TABLES:
                    file.execute(table)
                yield file
                file.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise SinkUnavailableError(f"{self._path}: {error}") from None


def _marker(file: sqlite3.Connection) -> Published | None:
    row = file.execute("SELECT attempt, batch_id FROM marker").fetchone()
    return None if row is None else Published(*row)
