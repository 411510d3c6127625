"""Stores users' requests for a job, and the commands to its driver.

The reconciler and the driver then carry them out. A command is stored before it is sent and kept until its result is
known. Its id is the id of the user's operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from keyscale.clock import now_ms
from keyscale.db.models import Change, Command, Revision
from keyscale.db.repositories import attempts, changes, commands, events, revisions
from keyscale.db.statuses import (
    AttemptStage,
    ChangeKind,
    ChangePhase,
    ChangeStatus,
    CommandKind,
    CommandStatus,
    DesiredState,
    JobStatus,
    UpgradeMode,
)

from ..errors import (
    ChangeNotCancellableError,
    JobStatusConflictError,
    RescaleInProgressError,
    TooManyInFlightError,
    UpgradeInProgressError,
)
from .ledger import figures_of_change
from .transitions import Action, enter, is_allowed, what_helps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from keyscale.db.models import Job

    from ..access.principal import Principal
    from ..specification import Specification

SNAPSHOTS_MAX = 8
"""Maximum number of a job's pending checkpoints and savepoints; the driver takes them one after the other."""


def start(
    session: Session, job: Job, user: Principal, *, skip_lost_records: bool = False, reset_time: bool = False
) -> None:
    """Stores that a settled job should run.

    With `reset_time`, its time begins again, once.

    Raises:
        JobStatusConflictError: It is not settled.
    """
    _require(session, Action.START, job)
    now = now_ms()
    job.desired = DesiredState.RUNNING
    job.failure = None
    job.stop_operation_id = None
    job.consecutive_failures = job.next_start_at_ms = job.restarts = 0
    job.failures = None
    job.skip_lost_records = skip_lost_records
    job.time_reset_after = attempts.next_number(session, job.id) - 1 if reset_time else None
    job.started_at_ms, job.ended_at_ms = now, None
    enter(job, JobStatus.SUBMITTING)
    message = "start was requested" + (", without the records that sources have lost" if skip_lost_records else "")
    message += ", with time that begins again" if reset_time else ""
    events.record(session, job_id=job.id, at_ms=now, kind="JOB_STARTED", actor=user.name, message=message)


def stop(session: Session, job: Job, user: Principal, operation_id: str, *, drain: bool) -> Command:
    """Stores that a running job should take a savepoint and end.

    Raises:
        JobStatusConflictError: It does not run.
    """
    _require(session, Action.STOP, job)
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
    _require(session, Action.CANCEL, job)
    job.desired = DesiredState.CANCELLED
    enter(job, JobStatus.STOPPING)
    events.record(
        session, job_id=job.id, at_ms=now_ms(), kind="JOB_CANCELLED", actor=user.name, message="cancel was requested"
    )


def snapshot(session: Session, job: Job, user: Principal, operation_id: str, kind: CommandKind) -> Command:
    """Requests a checkpoint or savepoint of a running job.

    Raises:
        TooManyInFlightError: The maximum number of requests is pending.
        JobStatusConflictError: The job does not run.
    """
    _require(session, Action.SAVEPOINT if kind is CommandKind.SAVEPOINT else Action.CHECKPOINT, job)
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


def revise(
    session: Session, job: Job, specification: Specification, user: Principal, message: str | None = None
) -> Revision:
    """Stores a new revision of a job.

    It is not yet the job's revision.
    """
    revision = Revision(
        job_id=job.id,
        number=revisions.next_number(session, job.id),
        **specification.columns(),
        created_at_ms=now_ms(),
        created_by=user.name,
        message=message,
    )
    session.add(revision)
    session.flush()
    events.record(
        session,
        job_id=job.id,
        at_ms=revision.created_at_ms,
        kind="REVISION_CREATED",
        actor=user.name,
        message=f"revision {revision.number}" + (f": {message}" if message else ""),
    )
    return revision


def select_revision(session: Session, job: Job, revision: Revision) -> None:
    """Stores that a settled job starts with a revision.

    Raises:
        JobStatusConflictError: It is not settled.
    """
    _require(session, Action.START, job)
    job.revision = revision.number


def adjust(session: Session, job: Job, revision: Revision, user: Principal) -> None:
    """Switches a job to a revision that needs no restart.

    Its driver follows the revision from now on.

    Raises:
        JobStatusConflictError: The job does not run.
        RescaleInProgressError, UpgradeInProgressError: The job is being changed.
    """
    _require(session, Action.ADJUST, job)
    before, job.revision = job.revision, revision.number
    active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
    if active is not None:
        active.revision = revision.number
    events.record(
        session,
        job_id=job.id,
        at_ms=now_ms(),
        kind="REVISION_FOLLOWED",
        actor=user.name,
        message=f"the job continues with revision {revision.number} instead of {before}, without a restart",
    )


def require_changeable(session: Session, job: Job, kind: ChangeKind, mode: UpgradeMode) -> None:
    """Refuses a change of a job that cannot be changed now.

    Raises:
        RescaleInProgressError: It is being rescaled.
        UpgradeInProgressError: It is being upgraded.
        JobStatusConflictError: It does not run, or has no driver that could take a savepoint.
    """
    action = _action_of(kind, mode)
    if (running := changes.running(session, job.id)) is not None:
        _refuse_during_change(action, job, running.id)
    _require(session, action, job)
    has_driver = attempts.of_stage(session, job.id, AttemptStage.ACTIVE) is not None
    if not has_driver and mode is not UpgradeMode.LAST_STATE:
        raise JobStatusConflictError(
            f"the job has no driver at the moment: {what_helps(action, JobStatus.RESTARTING, job.name)}"
        )


def _action_of(kind: ChangeKind, mode: UpgradeMode) -> Action:
    if kind is ChangeKind.RESCALE:
        return Action.RESCALE
    return Action.UPGRADE_LAST_STATE if mode is UpgradeMode.LAST_STATE else Action.UPGRADE


def change(
    session: Session,
    job: Job,
    user: Principal,
    change_id: str,
    to: Revision,
    *,
    kind: ChangeKind,
    mode: UpgradeMode = UpgradeMode.SAVEPOINT,
    allow_non_restored_state: bool = False,
    rewind_to: str | None = None,
) -> Change:
    """Requests the change of a running job to another revision.

    Call `require_changeable` first.
    """
    active = attempts.latest(session, job.id)
    now = now_ms()
    wanted = Change(
        id=change_id,
        job_id=job.id,
        kind=kind,
        status=ChangeStatus.IN_PROGRESS,
        phase=ChangePhase.REQUESTED,
        phases=[{"phase": ChangePhase.REQUESTED, "started_at_ms": now, "ended_at_ms": None}],
        from_revision=job.revision,
        to_revision=to.number,
        from_parallelism=revisions.current(session, job).parallelism,
        to_parallelism=to.parallelism,
        upgrade_mode=mode,
        allow_non_restored_state=allow_non_restored_state,
        rewind_to=rewind_to,
        old_attempt=active.number if active else 0,
        figures_before=figures_of_change(active.metrics) if active else None,
        requested_at_ms=now,
    )
    session.add(wanted)
    enter(job, JobStatus.RESCALING if kind is ChangeKind.RESCALE else JobStatus.UPGRADING)
    events.record(
        session,
        job_id=job.id,
        at_ms=now,
        kind=f"{kind}_REQUESTED",
        actor=user.name,
        message=f"{described(wanted)} was requested",
        change_id=change_id,
    )
    return wanted


def cancel_change(session: Session, job: Job, change: Change, user: Principal) -> None:
    """Stores that a change should be cancelled; a second time changes nothing.

    Raises:
        ChangeNotCancellableError: It is over, or the job goes back to its old revision already.
    """
    if change.cancel_requested_at_ms is not None and change.status is ChangeStatus.IN_PROGRESS:
        return
    if not is_cancellable(change):
        so_far = "goes back already" if change.status is ChangeStatus.IN_PROGRESS else f"is {change.status}"
        raise ChangeNotCancellableError(f"the {described(change)} {so_far}")
    change.cancel_requested_at_ms = now_ms()
    events.record(
        session,
        job_id=job.id,
        at_ms=change.cancel_requested_at_ms,
        kind=f"{change.kind}_CANCELLED",
        actor=user.name,
        message=f"cancel of the {described(change)} was requested",
        change_id=change.id,
    )


def is_cancellable(change: Change) -> bool:
    """Returns whether a change may still be cancelled.

    It must be in progress and not rolling back.
    """
    return change.status is ChangeStatus.IN_PROGRESS and change.phase is not ChangePhase.ROLL_BACK


def described(change: Change) -> str:
    """Returns a change in words, for events."""
    if change.kind is ChangeKind.RESCALE:
        return f"rescale from {change.from_parallelism} to {change.to_parallelism}"
    return f"{change.kind.lower()} from revision {change.from_revision} to {change.to_revision}"


def require_deletable(session: Session, job: Job) -> None:
    """Refuses to delete a job that may still run.

    Raises:
        JobStatusConflictError: It is not settled.
    """
    _require(session, Action.DELETE, job)


def _require(session: Session, action: Action, job: Job) -> None:
    if is_allowed(action, job.status):
        return
    if job.status in {JobStatus.RESCALING, JobStatus.UPGRADING} and action is not Action.START:
        running = changes.running(session, job.id)
        _refuse_during_change(action, job, None if running is None else running.id)
    helps = what_helps(action, job.status, job.name)
    raise JobStatusConflictError(f"cannot {action} while the job is {job.status}: {helps}")


def _refuse_during_change(action: Action, job: Job, change_id: str | None) -> NoReturn:
    helps = what_helps(action, job.status, job.name)
    named = "" if change_id is None else f" by {change_id}"
    if job.status is JobStatus.UPGRADING:
        raise UpgradeInProgressError(f"cannot {action} while the job is being upgraded{named}: {helps}", change_id)
    raise RescaleInProgressError(f"cannot {action} while the job is being rescaled{named}: {helps}", change_id)


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
    """Stores a command.

    Its savepoint, if any, has the command's id by default.
    """
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
