"""Queries on alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, select

from ..models import Alarm

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def of_all_jobs(session: Session) -> set[tuple[str, str]]:
    """Returns the present alarms, as ids of jobs and kinds."""
    return {(job_id, kind) for job_id, kind in session.execute(select(Alarm.job_id, Alarm.kind))}


def begin(session: Session, job_id: str, kind: str, since_ms: int) -> None:
    """Stores an alarm."""
    session.add(Alarm(job_id=job_id, kind=kind, since_ms=since_ms))


def end(session: Session, job_id: str, kind: str) -> None:
    """Removes an alarm."""
    session.execute(delete(Alarm).where(Alarm.job_id == job_id, Alarm.kind == kind))
