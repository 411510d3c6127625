"""Queries on deleted jobs with remaining objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from ..models import DeletedJob

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def first_due(session: Session, now_ms: int) -> DeletedJob | None:
    """Returns the deleted job with the longest overdue pass, or None."""
    return session.scalars(
        select(DeletedJob).where(DeletedJob.due_at_ms <= now_ms).order_by(DeletedJob.due_at_ms, DeletedJob.job_id)
    ).first()
