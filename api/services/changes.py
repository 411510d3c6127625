"""Changes: request a rescale, list and show rescales and all changes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, TypeVar

from keyscale.db.repositories import operations, revisions
from keyscale.jobs.protocol.operations import CHANGES, OperationKind, UpgradeMode

from ..errors import (
    ChangeNotFoundError,
    OperationIdTakenError,
    ParallelismUnchangedError,
    RescaleNotFoundError,
)
from ..job_spec import changed, spec_of
from ..lifecycle import requests
from ..lifecycle.ledger import prepared_ms, timed_steps
from ..schemas.change import ChangeAnswer, ChangeList, PhaseAnswer, RescaleAnswer, RescaleList, StepAnswer
from .cursors import write_cursor
from .jobs import check_parallelism, require_job, require_job_id

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.models import Job, Operation

    from ..access.principal import Principal
    from ..schemas.change import RescaleRequest
    from .context import Context
    from .cursors import Listing

Shown = TypeVar("Shown", bound=RescaleAnswer)


def request_rescale(context: Context, user: Principal, reference: str, request: RescaleRequest) -> RescaleAnswer:
    """Requests another parallelism.

    The same id again is the same rescale.

    Raises:
        JobNotFoundError: The job does not exist.
        ParallelismInvalidError: The parallelism is out of range.
        ParallelismUnchangedError: The job has this parallelism.
        OperationInProgressError: The job is being rescaled.
        OperationInProgressError: The job is being upgraded.
        JobStatusConflictError: The job does not run.
        OperationIdTakenError: The id belongs to another operation.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        chosen = request.rescale_id or uuid.uuid4().hex
        rescale = find_repeated(session, job, chosen)
        if rescale is not None:
            if (rescale.kind, rescale.to_parallelism) != (OperationKind.RESCALE, request.parallelism):
                raise OperationIdTakenError("the id belongs to another operation")
        else:
            check_parallelism(request.parallelism, job.max_parallelism)
            context.settings.job_limits.check_parallelism(request.parallelism)
            present = spec_of(revisions.current(session, job))
            requests.require_changeable(session, job, OperationKind.RESCALE, UpgradeMode.SAVEPOINT)
            if request.parallelism == present.parallelism:
                raise ParallelismUnchangedError(f"the job's parallelism is {present.parallelism}")
            wanted = changed(present, {"parallelism": request.parallelism})
            revision = requests.revise(session, job, wanted, user)
            rescale = requests.change(session, job, user, chosen, revision, kind=OperationKind.RESCALE)
        session.flush()
        answer = change_answer(rescale, RescaleAnswer)
    context.wakeup.ring()
    return answer


def list_rescales(context: Context, reference: str, listing: Listing) -> RescaleList:
    """Lists a job's rescales.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        found = operations.list_page(session, job_id, listing.page(int, str), kinds={OperationKind.RESCALE})
    shown = [change_answer(change, RescaleAnswer) for change in found.rows]
    return RescaleList(rescales=shown, next=write_cursor(found.next))


def list_changes(context: Context, reference: str, listing: Listing) -> ChangeList:
    """Lists a job's changes, rescales among them.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        found = operations.list_page(session, require_job_id(session, reference), listing.page(int, str), kinds=CHANGES)
    shown = [change_answer(change, ChangeAnswer) for change in found.rows]
    return ChangeList(changes=shown, next=write_cursor(found.next))


def show_rescale(context: Context, reference: str, rescale_id: str) -> RescaleAnswer:
    """Shows a rescale.

    Raises:
        JobNotFoundError: The job does not exist.
        RescaleNotFoundError: The job has no such rescale.
    """
    found = _find(context, reference, rescale_id)
    if found is None or found.kind is not OperationKind.RESCALE:
        raise RescaleNotFoundError("the job has no rescale of this id")
    return change_answer(found, RescaleAnswer)


def show_change(context: Context, reference: str, change_id: str) -> ChangeAnswer:
    """Shows a change.

    Raises:
        JobNotFoundError: The job does not exist.
        ChangeNotFoundError: The job has no such change.
    """
    found = _find(context, reference, change_id)
    if found is None:
        raise ChangeNotFoundError("the job has no change of this id")
    return change_answer(found, ChangeAnswer)


def cancel(context: Context, user: Principal, reference: str, change_id: str) -> ChangeAnswer:
    """Requests the cancellation of a change.

    A second request is the same cancellation.

    Raises:
        JobNotFoundError: The job does not exist.
        ChangeNotFoundError: The job has no such change.
        OperationNotCancellableError: The change is over, or the job already goes back to its old revision.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        found = operations.find(session, change_id)
        if found is None or found.job_id != job.id or not found.kind.is_change:
            raise ChangeNotFoundError("the job has no change of this id")
        requests.cancel_operation(session, found, user)
        session.flush()
        answer = change_answer(found, ChangeAnswer)
    context.wakeup.ring()
    return answer


def find_repeated(session: Session, job: Job, change_id: str) -> Operation | None:
    """Returns the change that an earlier request with this id has stored.

    The job is locked.

    Raises:
        OperationIdTakenError: The id belongs to an operation of another kind, or of another job.
    """
    operations.reserve_id(session, change_id)
    found = operations.find(session, change_id)
    if found is None:
        return None
    if found.job_id != job.id or not found.kind.is_change:
        raise OperationIdTakenError("the id belongs to another operation")
    return found


def change_answer(change: Operation, form: type[Shown]) -> Shown:
    """Returns a change as the API shows it."""
    phases = [
        PhaseAnswer(**phase, duration_ms=_between(phase["started_at_ms"], phase["ended_at_ms"]))
        for phase in change.phases
    ]
    shown = {name: getattr(change, name) for name in form.model_fields if hasattr(change, name)}
    shown |= {"savepoint_location": change.location}
    return form.model_validate(
        {
            **shown,
            "phases": phases,
            "duration_ms": _between(change.requested_at_ms, change.ended_at_ms),
            "downtime_ms": _between(change.stopped_at_ms, change.resumed_at_ms),
            "steps": [
                StepAnswer(
                    name=step.name,
                    started_at_ms=step.started_at_ms,
                    ended_at_ms=step.ended_at_ms,
                    duration_ms=step.ended_at_ms - step.started_at_ms,
                )
                for step in timed_steps(change)
            ],
            "prepared_ms": prepared_ms(change),
            "before": change.metrics_before,
            "after": change.metrics_after,
            "can_cancel": change.cancel_requested_at_ms is None and requests.is_cancellable(change),
        }
    )


def _find(context: Context, reference: str, change_id: str) -> Operation | None:
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        found = operations.find(session, change_id)
    return found if found is not None and found.job_id == job_id and found.kind.is_change else None


def _between(start_ms: int | None, end_ms: int | None) -> int | None:
    return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms)
