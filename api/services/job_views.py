"""Jobs, attempts and events as they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.schemas.job import AttemptAnswer, AttemptList, EventAnswer, EventList, JobAnswer, JobList
from api.services.lookup import require_job
from db.repositories import artifacts, attempts, events, jobs, rescales
from db.statuses import AttemptStage

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from api.context import Context
    from db.models import Job


def job_answer(session: Session, job: Job) -> JobAnswer:
    """Returns a job as the API shows it."""
    artifact = artifacts.find(session, job.artifact_id)
    attempt = attempts.of_stage(session, job.id, AttemptStage.ACTIVE) or attempts.latest(session, job.id)
    rescale = rescales.running(session, job.id)
    shown = {name: getattr(job, name) for name in JobAnswer.model_fields if hasattr(job, name)}
    return JobAnswer.model_validate(
        {
            **shown,
            "artifact_name": artifact.name if artifact else "",
            "artifact_version": artifact.version if artifact else 0,
            "attempt": AttemptAnswer.model_validate(attempt) if attempt else None,
            "rescale_id": rescale.id if rescale else None,
        }
    )


def list_all(context: Context) -> JobList:
    """Lists all jobs."""
    with context.sessions() as session:
        return JobList(jobs=[job_answer(session, job) for job in jobs.list_all(session)])


def show(context: Context, reference: str) -> JobAnswer:
    """Shows a job.

    Raises:
        JobNotFoundError: There is no such job.
    """
    with context.sessions() as session:
        return job_answer(session, require_job(session, reference))


def list_attempts(context: Context, reference: str) -> AttemptList:
    """Lists a job's attempts.

    Raises:
        JobNotFoundError: There is no such job.
    """
    with context.sessions() as session:
        found = attempts.list_of(session, require_job(session, reference).id)
    return AttemptList(attempts=[AttemptAnswer.model_validate(attempt) for attempt in found])


def list_events(context: Context, reference: str | None, limit: int) -> EventList:
    """Lists what has happened to a job, or to everything if `reference` is None.

    Raises:
        JobNotFoundError: There is no such job.
    """
    with context.sessions() as session:
        job_id = None if reference is None else require_job(session, reference).id
        found = events.list_of(session, job_id, limit=limit)
    return EventList(events=[EventAnswer.model_validate(event) for event in found])
