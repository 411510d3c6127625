"""Connections to PostgreSQL that notice outages.

Their errors contain no data.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..errors import SinkForbiddenError, SinkRowsRefusedError, SinkUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

_AWAY = ("08", "25006", "25P03", "28", "40", "53", "55P03", "57", "58")
"""Failures that may pass with time, by SQLSTATE or its class: connection, read-only server, idle for too long,
authorization, rolled back by another transaction, resources, locked, shutdown, system.
"""

_FORBIDDEN = "42501"
"""The SQLSTATE of a missing right. Its text names the object and holds no data."""

_OF_ROWS = ("22", "23", "44", "P0001")
"""Failures due to a row: its values, a constraint, the check of a view, a trigger that raises."""

OURS = "_keyscale_"
"""The prefix of Keyscale's own tables."""

_DEADLINES = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 40_000,
}
"""Settings of libpq that detect a server that is silently gone. Settings in the URL take precedence."""


def connected(url: str, **settings: str) -> psycopg.Connection[Any]:
    """Returns a new connection with the given settings of libpq.

    Raises as psycopg does.
    """
    given = conninfo_to_dict(url)
    deadlines = {name: value for name, value in _DEADLINES.items() if name not in given}
    return psycopg.connect(make_conninfo(url, **deadlines, **settings))


@contextmanager
def transaction(url: str, session: str) -> Iterator[psycopg.Connection[Any]]:
    """Yields a new connection with a transaction.

    Its session has the given name. The transaction is committed at the end.

    Raises:
        SinkForbiddenError: The database user lacks a right.
        SinkUnavailableError: PostgreSQL does not answer, or refuses the connection.
        SinkRowsRefusedError: PostgreSQL refuses a statement or its rows.
    """
    with errors_without_data(url), connected(url, application_name=session) as connection:
        yield connection


@contextmanager
def errors_without_data(url: str) -> Iterator[None]:
    """Converts PostgreSQL's errors to errors without data.

    PostgreSQL's texts quote rows; the converted errors name table, column and constraint.

    Args:
        url: The address of the database, which names the user.

    Raises:
        SinkForbiddenError: The database user lacks a right.
        SinkUnavailableError: PostgreSQL does not answer, or refuses the connection.
        SinkRowsRefusedError: PostgreSQL refuses the statement or its rows.
    """
    try:
        yield
    except psycopg.Error as error:
        if _is_outage(error):
            raise SinkUnavailableError(f"PostgreSQL cannot be used: {_kind(error)}") from None
        if error.sqlstate == _FORBIDDEN:
            user = conninfo_to_dict(url).get("user", "of the environment")
            reason = error.diag.message_primary or described(error)
            raise SinkForbiddenError(f"PostgreSQL refuses user {user}: {reason}") from None
        raise SinkRowsRefusedError(f"PostgreSQL refuses: {described(error)}") from None


def described(error: psycopg.Error) -> str:
    """Returns an error's kind, table, column and constraint."""
    diagnosis = error.diag
    places = {"table": diagnosis.table_name, "column": diagnosis.column_name, "constraint": diagnosis.constraint_name}
    known = (f"{what} {name}" for what, name in places.items() if name and not name.startswith(OURS))
    return ", ".join([_kind(error), *known])


def is_of_rows(error: psycopg.Error) -> bool:
    """Returns whether other rows might be accepted."""
    return isinstance(error, psycopg.DataError) or (error.sqlstate or "").startswith(_OF_ROWS)


def _is_outage(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return not isinstance(error, psycopg.DataError)  # the client raises it for values that it cannot send
    return error.sqlstate.startswith(_AWAY)


def _kind(error: psycopg.Error) -> str:
    return f"{type(error).__name__}{f' ({error.sqlstate})' if error.sqlstate else ''}"
