"""Queries on events."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from keyscale.db.job_scope import EVERYTHING, JobScope
from keyscale.db.models import Event, Job
from keyscale.db.repositories.pages import Page, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy.orm import Session

ACCESS_KINDS = frozenset({"ACCESS_DENIED", "SIGNED_IN", "SIGNED_OUT", "TOKEN_CREATED", "TOKEN_REVOKED"})
"""The kinds of events about users and tokens, which only administrators see."""


@dataclass(slots=True)
class Origin:
    """Where a request came from.

    Attributes:
        request_id: The id that its answer and log lines carry.
        address: The address of its sender.
        actor: The name of the user, once it is known.
        actor_id: The id of the user, once it is known.
    """

    request_id: str
    address: str
    actor: str | None = None
    actor_id: str | None = None


ORIGIN: ContextVar[Origin | None] = ContextVar("keyscale_request_origin", default=None)
"""The request that is being answered, which events then name; None in the system's own threads."""


def uploaders(session: Session, times_ms: Collection[int]) -> dict[str, str]:
    """Returns who uploaded the artifacts of these times, by the artifact's id; old events are forgotten."""
    statement = select(Event.details["artifact_id"].astext, Event.actor).where(
        Event.job_id.is_(None), Event.at_ms.in_(times_ms), Event.kind == "ARTIFACT_UPLOADED"
    )
    return {row[0]: row[1] for row in session.execute(statement)}


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
        actor: Who did it: a user, a driver, or the system itself.
        details: Further values, stored as JSON.
    """
    origin = ORIGIN.get()
    event = Event(job_id=job_id, at_ms=at_ms, kind=kind, actor=actor, message=message, details=details)
    if origin is not None:
        event.actor_id, event.address, event.request_id = origin.actor_id, origin.address, origin.request_id
    session.add(event)


def between(
    session: Session, job_id: str, from_ms: int, to_ms: int, *, kinds: Collection[str], limit: int
) -> Sequence[Event]:
    """Returns the events of some kinds of a job from one time to another, the newest first."""
    return session.scalars(
        select(Event)
        .where(Event.job_id == job_id, Event.at_ms.between(from_ms, to_ms), Event.kind.in_(kinds))
        .order_by(Event.at_ms.desc(), Event.id.desc())
        .limit(limit)
    ).all()


def list_page(
    session: Session,
    job_id: str | None,
    page: PageRequest,
    *,
    scope: JobScope = EVERYTHING,
    with_access: bool = True,
) -> Page[Event]:
    """Returns the newest events.

    Args:
        session: The transaction.
        job_id: The job that they are about; None: any.
        page: The part of the list.
        scope: Leaves out events of other jobs, and of none, unless it is everything.
        with_access: Whether events about users and tokens are among them.
    """
    statement = select(Event)
    if job_id is not None:
        statement = statement.where(Event.job_id == job_id)
    if not scope.is_everything:
        statement = statement.where(Event.job_id.in_(select(Job.id).where(scope.criterion())))
    if not with_access:
        statement = statement.where(Event.kind.not_in(ACCESS_KINDS))
    return read_page(session, statement, (Event.id,), page)
