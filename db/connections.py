"""Connections to PostgreSQL."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from .limited_connection import ANSWER_TIMEOUT_S, Connector, LimitedConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL, Connection, Engine

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_MS = 8_000  # a running server ends a slow statement before its client gives up
_GIVEN_UP = frozenset({"40P01", "40001", "55P03"})  # a deadlock, a serialization failure, an unavailable lock
_QUERY_CANCELED = "57014"


def open_engine(url: str | URL, *, connections: int = 30) -> Engine:
    """Returns a pool of connections that fails rather than hangs.

    Args:
        url: `postgresql://...`, as libpq takes it or with SQLAlchemy's `+psycopg`; or another pool's.
        connections: How many may be open. A connection is opened when it is needed, and stays open: opening one costs
            more than most statements.
    """
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        json_deserializer=msgspec.json.decode,  # in a fraction of the time: a list of jobs has six documents per job
        hide_parameters=True,  # errors are logged, and a parameter may be a secret
        pool_size=connections,
        max_overflow=0,
        pool_use_lifo=True,
        pool_timeout=CONNECT_TIMEOUT_S,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "keyscale",
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c idle_in_transaction_session_timeout=15000",
        },
    )
    connector = Connector()

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> LimitedConnection:
        return connector.connect(*arguments, **parameters)

    @event.listens_for(engine, "checkout")
    def check(connection: LimitedConnection, _record: Any, _proxy: Any) -> None:
        # SQLAlchemy's own ping would be another statement before each transaction.
        if connection.is_lost():
            raise InvalidatePoolError

    return engine


@contextmanager
def without_time_limits(connection: Connection) -> Iterator[None]:
    """Removes the time limits of a transaction's statements."""
    driver = connection.connection.driver_connection
    if not isinstance(driver, LimitedConnection):
        raise TypeError(type(driver).__name__)
    driver.answer_timeout_s = None
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    try:
        yield
    finally:
        driver.answer_timeout_s = ANSWER_TIMEOUT_S


def session_factory(engine: Engine) -> sessionmaker[Session]:
    """Returns a factory of sessions with objects that survive the commit."""
    return sessionmaker(engine, expire_on_commit=False)


def reading_session_factory(engine: Engine) -> sessionmaker[Session]:
    """Returns a factory of read-only sessions without transactions.

    A transaction would cost two round trips. Every statement sees what is committed when it begins, as it also does in
    a transaction.
    """
    return session_factory(engine.execution_options(isolation_level="AUTOCOMMIT"))


def is_given_up(error: Exception) -> bool:
    """Returns whether PostgreSQL gave up a conflicting transaction, as in a deadlock."""
    return _sqlstate(error) in _GIVEN_UP


def is_too_slow(error: Exception) -> bool:
    """Returns whether PostgreSQL ended a statement after `STATEMENT_TIMEOUT_MS`."""
    return _sqlstate(error) == _QUERY_CANCELED


def is_database_away(error: Exception) -> bool:
    """Returns whether an error means that PostgreSQL does not answer.

    A wrong or slow query does not count.
    """
    if is_given_up(error) or is_too_slow(error):
        return False
    if isinstance(error, (OperationalError, InterfaceError, PoolTimeoutError)):
        return True
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _sqlstate(error: Exception) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)
