"""Stores what users want of a job, and the commands to its driver. The reconciler and the driver then carry them out.

A command is stored before it is given and kept until its result is known. Its id is the id of the user's operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.api.errors import JobStatusConflictError, RescaleInProgressError, TooManyInFlightError
from keyscale.api.lifecycle.transitions import Action, enter, is_allowed, what_helps
from keyscale.clock import now_ms
from keyscale.db.models import Command, Rescale
from keyscale.db.repositories import attempts, commands, events, rescales
from keyscale.db.statuses import (
    AttemptStage,
    CommandKind,
    CommandStatus,
    DesiredState,
    JobStatus,
    RescalePhase,
    RescaleStatus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from keyscale.api.access.principal import Principal
    from keyscale.db.models import Job

SNAPSHOTS_MAX = 8
"""Checkpoints and savepoints of a job that may be asked for at once; its driver takes one after the other."""


def start(session: Session, job: Job, user: Principal, *, skip_lost_records: bool = False) -> None:
    """Stores that a settled job should run.

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
    job.skip_lost_records = skip_lost_records
    job.started_at_ms, job.ended_at_ms = now, None
    enter(job, JobStatus.SUBMITTING)
    message = "start was requested" + (", without the records that sources have lost" if skip_lost_records else "")
    events.record(session, job_id=job.id, at_ms=now, kind="JOB_STARTED", actor=user.name, message=message)


def stop(session: Session, job: Job, user: Principal, operation_id: str, *, drain: bool) -> Command:
    """Stores that a running job should take a savepoint and end.

    Raises:
        JobStatusConflictError: It does not run.
    """
    _require(Action.STOP, job)
    command = _new_command(
        session, job.id, _active_number(session, job), CommandKind.STOP_WITH_SAVEPOINT, operation_id, drain=drain
    )
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
    """Stores that a job should end now.

    Raises:
        JobStatusConflictError: It has ended already.
    """
    _require(Action.CANCEL, job)
    job.desired = DesiredState.CANCELLED
    enter(job, JobStatus.STOPPING)
    events.record(
        session, job_id=job.id, at_ms=now_ms(), kind="JOB_CANCELLED", actor=user.name, message="cancel was requested"
    )


def snapshot(session: Session, job: Job, user: Principal, operation_id: str, kind: CommandKind) -> Command:
    """Stores that a running job should take a checkpoint or savepoint and go on.

    Raises:
        TooManyInFlightError: As many as are allowed at once have no result yet.
        JobStatusConflictError: It does not run.
    """
    _require(Action.SAVEPOINT if kind is CommandKind.SAVEPOINT else Action.CHECKPOINT, job)
    if commands.count_pending(session, job.id) >= SNAPSHOTS_MAX:
        raise TooManyInFlightError(
            f"at most {SNAPSHOTS_MAX} checkpoints and savepoints of a job wait for their results"
        )
    command = _new_command(session, job.id, _active_number(session, job), kind, operation_id)
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
    """Stores that a running job should go on at another parallelism.

    Raises:
        RescaleInProgressError: It is being rescaled.
        JobStatusConflictError: It does not run.
    """
    if rescales.running(session, job.id) is not None:
        raise RescaleInProgressError(
            f"cannot rescale while the job is being rescaled: {what_helps(Action.RESCALE, job.status, job.name)}"
        )
    _require(Action.RESCALE, job)
    active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
    if active is None:
        raise JobStatusConflictError(
            f"the job has no driver at the moment: {what_helps(Action.RESCALE, JobStatus.RESTARTING, job.name)}"
        )
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
    """Refuses to delete a job that may still run.

    Raises:
        JobStatusConflictError: It is not settled.
    """
    _require(Action.DELETE, job)


def _require(action: Action, job: Job) -> None:
    if is_allowed(action, job.status):
        return
    helps = what_helps(action, job.status, job.name)
    if job.status is JobStatus.RESCALING and action is not Action.START:
        raise RescaleInProgressError(f"cannot {action} while the job is being rescaled: {helps}")
    raise JobStatusConflictError(f"cannot {action} while the job is {job.status}: {helps}")


def command_stop(session: Session, job_id: str, attempt: int, command_id: str, savepoint_id: str) -> Command:
    """Stores the command to one attempt to take a savepoint and end."""
    return _new_command(
        session, job_id, attempt, CommandKind.STOP_WITH_SAVEPOINT, command_id, savepoint_id=savepoint_id
    )


def settle_command(
    session: Session,
    command: Command,
    *,
    status: CommandStatus,
    location: str | None = None,
    checkpoint_id: int | None = None,
    failure: Mapping[str, Any] | None = None,
) -> None:
    """Stores the result of a command; the first result stays."""
    if command.status is not CommandStatus.IN_PROGRESS:
        return
    command.status, command.ended_at_ms = status, now_ms()
    command.location, command.checkpoint_id = location, checkpoint_id
    command.failure = dict(failure) if failure is not None else None
    result = "completed" if status is CommandStatus.COMPLETED else "failed"
    events.record(
        session,
        job_id=command.job_id,
        at_ms=command.ended_at_ms,
        kind=f"{command.kind}_{status}",
        actor=f"attempt {command.attempt}",
        message=f"{command.kind.replace('_', ' ').lower()} {result}",
        operation_id=command.id,
        location=location,
        failure_code=failure.get("code") if failure else None,
    )


def _active_number(session: Session, job: Job) -> int:
    active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
    return active.number if active else 0


def _new_command(
    session: Session,
    job_id: str,
    attempt: int,
    kind: CommandKind,
    command_id: str,
    *,
    savepoint_id: str | None = None,
    drain: bool = False,
) -> Command:
    """Stores a command. The savepoint that it takes, if any, has the command's id unless another one is given."""
    takes_savepoint = kind in {CommandKind.SAVEPOINT, CommandKind.STOP_WITH_SAVEPOINT}
    command = Command(
        id=command_id,
        job_id=job_id,
        attempt=attempt,
        kind=kind,
        savepoint_id=(savepoint_id or command_id) if takes_savepoint else None,
        drain=drain,
        status=CommandStatus.IN_PROGRESS,
        created_at_ms=now_ms(),
    )
    session.add(command)
    return command
