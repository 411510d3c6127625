"""A database in the memory of pytest's process, for fast tests of what the platform writes and reads.

SQLite takes PostgreSQL's place, with the tables of the models. It has no locks of rows and no arrays, and a row's
version, `xmin`, never changes there; a test whose query needs them runs on PostgreSQL alone.
"""

from __future__ import annotations

import json
import sqlite3
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, create_engine, delete, event, insert
from sqlalchemy.dialects.postgresql import JSONB, array
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import QueuePool, StaticPool
from sqlalchemy.schema import CreateColumn

from keyscale.db.models import Job, Leader, ReplicaKey
from tests.support.servers.sqlite_statement import sqlite_parts, sqlite_statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sqlalchemy import Connection, Engine

_METADATA = Job.metadata
_NUMBERS = count(1)
"""The numbers of rows that are not their keys. All connections share them, as they do PostgreSQL's sequences."""

sqlite3.register_converter("array", json.loads)


def memory_engine(path: Path | None = None) -> Engine:
    """Returns a pool of connections to a new database, which holds what the migrations leave.

    Args:
        path: The file of a database with several connections; None: a database of one connection.
    """
    engine = create_engine(
        f"sqlite:///{path or ''}",
        poolclass=QueuePool if path else StaticPool,
        connect_args={"check_same_thread": False, "timeout": 5, "detect_types": sqlite3.PARSE_COLNAMES},
        json_deserializer=msgspec.json.decode,
    )
    # As the driver's own transactions are off, a connection that commits each statement differs in nothing else.
    engine.dialect.set_isolation_level = engine.dialect.reset_isolation_level = lambda *_: None  # type: ignore[method-assign]
    event.listen(engine, "connect", _prepare)
    # The driver would begin a transaction at the first write only, and end it before a savepoint.
    event.listen(engine, "begin", _begin)
    event.listen(engine, "before_cursor_execute", _translate, retval=True)
    for table in _METADATA.tables.values():
        for index in table.indexes:
            index.dialect_options["sqlite"]["where"] = index.dialect_options["postgresql"]["where"]
    _METADATA.create_all(engine)
    with engine.begin() as connection:
        _fill(connection)
    return engine


class MemoryDatabase:
    """A database in a file of the memory that many tests use one after the other, as a `ReusedDatabase` is.

    Args:
        path: The file, which does not exist.

    Attributes:
        engine: The pool. An application that ends leaves the pool open.
    """

    def __init__(self, path: Path) -> None:
        self.engine = memory_engine(path)
        self._close_pool = self.engine.dispose
        self.engine.dispose = lambda *_, **__: None  # type: ignore[method-assign]

    def renew(self) -> None:
        """Makes the tables hold what the migrations leave."""
        with self.engine.begin() as connection:
            for table in reversed(_METADATA.sorted_tables):
                connection.execute(delete(table))
            _fill(connection)

    def close(self) -> None:
        self._close_pool()


def _fill(connection: Connection) -> None:
    connection.execute(insert(Leader).values(epoch=0, url="", elected_at_ms=0, beat_at_ms=0))
    connection.execute(insert(ReplicaKey).values(value="the key of the replicas"))


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.executescript("PRAGMA foreign_keys = ON; PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")
    connection.create_function("next_number", 0, lambda: next(_NUMBERS))
    connection.create_function("clock_seconds", 0, time.time)
    connection.create_function("pg_advisory_xact_lock", 1, lambda _: None)
    connection.create_function("pg_try_advisory_lock", 1, lambda _: True)
    connection.create_function("hashtextextended", 2, lambda _text, seed: seed)
    connection.create_function("least", -1, lambda *values: min(_known(values), default=None))
    connection.create_function("greatest", -1, lambda *values: max(_known(values), default=None))
    connection.create_function("concat_ws", -1, lambda by, *values: by.join(map(str, _known(values))))
    connection.create_function("jsonb_contains", 2, _contains)
    connection.create_function("jsonb_is", 2, lambda one, other: None if one is None else _same(one, other))
    connection.create_function("jsonb_has_any", 2, _has_any)


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        # At once for writing: SQLite refuses a write after a read if another connection has written in between.
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _translate(
    _connection: object, cursor: sqlite3.Cursor, statement: str, parameters: Any, *_: object
) -> tuple[str, Any]:
    if not isinstance(parameters, tuple):
        return sqlite_statement(statement), parameters
    parameters = tuple(json.dumps(value) if isinstance(value, list) else value for value in parameters)
    *first, last = sqlite_parts(statement, parameters)
    for part in first:
        cursor.execute(*part)
    return last


def _known(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _contains(document: str | None, part: str | None) -> bool | None:
    if document is None or part is None:
        return None
    return _holds(json.loads(document), json.loads(part))


def _holds(document: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(document, dict) and all(
            name in document and _holds(document[name], value) for name, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(document, list) and all(any(_holds(found, value) for found in document) for value in part)
    return bool(document == part)


def _same(one: str, other: str) -> bool:
    return bool(json.loads(one) == json.loads(other))


def _has_any(document: str | None, names: str) -> bool | None:
    return None if document is None else not set(json.loads(document)).isdisjoint(json.loads(names))


@compiles(JSONB, "sqlite")
def _(_type: JSONB, _compiler: Any, **_: Any) -> str:
    return "JSON"


@compiles(BigInteger, "sqlite")  # only a key of this type is numbered
def _(_type: BigInteger, _compiler: Any, **_: Any) -> str:
    return "INTEGER"


@compiles(array, "sqlite")
def _(values: array[Any], compiler: Any, **options: Any) -> str:
    return f"json_array({', '.join(compiler.process(value, **options) for value in values.clauses)})"


@compiles(CreateColumn, "sqlite")
def _(create: CreateColumn, compiler: Any, **options: Any) -> str:
    column = create.element
    plain = str(compiler.visit_create_column(create, **options))
    numbered = column.identity is not None and not column.primary_key
    return f"{plain} DEFAULT (next_number())" if numbered else plain
