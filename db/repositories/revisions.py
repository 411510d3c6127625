"""Queries on revisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, or_, select

from keyscale.vocabulary import AttemptStage

from ..models import Attempt, Revision
from .pages import Page, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from ..models import Job


def list_page(session: Session, job_id: str, page: PageRequest, *, created_by: str | None = None) -> Page[Revision]:
    """Returns a job's revisions, the newest first.

    Without a user, the revisions of every user are in the list.
    """
    wanted = select(Revision).where(Revision.job_id == job_id)
    if created_by is not None:
        wanted = wanted.where(Revision.created_by == created_by)
    return read_page(session, wanted, (Revision.number,), page)


def find(session: Session, job_id: str, number: int) -> Revision | None:
    """Returns a job's revision with this number."""
    return session.get(Revision, (job_id, number))


def current(session: Session, job: Job) -> Revision:
    """Returns a job's present revision."""
    return session.get_one(Revision, (job.id, job.revision))


def of_attempt(session: Session, attempt: Attempt) -> Revision:
    """Returns an attempt's revision."""
    return session.get_one(Revision, (attempt.job_id, attempt.revision))


def in_use(session: Session, job: Job, attempt: int) -> Sequence[Revision]:
    """Returns a job's revisions that have processes, or may get some.

    They are the present revision and the revisions of one attempt and of unended attempts.
    """
    alive = or_(Attempt.stage != AttemptStage.ENDED, Attempt.number == attempt)
    running = select(Attempt.revision).where(Attempt.job_id == job.id, alive)
    either = or_(Revision.number == job.revision, Revision.number.in_(running))
    return session.scalars(select(Revision).where(Revision.job_id == job.id, either)).all()


def next_number(session: Session, job_id: str) -> int:
    """Returns the number of a job's next revision."""
    return (session.scalar(select(func.max(Revision.number)).where(Revision.job_id == job_id)) or 0) + 1
