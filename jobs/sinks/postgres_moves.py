"""Moves of staged rows in a transaction that stays open.

The transaction lasts from staging to the batch's commit. PostgreSQL has then checked all constraints, and they hold
until the moves are committed or undone. All sinks of a job that write to one database share the transaction, so that
rows of one sink may refer to rows of another sink.

Publishing can repeat the moves from the staging tables. So a lost transaction loses only the certainty that the
constraints still hold.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from psycopg.errors import DeadlockDetected, LockNotAvailable

from ..errors import SinkRowsRefusedError
from .postgres_connection import connected, described, errors_without_data, is_of_rows
from .postgres_sessions import session_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg import sql

    from .sink import SinkContext

_BEGIN = (
    "SET lock_timeout = '10s'",
    "SET idle_in_transaction_session_timeout = '10min'",
    "SET CONSTRAINTS ALL IMMEDIATE",
)


class OpenMoves:
    """The open transaction of a job on a database.

    A process has at most one; the next batch's transaction replaces it.

    Args:
        url: The address of the database.
        context: The batch.
    """

    _lock: ClassVar = threading.Lock()
    _of_jobs: ClassVar[dict[tuple[str, str], OpenMoves]] = {}
    _left: ClassVar[dict[tuple[str, str], dict[str, tuple[str, sql.Composed]]]] = {}  # by sink, see `note`

    def __init__(self, url: str, context: SinkContext) -> None:
        self._url = url
        self._job_id = context.job_id
        self._unique = context.unique
        self._has_taken_back = False
        self._finish: dict[str, Callable[[psycopg.Connection[Any]], bool]] = {}
        self._connection = connected(url, application_name=session_name(context.job_id, context.attempt))
        for statement in _BEGIN:
            self._connection.execute(statement)

    @classmethod
    def of(cls, url: str, context: SinkContext) -> OpenMoves:
        """Returns the transaction of a try of a batch.

        The first sink of the batch opens it.

        Raises:
            SinkUnavailableError: The database cannot be reached.
        """
        found = cls._of_jobs.get((url, context.job_id))
        if found is None or found._unique != context.unique:
            cls.close(url, context.job_id)
            with errors_without_data(url):
                found = cls._of_jobs[url, context.job_id] = cls(url, context)
        return found

    @classmethod
    def close(cls, url: str, job_id: str) -> None:
        """Undoes all moves of a job that are not committed."""
        found = cls._of_jobs.pop((url, job_id), None)
        if found is not None:
            with contextlib.suppress(psycopg.Error):
                found._connection.close()

    @classmethod
    def note(cls, url: str, context: SinkContext, table: str, take_back: sql.Composed | None) -> None:
        """Notes how the first batch takes back the rows of a sink.

        They are rows of a history that the job has left. None: the sink has no such rows.
        """
        cls.forget(url, context.job_id, context.uid)
        if take_back is not None:
            cls._left.setdefault((url, context.job_id), {})[context.uid] = (table, take_back)

    @classmethod
    def forget(cls, url: str, job_id: str, uid: str) -> None:
        """Forgets the rows of a sink that are taken back."""
        cls._left.get((url, job_id), {}).pop(uid, None)

    @classmethod
    def commit(cls, url: str, job_id: str, stage: str) -> bool:
        """Commits all moves, including the move from a staging table.

        Moves that cannot be committed are undone. Nothing is committed if the move from the staging table is missing.

        Returns:
            Whether they are committed.

        Raises:
            SinkUnavailableError: The database cannot be reached; the moves may be committed.
        """
        with cls._lock:
            found = cls._of_jobs.get((url, job_id))
            if found is None or stage not in found._finish:
                return False
            del cls._of_jobs[url, job_id]
        with errors_without_data(url), contextlib.closing(found._connection) as connection:
            if not all(finish(connection) for finish in found._finish.values()):
                return False
            connection.commit()
        return True

    def take_back(self) -> None:
        """Takes back the noted rows of all sinks, before the first move.

        The order is the order in which the rows were noted: rows of a later sink may refer to rows of an earlier sink.

        Raises:
            SinkRowsRefusedError: Other rows refer to these rows.
        """
        if self._has_taken_back:
            return
        for table, statement in self._left.get((self._url, self._job_id), {}).values():
            if (reason := self.try_move(statement, {})) is not None:
                raise SinkRowsRefusedError(
                    f"PostgreSQL refuses to delete the rows of table {table} from before the start without state:"
                    f" {reason}; delete them, or start the job with its state"
                )
        self._has_taken_back = True

    def try_move(self, statement: sql.Composed, values: Mapping[str, object]) -> str | None:
        """Moves all given rows, or no row.

        Returns:
            The reason if the rows are refused.

        Raises:
            TimeoutError: Another transaction has locked a row.
            SinkRowsRefusedError: The statement is refused, whatever the rows.
            SinkUnavailableError: The database cannot be reached.
        """
        with errors_without_data(self._url):
            try:
                with self._connection.transaction():
                    self._connection.execute(statement, values)
            except (LockNotAvailable, DeadlockDetected):
                raise TimeoutError from None
            except psycopg.Error as error:
                if not is_of_rows(error):
                    raise
                return described(error)
        return None

    def keep(self, stage: str, finish: Callable[[psycopg.Connection[Any]], bool]) -> None:
        """Keeps the moves from a staging table for `commit`.

        `commit` undoes all moves if `finish` returns False.
        """
        self._finish[stage] = finish
