"""Queries on jobs' exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select

from ..models import JobException
from .pages import Page, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

KEPT = 500
"""The number per job; adding an exception removes older ones."""
TEXT_MAX = 32_768


def record(session: Session, job_id: str, attempt: int, at_ms: int, failure: Mapping[str, Any]) -> None:
    """Adds an exception to a job's history, and removes outdated ones.

    Args:
        session: The transaction.
        job_id: The job.
        attempt: The attempt that failed.
        at_ms: When the failure became known.
        failure: Its code and message, and where known the traceback, operator and subtask; secrets are masked.
    """
    traceback = failure.get("traceback")
    session.add(
        JobException(
            job_id=job_id,
            attempt=attempt,
            at_ms=at_ms,
            code=failure["code"],
            message=failure["message"][:TEXT_MAX],
            traceback=None if traceback is None else traceback[-TEXT_MAX:],
            operator_uid=failure.get("operator_uid"),
            subtask=failure.get("subtask"),
        )
    )
    session.flush()
    of_job = select(JobException.id).where(JobException.job_id == job_id)
    oldest = of_job.order_by(JobException.id.desc()).offset(KEPT).limit(1).scalar_subquery()
    session.execute(delete(JobException).where(JobException.job_id == job_id, JobException.id <= oldest))


def list_page(session: Session, job_id: str, page: PageRequest) -> Page[JobException]:
    """Returns a job's exceptions, the newest first."""
    return read_page(session, select(JobException).where(JobException.job_id == job_id), (JobException.id,), page)


def remove(session: Session, job_id: str) -> None:
    """Deletes a job's exceptions, which are few."""
    session.execute(delete(JobException).where(JobException.job_id == job_id))
