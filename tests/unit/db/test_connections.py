"""An error says whether the database is away, slow or gave up; a silent server is left alone for a moment."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from keyscale.db import limited_connection
from keyscale.db.connections import is_database_away, is_given_up, is_too_slow
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
