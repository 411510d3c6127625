"""Elects one leading reconciler, by a lock that PostgreSQL holds for a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

_LEADER_LOCK = 0x6C656164
# A leader that is stopped by a signal loses its connection, and with it the lock, after this long. Everything that it
# tries to write afterwards fails, because all of a leader's transactions use the connection that holds the lock.
IDLE_TIMEOUT_S = 30


def open_leader_connection(engine: Engine) -> Connection:
    """Returns the connection on which the lock is requested."""
    connection = engine.connect()
    connection.execute(text(f"SET idle_session_timeout = '{IDLE_TIMEOUT_S}s'"))
    connection.commit()
    return connection


def try_to_lead(connection: Connection) -> bool:
    """Requests the lock; returns whether this connection holds it now. Do not call it again once it does."""
    leads = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LEADER_LOCK}))
    connection.commit()
    return leads
