"""Queries on changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, cast, null, select, update

from ..models import Attempt, Change, Revision
from ..statuses import ChangeKind, ChangeStatus
from .pages import Page, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy.orm import Session


def list_page(session: Session, job_id: str, page: PageRequest, *, kind: ChangeKind | None = None) -> Page[Change]:
    """Returns a job's changes, the newest first.

    They are of one kind, or of all kinds.
    """
    wanted = select(Change).where(Change.job_id == job_id)
    if kind is not None:
        wanted = wanted.where(Change.kind == kind)
    return read_page(session, wanted, (Change.requested_at_ms, Change.id), page)


def find(session: Session, change_id: str) -> Change | None:
    """Returns the change with this id."""
    return session.get(Change, change_id)


def find_all(session: Session, change_ids: Collection[str]) -> Sequence[Change]:
    """Returns the existing changes among some ids."""
    return session.scalars(select(Change).where(Change.id.in_(change_ids))).all()


def running(session: Session, job_id: str) -> Change | None:
    """Returns the change of a job that is in progress."""
    return session.scalars(
        select(Change)
        .where(Change.job_id == job_id, Change.status == ChangeStatus.IN_PROGRESS)
        .execution_options(populate_existing=True)
    ).first()


def note_progress(
    session: Session, job_id: str, attempt: int, caught_up_at_ms: int | None, figures: Mapping[str, Any] | None
) -> None:
    """Stores the progress of an attempt in the change that created it.

    The progress is the time of catching up, and the metrics since.
    """
    session.execute(
        update(Change)
        .where(Change.job_id == job_id, Change.new_attempt == attempt)
        .values(caught_up_at_ms=caught_up_at_ms, figures_after=null() if figures is None else figures)
    )


def last_to(session: Session, job_id: str, revisions: Collection[int]) -> dict[int, Change]:
    """Returns the newest change to each revision, by revision number."""
    newest = (
        select(Change.id)
        .where(Change.job_id == Revision.job_id, Change.to_revision == Revision.number)
        .order_by(Change.requested_at_ms.desc(), Change.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    ids = select(newest).where(Revision.job_id == job_id, Revision.number.in_(revisions))
    return {change.to_revision: change for change in session.scalars(select(Change).where(Change.id.in_(ids)))}


def last_downtimes(session: Session, job_id: str, kind: ChangeKind, limit: int) -> list[int]:
    """Returns the downtimes of a job's last completed changes of a kind.

    They are in milliseconds, the newest first.
    """
    downtime = Change.resumed_at_ms - Change.stopped_at_ms
    completed = (Change.job_id == job_id, Change.kind == kind, Change.status == ChangeStatus.COMPLETED)
    newest = select(downtime).where(*completed, downtime.is_not(None)).order_by(Change.requested_at_ms.desc())
    return list(session.scalars(newest.limit(limit)))


def last_warm_ups(session: Session, job_id: str, limit: int) -> list[int]:
    """Returns how long drivers of earlier changes took to warm up.

    It is the time from a driver's request for work to the next phase of its change, in milliseconds, the newest first.
    """
    next_phase_at_ms = cast(Change.phases[1]["started_at_ms"].astext, BigInteger)
    warm_ms = next_phase_at_ms - Attempt.attached_at_ms
    of_change = (Attempt.job_id == Change.job_id) & (Attempt.number == Change.new_attempt)
    found = select(warm_ms).select_from(Change).join(Attempt, of_change).where(Change.job_id == job_id, warm_ms >= 0)
    return list(session.scalars(found.order_by(Change.requested_at_ms.desc()).limit(limit)))
