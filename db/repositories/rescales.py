"""Queries on rescales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from keyscale.db.models import Rescale
from keyscale.db.repositories.pages import Page, PageRequest, read_page
from keyscale.db.statuses import RescaleStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy.orm import Session


def list_page(session: Session, job_id: str, page: PageRequest) -> Page[Rescale]:
    """Returns a job's rescales, the newest first."""
    key = (Rescale.requested_at_ms, Rescale.id)
    return read_page(session, select(Rescale).where(Rescale.job_id == job_id), key, page)


def last_downtimes(session: Session, job_id: str, limit: int) -> list[int]:
    """Returns the downtimes of a job's last completed rescales, in milliseconds, the newest first."""
    downtime = Rescale.resumed_at_ms - Rescale.stopped_at_ms
    return list(
        session.scalars(
            select(downtime)
            .where(Rescale.job_id == job_id, Rescale.status == RescaleStatus.COMPLETED, downtime.is_not(None))
            .order_by(Rescale.requested_at_ms.desc())
            .limit(limit)
        )
    )


def running_of(session: Session, job_ids: Collection[str]) -> dict[str, str]:
    """Returns the ids of the rescales in progress, by job."""
    running = select(Rescale.job_id, Rescale.id).where(
        Rescale.job_id.in_(job_ids), Rescale.status == RescaleStatus.IN_PROGRESS
    )
    return dict(session.execute(running).all())


def find(session: Session, rescale_id: str) -> Rescale | None:
    """Returns the rescale with this id."""
    return session.get(Rescale, rescale_id)


def running(session: Session, job_id: str) -> Rescale | None:
    """Returns the rescale of a job that is in progress."""
    return session.scalars(
        select(Rescale)
        .where(Rescale.job_id == job_id, Rescale.status == RescaleStatus.IN_PROGRESS)
        .execution_options(populate_existing=True)
    ).first()
