"""Operations: store them once, list, show and cancel them."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import checkpoints, jobs, operations
from keyscale.vocabulary import CommandStatus, OperationKind

from ..control_plane.cursors import write_cursor
from ..errors import OperationIdTakenError, OperationNotFoundError
from ..jobs.jobs import require_job, require_job_id
from ..lifecycle import requests
from ..lifecycle.downtime_breakdown import prepared_ms, timed_steps
from .schemas.operation import OperationAnswer, OperationList, OperationResult, PhaseAnswer, StepAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy.orm import Session

    from keyscale.db.models import Job, Operation
    from keyscale.vocabulary import OperationStatus

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing
    from .schemas.change_plan import PlanAnswer
    from .schemas.operation import OperationRequest

_NOT_ARGUMENTS = {"id", "kind", "dry_run"}
_SHOWN = frozenset(OperationAnswer.model_fields) - {
    "phases",
    "duration_ms",
    "downtime_ms",
    "steps",
    "prepared_ms",
    "held_ms",
    "plan",
    "result",
    "can_cancel",
}


def carry_out(
    context: Context,
    reference: str,
    kind: OperationKind,
    request: OperationRequest,
    begin: Callable[[Session, Job, str], Operation],
) -> OperationAnswer:
    """Stores an operation.

    The same request with the same id again has the same answer.

    Args:
        context: The control plane.
        reference: The job.
        kind: The kind that is asked for.
        request: Its arguments.
        begin: Stores the operation of an id, with the job locked.

    Raises:
        JobNotFoundError: The job does not exist.
        OperationIdTakenError: The id belongs to another operation.
        ApiError: As `begin` raises it.
    """
    digest = _digest_of(kind, request)
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        operation_id = request.id or uuid.uuid4().hex
        operation = _find_repeated(session, job, operation_id, kind, digest)
        if operation is None:
            operation = begin(session, job, operation_id)
            operation.request_sha256 = digest
            session.flush()
        [answer] = _answers(session, [operation])
    context.wakeup.ring()
    return answer


def is_known(session: Session, request: OperationRequest) -> bool:
    """Returns whether a request repeats an earlier request."""
    return request.id is not None and operations.find(session, request.id) is not None


def planned(user: Principal, kind: OperationKind, plan: PlanAnswer) -> OperationAnswer:
    """Returns the answer to a dry run."""
    return OperationAnswer(
        id=None,
        job_id=plan.job_id,
        kind=kind,
        status=None,
        requested_at_ms=now_ms(),
        requested_by=user.name,
        from_parallelism=plan.from_parallelism,
        to_parallelism=plan.to_parallelism,
        plan=plan,
    )


def list_of(
    context: Context,
    reference: str,
    listing: Listing,
    kinds: Collection[OperationKind],
    statuses: Collection[OperationStatus],
) -> OperationList:
    """Lists a job's operations.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        found = operations.list_page(session, job_id, listing.page(int, str), kinds=kinds, statuses=statuses)
        shown = _answers(session, found.rows)
    return OperationList(operations=shown, next=write_cursor(found.next))


def show(context: Context, operation_id: str) -> OperationAnswer:
    """Shows an operation.

    Raises:
        OperationNotFoundError: No operation has this id.
    """
    with context.reads() as session:
        found = answers(session, [operation_id]).get(operation_id)
    if found is None:
        raise OperationNotFoundError("no operation has this id")
    return found


def cancel(context: Context, user: Principal, operation_id: str) -> OperationAnswer:
    """Requests the cancellation of an operation.

    A second request is the same cancellation.

    Raises:
        OperationNotFoundError: No operation has this id.
        OperationNotCancellableError: It is over, the job already goes back, or its kind cannot be cancelled.
    """
    return act_on(context, operation_id, lambda session, _, found: requests.cancel_operation(session, found, user))


def act_on(context: Context, operation_id: str, act: Callable[[Session, Job, Operation], None]) -> OperationAnswer:
    """Changes a stored operation, with its job locked.

    Raises:
        OperationNotFoundError: No operation has this id.
        ApiError: As `act` raises it.
    """
    with context.sessions.begin() as session:
        found = operations.find(session, operation_id)
        job = None if found is None else jobs.lock(session, found.job_id)
        found = operations.find(session, operation_id)  # as it is with the job locked
        if found is None or job is None:
            raise OperationNotFoundError("no operation has this id")
        act(session, job, found)
        session.flush()
        [answer] = _answers(session, [found])
    context.wakeup.ring()
    return answer


def answers(session: Session, operation_ids: Collection[str]) -> dict[str, OperationAnswer]:
    """Returns the existing operations by their ids, with few statements."""
    rows = operations.find_all(session, operation_ids)
    return {row.id: answer for row, answer in zip(rows, _answers(session, rows), strict=True)}


def operation_answer(operation: Operation, *, discarded: bool = False) -> OperationAnswer:
    """Returns an operation as the API shows it. Pure.

    Args:
        operation: The operation.
        discarded: Whether its checkpoint or savepoint was deleted.
    """
    is_taken = operation.command_status is CommandStatus.COMPLETED
    phases = [
        PhaseAnswer(**phase, duration_ms=_between(phase["started_at_ms"], phase["ended_at_ms"]))
        for phase in operation.phases or []
    ]
    steps = [
        StepAnswer(
            name=step.name,
            started_at_ms=step.started_at_ms,
            ended_at_ms=step.ended_at_ms,
            duration_ms=step.ended_at_ms - step.started_at_ms,
        )
        for step in timed_steps(operation)
    ]
    result = OperationResult(location=operation.location, checkpoint_id=operation.checkpoint_id, discarded=discarded)
    return OperationAnswer.model_validate(
        {
            **{name: getattr(operation, name) for name in _SHOWN},
            "allow_non_restored_state": bool(operation.allow_non_restored_state),
            "phases": phases,
            "duration_ms": _between(operation.approved_at_ms or operation.requested_at_ms, operation.ended_at_ms),
            "downtime_ms": _between(operation.stopped_at_ms, operation.resumed_at_ms),
            "steps": steps,
            "prepared_ms": prepared_ms(operation),
            "held_ms": (operation.live or {}).get("held_ms"),
            "result": result if is_taken or operation.location is not None else None,
            "can_cancel": operation.cancel_requested_at_ms is None and requests.is_cancellable(operation),
        }
    )


def _answers(session: Session, rows: Sequence[Operation]) -> list[OperationAnswer]:
    taken = [(row.job_id, row.checkpoint_id) for row in rows if row.checkpoint_id is not None]
    discarded = checkpoints.discarded_among(session, taken) if taken else set()
    return [operation_answer(row, discarded=(row.job_id, row.checkpoint_id) in discarded) for row in rows]


def _find_repeated(session: Session, job: Job, operation_id: str, kind: OperationKind, digest: str) -> Operation | None:
    """Returns the operation that an earlier, equal request has stored.

    The job is locked. An operation of a version before has no digest.
    """
    operations.reserve_id(session, operation_id)
    found = operations.find(session, operation_id)
    if found is None:
        return None
    is_same = found.kind is kind if found.request_sha256 is None else found.request_sha256 == digest
    if found.job_id != job.id or not is_same:
        raise OperationIdTakenError("the id belongs to another operation")
    return found


def _digest_of(kind: OperationKind, request: OperationRequest) -> str:
    arguments = request.model_dump(mode="json", exclude=_NOT_ARGUMENTS, exclude_unset=True)
    return hashlib.sha256(json.dumps([kind, arguments], sort_keys=True).encode()).hexdigest()


def _between(start_ms: int | None, end_ms: int | None) -> int | None:
    return None if start_ms is None or end_ms is None else max(0, end_ms - start_ms)
