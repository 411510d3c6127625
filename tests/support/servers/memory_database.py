"""A database in the memory of pytest's process, for fast tests of what the platform writes and reads.

SQLite takes PostgreSQL's place, with the tables of the models. It has no locks of rows, no data-modifying `WITH`, no
arrays and no system columns; a test whose query needs them runs on PostgreSQL alone.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import BigInteger, create_engine, event, insert
from sqlalchemy.dialects.postgresql import JSONB, array
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateColumn

from keyscale.db.models import Job, Leader, ReplicaKey
from tests.support.servers.sqlite_statement import sqlite_statement

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from sqlalchemy import Engine

_METADATA = Job.metadata


def memory_engine() -> Engine:
    """Returns a pool of one connection to a new database, which holds what the migrations leave."""
    engine = create_engine(
        "sqlite://",
        poolclass=StaticPool,
        connect_args={"check_same_thread": False},
        json_deserializer=msgspec.json.decode,
    )
    event.listen(engine, "connect", _prepare)
    # The driver would begin a transaction at the first write only, and end it before a savepoint.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    event.listen(engine, "before_cursor_execute", _translate, retval=True)
    for table in _METADATA.tables.values():
        for index in table.indexes:
            index.dialect_options["sqlite"]["where"] = index.dialect_options["postgresql"]["where"]
    _METADATA.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(Leader).values(epoch=0, url="", elected_at_ms=0, beat_at_ms=0))
        connection.execute(insert(ReplicaKey).values(value="the key of the replicas"))
    return engine


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    numbers: Counter[str] = Counter()

    def next_number(column: str) -> int:
        numbers[column] += 1
        return numbers[column]

    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.create_function("next_number", 1, next_number)
    connection.create_function("clock_seconds", 0, time.time)
    connection.create_function("pg_advisory_xact_lock", 1, lambda _: None)
    connection.create_function("hashtextextended", 2, lambda _text, seed: seed)
    connection.create_function("least", -1, lambda *values: min(_known(values), default=None))
    connection.create_function("greatest", -1, lambda *values: max(_known(values), default=None))
    connection.create_function("jsonb_contains", 2, _contains)
    connection.create_function("jsonb_has_any", 2, _has_any)


def _translate(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> tuple[str, Any]:
    if isinstance(parameters, tuple):
        parameters = tuple(json.dumps(value) if isinstance(value, list) else value for value in parameters)
    return sqlite_statement(statement), parameters


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
    return f"{plain} DEFAULT (next_number('{column}'))" if numbered else plain
