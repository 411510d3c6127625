"""Queries on events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from keyscale.db.models import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session


def record(
    session: Session, *, job_id: str | None, at_ms: int, kind: str, message: str, actor: str = "system", **details: Any
) -> None:
    """Adds an event to the audit trail, in the transaction of the action that it records.

    Args:
        session: The transaction.
        job_id: The job that it is about, if any.
        at_ms: Time of the event.
        kind: The kind of event for programs, in UPPER_SNAKE.
        message: The text for people. Never a record or a secret, and so not the message of a failure but its code:
            events outlive their job.
        actor: Who did it: a token's name, a driver, or the system itself.
        details: Further values, stored as JSON.
    """
    session.add(Event(job_id=job_id, at_ms=at_ms, kind=kind, actor=actor, message=message, details=details))


def list_of(session: Session, job_id: str | None, *, limit: int) -> Sequence[Event]:
    """Returns the newest events, of all jobs if `job_id` is None."""
    statement = select(Event).order_by(Event.id.desc()).limit(limit)
    return session.scalars(statement if job_id is None else statement.where(Event.job_id == job_id)).all()
