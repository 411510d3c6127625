"""Asynchronous operations: checkpoints, savepoints and stops.

An operation is carried out by a command to the driver, which has the operation's id.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import checkpoints, events, operations
from keyscale.db.statuses import SnapshotOwner
from keyscale.jobs.protocol.messages import CheckpointStatus
from keyscale.jobs.protocol.operations import OperationKind, OperationStatus

from ..errors import OperationIdTakenError, OperationNotFoundError, SavepointNotFoundError
from ..lifecycle import requests
from ..schemas.base import FailureAnswer
from ..schemas.change import ChangeAnswer
from ..schemas.operation import (
    OperationAccepted,
    OperationAnswer,
    OperationResult,
    SavepointAnswer,
    SavepointList,
)
from .changes import change_answer
from .cursors import write_cursor
from .jobs import require_job, require_job_id

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Sequence

    from sqlalchemy.orm import Session

    from keyscale.db.models import Job, Operation

    from ..access.principal import Principal
    from ..schemas.job import StopRequest
    from ..schemas.operation import OperationRequest, SavepointRequest
    from .context import Context
    from .cursors import Listing


_TAKE_SAVEPOINTS = frozenset(OperationKind) - {OperationKind.CHECKPOINT, OperationKind.START, OperationKind.CANCEL}


def find_repeated(session: Session, job: Job, operation_id: str, kind: OperationKind) -> Operation | None:
    """Returns the operation that an earlier, equal request has stored.

    The job is locked.

    Raises:
        OperationIdTakenError: The id belongs to another operation.
    """
    operations.reserve_id(session, operation_id)
    found = operations.find(session, operation_id)
    if found is not None and (found.job_id != job.id or found.kind is not kind):
        raise OperationIdTakenError("the id belongs to another operation")
    return found


def stop(context: Context, user: Principal, reference: str, request: StopRequest) -> OperationAccepted:
    """Stops a job with a savepoint.

    The same operation id again is the same stop.

    Raises:
        JobNotFoundError: The job does not exist.
        JobStatusConflictError: The job does not run.
        OperationIdTakenError: The id belongs to another operation.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        operation_id = request.operation_id or uuid.uuid4().hex
        kind = OperationKind.DRAIN if request.drain else OperationKind.STOP
        command = find_repeated(session, job, operation_id, kind)
        if command is None:
            command = requests.stop(session, job, user, operation_id, drain=request.drain)
    context.wakeup.ring()
    return OperationAccepted(operation_id=command.id, status=command.status)


def trigger_checkpoint(
    context: Context, user: Principal, reference: str, request: OperationRequest
) -> OperationAccepted:
    """Takes a checkpoint.

    Raises:
        JobNotFoundError: The job does not exist.
        JobStatusConflictError: The job does not run.
        OperationIdTakenError: The id belongs to another operation.
    """
    return _trigger(context, user, reference, request.operation_id, OperationKind.CHECKPOINT)


def trigger_savepoint(
    context: Context, user: Principal, reference: str, request: SavepointRequest
) -> OperationAccepted:
    """Takes a savepoint.

    Raises:
        JobNotFoundError: The job does not exist.
        JobStatusConflictError: The job does not run.
        OperationIdTakenError: The id belongs to another operation.
    """
    return _trigger(context, user, reference, request.savepoint_id, OperationKind.SAVEPOINT)


def list_savepoints(context: Context, reference: str, listing: Listing) -> SavepointList:
    """Lists a job's savepoints.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        found = operations.list_page(session, job_id, listing.page(int, str), kinds=_TAKE_SAVEPOINTS)
        shown = _savepoint_answers(session, found.rows)
    return SavepointList(savepoints=shown, next=write_cursor(found.next))


def show_savepoint(context: Context, reference: str, savepoint_id: str) -> SavepointAnswer:
    """Shows a savepoint.

    Raises:
        JobNotFoundError: The job does not exist.
        SavepointNotFoundError: The job has no such savepoint.
    """
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        found = operations.find(session, savepoint_id)
        if found is None or found.job_id != job_id:
            raise SavepointNotFoundError("the job has no savepoint of this id")
        [answer] = _savepoint_answers(session, [found])
    return answer


def keep_savepoint(context: Context, user: Principal, reference: str, savepoint_id: str) -> SavepointAnswer:
    """Gives a savepoint to its user.

    The platform then never deletes it. A second time changes nothing.

    Raises:
        JobNotFoundError: The job does not exist.
        SavepointNotFoundError: The job has no such completed savepoint, or it was deleted.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        taken, found = (
            operations.find(session, savepoint_id),
            checkpoints.find_savepoint(session, job.id, savepoint_id),
        )
        if taken is None or taken.job_id != job.id or found is None or found.status is not CheckpointStatus.COMPLETED:
            raise SavepointNotFoundError("the job has no completed savepoint of this id")
        if found.owner is not SnapshotOwner.USER:
            found.owner = SnapshotOwner.USER
            events.record(
                session,
                job_id=job.id,
                at_ms=now_ms(),
                kind="SAVEPOINT_KEPT",
                actor=user.name,
                message=f"savepoint {found.checkpoint_id} is kept: the platform does not delete it",
                checkpoint_id=found.checkpoint_id,
                location=found.external_path,
            )
        session.flush()
        [answer] = _savepoint_answers(session, [taken])
    return answer


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


def answers(session: Session, operation_ids: Collection[str]) -> dict[str, OperationAnswer]:
    """Returns the existing operations by their ids, with few statements."""
    rows = operations.find_all(session, operation_ids)
    discarded = _discarded(session, rows)
    return {
        row.id: _change_operation(row)
        if row.kind.is_change
        else OperationAnswer.model_validate(_operation_fields(row, discarded))
        for row in rows
    }


def _trigger(
    context: Context, user: Principal, reference: str, operation_id: str | None, kind: OperationKind
) -> OperationAccepted:
    chosen = operation_id or uuid.uuid4().hex
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        command = find_repeated(session, job, chosen, kind) or requests.snapshot(session, job, user, chosen, kind)
    return OperationAccepted(operation_id=command.id, status=command.status)


def _discarded(session: Session, found: Sequence[Operation]) -> set[tuple[str, int]]:
    """Returns the deleted checkpoints and savepoints of some commands.

    They are by job and number.
    """
    taken = [(command.job_id, command.checkpoint_id) for command in found if command.checkpoint_id is not None]
    return checkpoints.discarded_among(session, taken) if taken else set()


def _operation_fields(command: Operation, discarded: Container[tuple[str, int | None]]) -> dict[str, object]:
    done = command.status is OperationStatus.COMPLETED
    result = OperationResult(
        location=command.location,
        checkpoint_id=command.checkpoint_id,
        discarded=(command.job_id, command.checkpoint_id) in discarded,
    )
    return {
        "id": command.id,
        "job_id": command.job_id,
        "kind": command.kind,
        "status": command.status,
        "created_at_ms": command.requested_at_ms,
        "ended_at_ms": command.ended_at_ms,
        "operation": result if done else None,
        "failure_cause": command.failure,
    }


def _savepoint_answers(session: Session, found: Sequence[Operation]) -> list[SavepointAnswer]:
    discarded = _discarded(session, found)
    taken = [(command.job_id, command.checkpoint_id) for command in found if command.checkpoint_id is not None]
    owners = checkpoints.owners(session, taken) if taken else {}
    return [
        SavepointAnswer.model_validate(
            {
                **_operation_fields(command, discarded),
                "savepoint_id": command.savepoint_id,
                "owner": owners.get((command.job_id, command.checkpoint_id or 0), command.savepoint_owner),
            }
        )
        for command in found
    ]


def _change_operation(change: Operation) -> OperationAnswer:
    status, done = change.status, change.status is OperationStatus.COMPLETED
    rescale_id = change.id if change.kind is OperationKind.RESCALE else None
    return OperationAnswer(
        id=change.id,
        job_id=change.job_id,
        kind=change.kind,
        status=status,
        created_at_ms=change.requested_at_ms,
        ended_at_ms=change.ended_at_ms,
        operation=(
            OperationResult(location=change.location, rescale_id=rescale_id, change_id=change.id) if done else None
        ),
        failure_cause=FailureAnswer.model_validate(change.failure) if change.failure else None,
        change=change_answer(change, ChangeAnswer),
    )
