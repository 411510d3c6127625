"""Rescales: request, list and show them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from keyscale.api.errors import OperationIdTakenError, ParallelismUnchangedError, RescaleNotFoundError
from keyscale.api.lifecycle import intents
from keyscale.api.schemas.rescale import PhaseAnswer, RescaleAnswer, RescaleList
from keyscale.api.services.cursors import write_cursor
from keyscale.api.services.jobs import check_parallelism, require_job
from keyscale.db.repositories import commands, rescales

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.api.access.principal import Principal
    from keyscale.api.schemas.rescale import RescaleRequest
    from keyscale.api.services.context import Context
    from keyscale.api.services.cursors import Listing
    from keyscale.db.models import Job, Rescale


def request_rescale(context: Context, user: Principal, reference: str, request: RescaleRequest) -> RescaleAnswer:
    """Requests another parallelism; the same id again is the same rescale.

    Raises:
        JobNotFoundError: There is no such job.
        ParallelismInvalidError: The parallelism is out of range.
        ParallelismUnchangedError: The job has this parallelism.
        RescaleInProgressError: It is being rescaled.
        JobStatusConflictError: It does not run.
        OperationIdTakenError: The id belongs to something else.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        chosen = request.rescale_id or uuid.uuid4().hex
        rescale = _find_repeated(session, job, chosen, request.parallelism)
        if rescale is None:
            check_parallelism(request.parallelism, job.max_parallelism)
            context.settings.job_limits.check_parallelism(request.parallelism)
            if request.parallelism == job.parallelism and rescales.running(session, job.id) is None:
                raise ParallelismUnchangedError(f"the job's parallelism is {job.parallelism}")
            rescale = intents.rescale(session, job, user, chosen, request.parallelism)
    context.wakeup.ring()
    return rescale_answer(rescale)


def list_of(context: Context, reference: str, listing: Listing) -> RescaleList:
    """Lists a job's rescales.

    Raises:
        JobNotFoundError: There is no such job.
    """
    with context.sessions() as session:
        found = rescales.list_page(session, require_job(session, reference).id, listing.page(int, str))
    return RescaleList(rescales=[rescale_answer(rescale) for rescale in found.rows], next=write_cursor(found.next))


def show(context: Context, reference: str, rescale_id: str) -> RescaleAnswer:
    """Shows a rescale.

    Raises:
        JobNotFoundError: There is no such job.
        RescaleNotFoundError: It has no such rescale.
    """
    with context.sessions() as session:
        job = require_job(session, reference)
        found = rescales.find(session, rescale_id)
    if found is None or found.job_id != job.id:
        raise RescaleNotFoundError("the job has no rescale of this id")
    return rescale_answer(found)


def rescale_answer(rescale: Rescale) -> RescaleAnswer:
    """Returns a rescale as the API shows it."""
    phases = [
        PhaseAnswer(**phase, duration_ms=_between(phase["started_at_ms"], phase["ended_at_ms"]))
        for phase in rescale.phases
    ]
    shown = {name: getattr(rescale, name) for name in RescaleAnswer.model_fields if hasattr(rescale, name)}
    return RescaleAnswer.model_validate(
        {
            **shown,
            "phases": phases,
            "duration_ms": _between(rescale.requested_at_ms, rescale.ended_at_ms),
            "downtime_ms": _between(rescale.stopped_at_ms, rescale.resumed_at_ms),
        }
    )


def _between(start_ms: int | None, end_ms: int | None) -> int | None:
    return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms)


def _find_repeated(session: Session, job: Job, rescale_id: str, parallelism: int) -> Rescale | None:
    commands.reserve_id(session, rescale_id)
    found = rescales.find(session, rescale_id)
    differs = found is not None and (found.job_id != job.id or found.to_parallelism != parallelism)
    if differs or (found is None and commands.find(session, rescale_id) is not None):
        raise OperationIdTakenError("the id belongs to another operation")
    return found
