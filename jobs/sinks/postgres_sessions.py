"""The sessions of a job's drivers and tasks on a database.

A name has the job and the attempt. A driver that sleeps, or whose host is lost, may leave a session with an open
transaction. Its locks would block the next driver for as long as the session lives.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg


def session_name(job_id: str, attempt: int) -> str:
    """Returns the name of the sessions of an attempt."""
    return f"{_prefix(job_id)}{attempt}"


def end_sessions_before(connection: psycopg.Connection[Any], job_id: str, attempt: int) -> None:
    """Ends the job's sessions of attempts before the given attempt.

    The connection's own session stays.
    """
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE usename = current_user AND pid <> pg_backend_pid() AND "
        "CASE WHEN starts_with(application_name, %s) "
        "THEN split_part(application_name, ' ', 3)::bigint < %s ELSE false END",
        (_prefix(job_id), attempt),
    )


def _prefix(job_id: str) -> str:
    return f"keyscale {hashlib.sha256(job_id.encode()).hexdigest()[:16]} "
