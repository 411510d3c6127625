from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from db.models import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session


def record(
    session: Session, *, job_id: str | None, at_ms: int, kind: str, message: str, actor: str = "system", **details: Any
) -> None:
    """Adds to the audit trail, in the transaction of what is recorded.

    Args:
        session: The transaction.
        job_id: What it is about.
        at_ms: When.
        kind: UPPER_SNAKE; programs tell events apart by it.
        message: For people. Never a record or a secret.
        actor: Who did it: a token's name, a driver, or the system itself.
        details: More facts, as JSON.
    """
    session.add(Event(job_id=job_id, at_ms=at_ms, kind=kind, actor=actor, message=message, details=details))


def list_of(session: Session, job_id: str | None, *, limit: int) -> Sequence[Event]:
    """Returns the newest events, of all jobs if `job_id` is None."""
    statement = select(Event).order_by(Event.id.desc()).limit(limit)
    return session.scalars(statement if job_id is None else statement.where(Event.job_id == job_id)).all()
