"""One reconciler at a time, by a lock that PostgreSQL holds for a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_LEADER_LOCK = 0x6C656164
# A leader that is stopped by a signal loses its connection, and with it the lock, after this silence. Everything it then
# tries to write fails, because all of a leader's transactions go over the connection that holds the lock.
IDLE_TIMEOUT_S = 30


def open_leader_connection(engine: Engine) -> Connection:
    """Returns the connection that the lock is asked for on."""
    connection = engine.connect()
    connection.execute(text(f"SET idle_session_timeout = '{IDLE_TIMEOUT_S}s'"))
    connection.commit()
    return connection


def try_to_lead(connection: Connection) -> bool:
    """Returns whether this connection holds the lock now; ask only until it does."""
    leads = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LEADER_LOCK}))
    connection.commit()
    return leads
