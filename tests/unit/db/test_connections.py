"""An error says whether the database is away, slow or gave up; a silent server is left alone for a moment."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from keyscale.db import connections, limited_connection
from keyscale.db.connections import (
    is_database_away,
    is_given_up,
    is_too_slow,
    open_engine,
    reading_session_factory,
    session_factory,
    without_time_limits,
)
from keyscale.db.errors import SchemaTooNewError, SchemaUnreleasedError
from keyscale.db.limited_connection import Connector, LimitedConnection
from keyscale.db.migrate import refusal_of_unknown_revision


def caused(kind: type[DBAPIError], cause: Exception, *, invalidated: bool = False) -> DBAPIError:
    return kind("SELECT 1", None, cause, connection_invalidated=invalidated)


@pytest.mark.parametrize(
    ("error", "away", "given_up", "slow"),
    [
        (caused(OperationalError, psycopg.OperationalError("gone")), True, False, False),
        (caused(InterfaceError, psycopg.InterfaceError("closed")), True, False, False),
        (PoolTimeoutError("no connection is free"), True, False, False),
        (caused(DBAPIError, psycopg.Error("lost"), invalidated=True), True, False, False),
        (caused(OperationalError, errors.DeadlockDetected()), False, True, False),
        (caused(OperationalError, errors.SerializationFailure()), False, True, False),
        (caused(OperationalError, errors.LockNotAvailable()), False, True, False),
        (caused(OperationalError, errors.QueryCanceled()), False, False, True),
        (caused(ProgrammingError, errors.UndefinedColumn()), False, False, False),
        (ValueError("wrong"), False, False, False),
    ],
)
def test_each_error_is_of_one_kind(error: Exception, away: bool, given_up: bool, slow: bool) -> None:
    assert (is_database_away(error), is_given_up(error), is_too_slow(error)) == (away, given_up, slow)


def test_after_a_failure_connections_are_refused_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    asked: list[Any] = []
    failure: list[Exception | None] = [psycopg.OperationalError("no answer")]

    def connect(*arguments: Any, **parameters: Any) -> str:
        asked.append((arguments, parameters))
        now[0] += 5  # the time that it took
        if failure[0] is not None:
            raise failure[0]
        return "connected"

    monkeypatch.setattr(limited_connection.LimitedConnection, "connect", connect)
    monkeypatch.setattr(limited_connection, "time", SimpleNamespace(monotonic=lambda: now[0]))
    connector: Any = Connector()
    with pytest.raises(psycopg.OperationalError, match="no answer"):
        connector.connect("url", timeout=3)
    now[0] += 0.9
    with pytest.raises(psycopg.OperationalError, match="a moment ago"):
        connector.connect("url")
    now[0] += 0.2
    failure[0] = None
    assert [connector.connect("url"), connector.connect("url")] == ["connected", "connected"]
    assert asked == [(("url",), {"timeout": 3}), (("url",), {}), (("url",), {})]


def test_a_connection_is_lost_once_its_server_says_something_or_closes_it() -> None:
    ours, server = socket.socketpair()
    connection: Any = SimpleNamespace(closed=False, fileno=ours.fileno)
    with ours, server:
        assert not LimitedConnection.is_lost(connection)
        server.send(b"terminating connection")
        assert LimitedConnection.is_lost(connection)
    connection.closed = True
    assert LimitedConnection.is_lost(connection)


def test_a_connection_waits_no_longer_than_its_limit_and_is_then_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []

    def wait(_: object, gen: str, _interval: float, timeout: float | None) -> str:
        waited.append(timeout)
        if gen == "hangs":
            raise limited_connection._WaitTimeout
        return gen

    monkeypatch.setattr(psycopg.Connection, "wait", wait)
    finished: list[bool] = []

    class Played(LimitedConnection):
        def __init__(self) -> None:
            self.pgconn = SimpleNamespace(finish=lambda: finished.append(True))  # type: ignore[assignment] # played

        def __del__(self) -> None:
            """Closes nothing."""

    connection: Any = Played()
    assert connection.wait("answer") == "answer"
    assert connection.wait("answer", timeout=3.0) == "answer"
    connection.answer_timeout_s = None
    assert connection.wait("answer") == "answer"
    assert waited == [10.0, 3.0, None]
    with pytest.raises(psycopg.OperationalError, match="did not answer in time"):
        connection.wait("hangs")
    assert finished == [True]


@pytest.mark.parametrize(
    ("revision", "kind"),
    [
        ("0003", SchemaUnreleasedError),
        ("0025", SchemaUnreleasedError),
        ("0026", SchemaTooNewError),
        ("0099", SchemaTooNewError),
        ("later", SchemaTooNewError),
    ],
)
def test_an_unknown_revision_is_of_development_or_newer(revision: str, kind: type[Exception]) -> None:
    assert type(refusal_of_unknown_revision(revision)) is kind


def test_a_pool_opens_limited_connections_with_the_time_limits_and_refuses_lost_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[dict[str, Any]] = []

    def connect(_: Connector, *arguments: Any, **parameters: Any) -> None:
        assert arguments == ()
        opened.append(parameters)
        raise psycopg.OperationalError("no answer")

    monkeypatch.setattr(Connector, "connect", connect)
    engine: Any = open_engine("postgresql://ann:secret@host:5433/jobs", connections=7)
    with pytest.raises(OperationalError):
        engine.connect()
    [parameters] = opened
    parameters.pop("context", None)
    assert parameters == {
        "host": "host",
        "port": 5433,
        "dbname": "jobs",
        "user": "ann",
        "password": "secret",
        "connect_timeout": 5,
        "application_name": "keyscale",
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "options": "-c statement_timeout=8000 -c idle_in_transaction_session_timeout=15000",
    }
    pool = engine.pool
    assert (pool.size(), pool._max_overflow, pool.timeout(), pool._pool.use_lifo) == (7, 0, 5, True)
    assert engine.hide_parameters
    for is_lost in (False, True):
        connection = SimpleNamespace(is_lost=lambda is_lost=is_lost: is_lost)
        if is_lost:
            with pytest.raises(InvalidatePoolError):
                pool.dispatch.checkout(connection, None, None)
        else:
            pool.dispatch.checkout(connection, None, None)


def test_statements_have_no_limits_within_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[Any, ...]] = []
    monkeypatch.setattr(connections, "LimitedConnection", SimpleNamespace)
    driver = SimpleNamespace(answer_timeout_s=10.0)
    connection: Any = SimpleNamespace(
        connection=SimpleNamespace(driver_connection=driver),
        execute=lambda statement: done.append((str(statement), driver.answer_timeout_s)),
    )

    def migrate() -> None:
        with without_time_limits(connection):
            assert driver.answer_timeout_s is None
            raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        migrate()
    assert done == [("SET LOCAL statement_timeout = 0", None)]
    assert driver.answer_timeout_s == 10.0


def test_only_readers_are_without_transactions_and_objects_survive_a_commit() -> None:
    engine = open_engine("postgresql://host/jobs")
    writing, reading = session_factory(engine), reading_session_factory(engine)
    assert writing.kw["bind"] is engine
    assert reading.kw["bind"].get_execution_options()["isolation_level"] == "AUTOCOMMIT"
    assert "isolation_level" not in engine.get_execution_options()
    assert (writing.kw["expire_on_commit"], reading.kw["expire_on_commit"]) == (False, False)
