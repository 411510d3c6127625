"""Queries on changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on

from keyscale.db.models import Change
from keyscale.db.repositories.pages import Page, PageRequest, read_page
from keyscale.db.statuses import ChangeKind, ChangeStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy.orm import Session


def list_page(session: Session, job_id: str, page: PageRequest, *, kind: ChangeKind | None = None) -> Page[Change]:
    """Returns a job's changes, of one kind or of all, the newest first."""
    wanted = select(Change).where(Change.job_id == job_id)
    if kind is not None:
        wanted = wanted.where(Change.kind == kind)
    return read_page(session, wanted, (Change.requested_at_ms, Change.id), page)


def running_of(session: Session, job_ids: Collection[str]) -> dict[str, Change]:
    """Returns the changes in progress, by job."""
    running = select(Change).where(Change.job_id.in_(job_ids), Change.status == ChangeStatus.IN_PROGRESS)
    return {change.job_id: change for change in session.scalars(running)}


def find(session: Session, change_id: str) -> Change | None:
    """Returns the change with this id."""
    return session.get(Change, change_id)


def running(session: Session, job_id: str) -> Change | None:
    """Returns the change of a job that is in progress."""
    return session.scalars(
        select(Change)
        .where(Change.job_id == job_id, Change.status == ChangeStatus.IN_PROGRESS)
        .execution_options(populate_existing=True)
    ).first()


def last_to(session: Session, job_id: str, revisions: Collection[int]) -> dict[int, Change]:
    """Returns the newest change to each of these revisions, by the revision's number."""
    newest = (
        select(Change)
        .where(Change.job_id == job_id, Change.to_revision.in_(revisions))
        .ext(distinct_on(Change.to_revision))
        .order_by(Change.to_revision, Change.requested_at_ms.desc(), Change.id.desc())
    )
    return {change.to_revision: change for change in session.scalars(newest)}


def last_downtimes(session: Session, job_id: str, kind: ChangeKind, limit: int) -> list[int]:
    """Returns the downtimes of a job's last completed changes of a kind, in milliseconds, the newest first."""
    downtime = Change.resumed_at_ms - Change.stopped_at_ms
    completed = (Change.job_id == job_id, Change.kind == kind, Change.status == ChangeStatus.COMPLETED)
    newest = select(downtime).where(*completed, downtime.is_not(None)).order_by(Change.requested_at_ms.desc())
    return list(session.scalars(newest.limit(limit)))
