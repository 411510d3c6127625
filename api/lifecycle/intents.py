"""Stores what users want of a job. The reconciler then makes it so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.clock import now_ms
from api.errors import ApiError, JobStatusConflictError, RescaleInProgressError
from api.lifecycle.states import Action, is_allowed, may_follow
from db.models import Command, Rescale
from db.repositories import attempts, events, rescales
from db.statuses import (
    AttemptStage,
    CommandKind,
    CommandStatus,
    DesiredState,
    JobStatus,
    RescalePhase,
    RescaleStatus,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from api.security import Principal
    from db.models import Job


class TransitionError(ApiError):
    """A status was to follow another that it cannot follow: a defect."""

    code = "JOB_TRANSITION_INVALID"
    title = "A job was about to enter a status that cannot follow its present one"


def enter(job: Job, status: JobStatus) -> None:
    """Sets a job's status.

    Raises:
        TransitionError: The status cannot follow the present one.
    """
    if not may_follow(job.status, status):
        raise TransitionError(f"{status} cannot follow {job.status}")
    job.status = status


def start(session: Session, job: Job, user: Principal) -> None:
    """Wants a settled job to run.

    Raises:
        JobStatusConflictError: It is not settled.
    """
    _require(Action.START, job)
    now = now_ms()
    job.desired = DesiredState.RUNNING
    job.failure = None
    job.stop_operation_id = None
    job.consecutive_failures = job.next_start_at_ms = job.restarts = 0
    job.failures = None
    job.started_at_ms, job.ended_at_ms = now, None
    enter(job, JobStatus.SUBMITTING)
    events.record(session, job_id=job.id, at_ms=now, kind="JOB_STARTED", actor=user.name, message="start was requested")


def stop(session: Session, job: Job, user: Principal, operation_id: str, *, drain: bool) -> Command:
    """Wants a running job to take a savepoint and end.

    Raises:
        JobStatusConflictError: It does not run.
    """
    _require(Action.STOP, job)
    command = _new_command(session, job, CommandKind.STOP_WITH_SAVEPOINT, operation_id)
    command.savepoint_id, command.drain = operation_id, drain
    job.desired, job.stop_operation_id = DesiredState.STOPPED, operation_id
    enter(job, JobStatus.SAVEPOINTING)
    events.record(
        session,
        job_id=job.id,
        at_ms=command.created_at_ms,
        kind="STOP_REQUESTED",
        actor=user.name,
        message="stop with a savepoint was requested" + (", after all input" if drain else ""),
        operation_id=operation_id,
    )
    return command


def cancel(session: Session, job: Job, user: Principal) -> None:
    """Wants a job to end now.

    Raises:
        JobStatusConflictError: It has ended.
    """
    _require(Action.CANCEL, job)
    job.desired = DesiredState.CANCELLED
    enter(job, JobStatus.STOPPING)
    events.record(
        session, job_id=job.id, at_ms=now_ms(), kind="JOB_CANCELLED", actor=user.name, message="cancel was requested"
    )


def snapshot(session: Session, job: Job, user: Principal, operation_id: str, kind: CommandKind) -> Command:
    """Wants a running job to take a checkpoint or savepoint and go on.

    Raises:
        JobStatusConflictError: It does not run.
    """
    _require(Action.SAVEPOINT if kind is CommandKind.SAVEPOINT else Action.CHECKPOINT, job)
    command = _new_command(session, job, kind, operation_id)
    if kind is CommandKind.SAVEPOINT:
        command.savepoint_id = operation_id
    events.record(
        session,
        job_id=job.id,
        at_ms=command.created_at_ms,
        kind=f"{kind}_REQUESTED",
        actor=user.name,
        message=f"a {kind.lower()} was requested",
        operation_id=operation_id,
    )
    return command


def rescale(session: Session, job: Job, user: Principal, rescale_id: str, parallelism: int) -> Rescale:
    """Wants a running job to go on at another parallelism.

    Raises:
        RescaleInProgressError: It is being rescaled.
        JobStatusConflictError: It does not run.
    """
    if rescales.running(session, job.id) is not None:
        raise RescaleInProgressError("wait for the running rescale to end")
    _require(Action.RESCALE, job)
    active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
    if active is None:
        raise JobStatusConflictError("the job has no driver at this moment; it is being restarted")
    now = now_ms()
    wanted = Rescale(
        id=rescale_id,
        job_id=job.id,
        status=RescaleStatus.IN_PROGRESS,
        phase=RescalePhase.REQUESTED,
        phases=[{"phase": RescalePhase.REQUESTED, "started_at_ms": now, "ended_at_ms": None}],
        from_parallelism=job.parallelism,
        to_parallelism=parallelism,
        old_attempt=active.number,
        requested_at_ms=now,
    )
    session.add(wanted)
    enter(job, JobStatus.RESCALING)
    events.record(
        session,
        job_id=job.id,
        at_ms=now,
        kind="RESCALE_REQUESTED",
        actor=user.name,
        message=f"rescale from {job.parallelism} to {parallelism} was requested",
        rescale_id=rescale_id,
    )
    return wanted


def require_deletable(job: Job) -> None:
    """Refuses to delete a job of which something may run.

    Raises:
        JobStatusConflictError: It is not settled.
    """
    _require(Action.DELETE, job)


def _require(action: Action, job: Job) -> None:
    if is_allowed(action, job.status):
        return
    if job.status is JobStatus.RESCALING and action is not Action.START:
        raise RescaleInProgressError(f"cannot {action} while the job is being rescaled")
    raise JobStatusConflictError(f"cannot {action} while the job is {job.status}")


def _new_command(session: Session, job: Job, kind: CommandKind, operation_id: str) -> Command:
    active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
    command = Command(
        id=operation_id,
        job_id=job.id,
        attempt=active.number if active else 0,
        kind=kind,
        drain=False,
        status=CommandStatus.IN_PROGRESS,
        created_at_ms=now_ms(),
    )
    session.add(command)
    return command
