"""Queries on rescales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from keyscale.db.models import Rescale
from keyscale.db.statuses import RescaleStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session


def list_of(session: Session, job_id: str) -> Sequence[Rescale]:
    """Returns a job's rescales, the newest first."""
    return session.scalars(
        select(Rescale).where(Rescale.job_id == job_id).order_by(Rescale.requested_at_ms.desc(), Rescale.id)
    ).all()


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
