"""Queries on events."""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Boolean, Text, exists, func, literal_column, not_, select, text, true
from sqlalchemy.dialects.postgresql import array

from ..job_scope import EVERYTHING, JobScope
from ..models import Checkpoint, Event, Job
from ..models.event import NOT_REFUSED, SHOWN_TO_ALL
from . import subscriptions
from .pages import Page, PageRequest, read_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.orm import Session


@dataclass(slots=True)
class EventOrigin:
    """The origin of a request.

    Attributes:
        request_id: The id in its answer and log lines.
        address: The address of its sender.
        actor: The name of the user, once known.
        actor_id: The id of the user, once known.
    """

    request_id: str
    address: str
    actor: str | None = None
    actor_id: str | None = None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The events that a list has.

    Attributes:
        kinds: Their kinds; none: all kinds.
        actor: The name of the user who caused them; None: any user.
        from_ms: The time of the oldest event; None: without limit.
        to_ms: The time of the newest event; None: without limit.
        with_refusals: Whether refused requests are among all kinds.
    """

    kinds: frozenset[str] = frozenset()
    actor: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    with_refusals: bool = True

    @property
    def is_everything(self) -> bool:
        return self == EventFilter()

    def criteria(self) -> list[ColumnElement[bool]]:
        """Returns the filter as conditions on the table of events."""
        found: list[ColumnElement[bool]] = []
        if self.kinds:
            found.append(Event.kind.in_(sorted(self.kinds)))
        elif not self.with_refusals:
            found.append(literal_column(f"({NOT_REFUSED})", Boolean()))
        if self.actor is not None:
            found.append(Event.actor == self.actor)
        if self.from_ms is not None:
            found.append(Event.at_ms >= self.from_ms)
        if self.to_ms is not None:
            found.append(Event.at_ms <= self.to_ms)
        return found


DETAILS_CHARACTERS_MAX = 16 << 10
"""Larger details of an event are left out: with the number of events this bounds their size."""
STATE_CHANGE_REQUESTED = "STATE_CHANGE_REQUESTED"
"""The kind of event that precedes the writing of a savepoint with changed state."""
ORIGIN: ContextVar[EventOrigin | None] = ContextVar("keyscale_request_origin", default=None)
"""The request that is being answered, for events.

The system's own threads have none.
"""


def changes_without_savepoint(session: Session, since_ms: int) -> Sequence[tuple[Event, str]]:
    """Returns requests for a change of state whose savepoint is not listed.

    The control plane may have ended after the savepoint was published. Each comes with the URL of its job's store.

    Args:
        session: The transaction.
        since_ms: Earlier requests are left out.
    """
    listed = exists().where(
        Checkpoint.job_id == Event.job_id, Checkpoint.savepoint_id == Event.details["savepoint_id"].astext
    )
    found = (
        select(Event, Job.store_url)
        .join(Job, Job.id == Event.job_id)
        .where(Event.kind == STATE_CHANGE_REQUESTED, Event.at_ms >= since_ms, not_(listed))
        .order_by(Event.id.desc())
        .limit(100)
    )
    return [(event, store_url) for event, store_url in session.execute(found)]


def requested_state_changes(session: Session, job_id: str) -> Sequence[Event]:
    """Returns the newest requests for a change of a job's state.

    The newest comes first.
    """
    wanted = (Event.job_id == job_id, Event.kind == STATE_CHANGE_REQUESTED)
    return session.scalars(select(Event).where(*wanted).order_by(Event.id.desc()).limit(100)).all()


def uploaders(session: Session, times_ms: Collection[int]) -> dict[str, str]:
    """Returns the uploaders of artifacts from these times, by artifact.

    Old events are forgotten.
    """
    statement = select(Event.details["artifact_id"].astext, Event.actor).where(
        Event.job_id.is_(None), Event.at_ms.in_(times_ms), Event.kind == "ARTIFACT_UPLOADED"
    )
    return {row[0]: row[1] for row in session.execute(statement)}


def record(
    session: Session, *, job_id: str | None, at_ms: int, kind: str, message: str, actor: str = "system", **details: Any
) -> Event:
    """Adds an event to the audit trail, within its action's transaction.

    Subscriptions to its kind are notified.

    Args:
        session: The transaction.
        job_id: The job of the event, if any.
        at_ms: Time of the event.
        kind: The kind of event for programs, in UPPER_SNAKE.
        message: The text for people. Never a record or a secret, and so not the message of a failure but its code:
            events outlive their job.
        actor: The origin: a user, a driver, or the system itself.
        details: Further values, stored as JSON; of very large ones only the names.
    """
    origin = ORIGIN.get()
    if len(json.dumps(details)) > DETAILS_CHARACTERS_MAX:
        details = {"omitted": sorted(details)}
    event = Event(job_id=job_id, at_ms=at_ms, kind=kind, actor=actor, message=message, details=details)
    if origin is not None:
        event.actor_id, event.address, event.request_id = origin.actor_id, origin.address, origin.request_id
    session.add(event)
    subscriptions.notify(session, event)
    return event


def between(
    session: Session, job_id: str, from_ms: int, to_ms: int, *, kinds: Collection[str], limit: int
) -> Sequence[Event]:
    """Returns a job's events of some kinds within an interval.

    The newest come first.
    """
    newest_first = (Event.at_ms.desc(), Event.id.desc())
    wanted = (Event.job_id == job_id, Event.at_ms.between(from_ms, to_ms), Event.kind.in_(kinds))
    ids = select(Event.id).where(*wanted).order_by(*newest_first).limit(limit)  # an index alone answers this
    return session.scalars(select(Event).where(Event.id.in_(ids)).order_by(*newest_first)).all()


def list_page(
    session: Session,
    job_id: str | None,
    page: PageRequest,
    *,
    scope: JobScope = EVERYTHING,
    with_access: bool = True,
    chosen: EventFilter = EventFilter(),
) -> Page[Event]:
    """Returns the newest events.

    An index alone finds their ids first, so that a list reads no events of other jobs.

    Args:
        session: The transaction.
        job_id: The job of the events; None: any.
        page: The part of the list.
        scope: Omits events of other jobs and without a job, unless it covers everything.
        with_access: Whether to include events about users and tokens.
        chosen: The events of the list.
    """
    wanted = select(Event.id).where(*chosen.criteria())
    if job_id is not None:
        in_scope = select(Job.id).where(Job.id == job_id, scope.criterion()).exists()
        wanted = wanted.where(Event.job_id == job_id, true() if scope.is_everything else in_scope)
    elif not scope.is_everything and replace(chosen, with_refusals=True).is_everything:
        wanted = select(Event.id).where(Event.id.in_(_ids_of_scope(session, scope, page)))  # no refusal has a job
    elif not scope.is_everything:
        wanted = wanted.where(Event.job_id.in_(select(Job.id).where(scope.criterion())))
    elif not with_access:
        wanted = wanted.where(text(SHOWN_TO_ALL))
    found = read_keys(session, wanted, (Event.id,), page)
    ids = [key[0] for key in found.rows]
    rows = session.scalars(select(Event).where(Event.id.in_(ids)).order_by(Event.id.desc())).all()
    return Page(rows, found.next)


def _ids_of_scope(session: Session, scope: JobScope, page: PageRequest) -> Select[int]:
    """Returns a query of the possible events of a scope's page.

    They belong to the jobs with the newest events. Once each job of a full page has an event, older events are not on
    the page. Each job's index is read from its newest event on.
    """
    before = true() if page.after is None else Event.id < page.after[0]
    newest = select(func.max(Event.id)).where(Event.job_id == Job.id, before).scalar_subquery().label("newest")
    jobs = select(Job.id, newest).where(scope.criterion()).order_by(newest.desc().nulls_last()).limit(page.limit + 1)
    found = [(job_id, event_id) for job_id, event_id in session.execute(jobs) if event_id is not None]
    oldest = found[-1][1] if len(found) > page.limit else 0
    chosen = select(func.unnest(array([job_id for job_id, _ in found], type_=Text)).label("job_id")).subquery()
    part = select(Event.id).where(Event.job_id == chosen.c.job_id, Event.id >= oldest, before)
    newest_of_job = part.order_by(Event.id.desc()).limit(page.limit + 1).lateral()
    of_jobs = select(newest_of_job.c.id).select_from(chosen.join(newest_of_job, true()))
    return of_jobs.order_by(newest_of_job.c.id.desc()).limit(page.limit + 1)


def first_of_operation(session: Session, job_id: str, operation_id: str) -> Event | None:
    """Returns the event of an operation's request, unless it was removed."""
    of_operation = (Event.job_id == job_id, Event.details["operation_id"].astext == operation_id)
    return session.scalars(select(Event).where(*of_operation).order_by(Event.id).limit(1)).first()


def request_of(session: Session, job_id: str, operation_id: str) -> str | None:
    """Returns the id of the request that has begun an operation."""
    first = first_of_operation(session, job_id, operation_id)
    return None if first is None else first.request_id
