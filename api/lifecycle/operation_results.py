"""The results of operations, and of their commands to drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.clock import now_ms
from keyscale.db.event_kinds import command_event
from keyscale.db.repositories import events
from keyscale.vocabulary import STOPS, CommandStatus, OperationKind, OperationStatus

from .outcomes import failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from keyscale.db.models import Operation


def settle_command(
    session: Session,
    operation: Operation,
    *,
    status: CommandStatus,
    location: str | None = None,
    checkpoint_id: int | None = None,
    failed: Mapping[str, Any] | None = None,
) -> None:
    """Stores the result of an operation's command; the first result stays.

    A checkpoint or savepoint ends with its command; other operations go on.
    """
    if operation.command_status is not CommandStatus.IN_PROGRESS:
        return
    operation.command_status = status
    operation.location, operation.checkpoint_id = location, checkpoint_id
    if failed is not None and operation.failure is None:
        operation.failure = dict(failed)
    now = now_ms()
    if operation.kind.is_snapshot:
        operation.status, operation.ended_at_ms = OperationStatus(status), now
    command = operation.command_kind
    result = "completed" if status is CommandStatus.COMPLETED else "failed"
    events.record(
        session,
        job_id=operation.job_id,
        at_ms=now,
        kind=command_event(command, status),
        actor=f"attempt {operation.old_attempt}",
        message=f"{command.replace('_', ' ').lower()} {result}",
        operation_id=operation.id,
        location=location,
        failure_code=failed.get("code") if failed else None,
    )


def end(session: Session, operation: Operation, status: OperationStatus, why: Mapping[str, Any] | None = None) -> None:
    """Ends an operation; a command without a result fails with it."""
    settle_command(
        session,
        operation,
        status=CommandStatus.FAILED,
        failed=why or failure(f"{operation.kind}_ENDED", f"the {operation.kind.lower()} has ended"),
    )
    now = now_ms()
    operation.status, operation.ended_at_ms, operation.phases = status, now, ended(operation.phases or [], now)
    if status in {OperationStatus.COMPLETED, OperationStatus.CANCELLED}:
        operation.failure = None
    elif why is not None and operation.failure is None:
        operation.failure = dict(why)
    if not operation.kind.is_snapshot:  # the result of its command has ended a snapshot
        code = (operation.failure or {}).get("code")
        ending = status.replace("_", " ").lower() + (f": {code}" if code else "")
        events.record(
            session,
            job_id=operation.job_id,
            at_ms=now,
            kind=f"{operation.kind}_{status}",
            message=f"{described(operation)}: {ending}",
            operation_id=operation.id,
            ending=ending,
        )


def end_with_job(session: Session, operation: Operation, why: Mapping[str, Any] | None, *, job_status: str) -> None:
    """Ends an operation in progress, as its job has ended.

    Args:
        session: The transaction.
        operation: The operation.
        why: Why the job has failed; None: it has ended as intended.
        job_status: The job's status from now on.
    """
    kind, done = operation.kind, operation.command_status is CommandStatus.COMPLETED
    if kind is OperationKind.CANCEL or (kind in STOPS and done and why is None):
        end(session, operation, OperationStatus.COMPLETED)
    elif kind is OperationKind.START and why is None:
        has_run = job_status == "FINISHED"
        end(session, operation, OperationStatus.COMPLETED if has_run else OperationStatus.CANCELLED)
    else:
        cause = why or failure("JOB_ENDED", f"the job is {job_status}")
        end(session, operation, OperationStatus.FAILED, cause)


def ended(phases: list[dict[str, Any]], at_ms: int) -> list[dict[str, Any]]:
    """Returns phases of which none goes on, and none waits."""
    lasting = ({name: value for name, value in phase.items() if name != "waits_for"} for phase in phases)
    return [
        {**phase, "ended_at_ms": at_ms if phase["ended_at_ms"] is None else phase["ended_at_ms"]} for phase in lasting
    ]


def described(operation: Operation) -> str:
    """Returns an operation in words, for events."""
    if operation.kind is OperationKind.RESCALE:
        return f"rescale from {operation.from_parallelism} to {operation.to_parallelism}"
    if not operation.kind.is_change:
        return operation.kind.words
    if not operation.kind.traits.may_change_program:
        return f"{operation.kind.words} of revision {operation.to_revision}"
    return f"{operation.kind.words} from revision {operation.from_revision} to {operation.to_revision}"
