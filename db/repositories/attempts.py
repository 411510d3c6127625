"""Queries on attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, select

from keyscale.db.models import Attempt
from keyscale.db.statuses import AttemptStage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session


def list_of(session: Session, job_id: str) -> Sequence[Attempt]:
    """Returns a job's attempts, the newest first."""
    return session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number.desc())).all()


def find(session: Session, job_id: str, number: int, *, lock: bool = False) -> Attempt | None:
    """Returns a job's attempt with this number; `lock` keeps others from changing it."""
    return session.get(Attempt, (job_id, number), with_for_update=lock or None, populate_existing=lock)


def find_by_token(session: Session, token_sha256: str) -> Attempt | None:
    """Returns the attempt whose driver has the token with this hash."""
    return session.scalars(select(Attempt).where(Attempt.token_sha256 == token_sha256)).first()


def of_stage(session: Session, job_id: str, stage: AttemptStage) -> Attempt | None:
    """Returns the job's ACTIVE or STANDBY attempt; there is at most one of each."""
    return session.scalars(
        select(Attempt)
        .where(Attempt.job_id == job_id, Attempt.stage == stage)
        .execution_options(populate_existing=True)
    ).first()


def unreaped(session: Session, job_id: str) -> Sequence[Attempt]:
    """Returns ended attempts that may still have processes."""
    return session.scalars(
        select(Attempt)
        .where(Attempt.job_id == job_id, Attempt.stage == AttemptStage.ENDED, Attempt.reaped.is_(False))
        .order_by(Attempt.number)
    ).all()


def latest(session: Session, job_id: str) -> Attempt | None:
    """Returns a job's newest attempt."""
    return session.scalars(
        select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.number.desc()).limit(1)
    ).first()


def next_number(session: Session, job_id: str) -> int:
    """Returns a fencing number above all earlier ones of the job."""
    return (session.scalar(select(func.max(Attempt.number)).where(Attempt.job_id == job_id)) or 0) + 1
