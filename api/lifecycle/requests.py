"""Requests of operations.

A request stores an operation; the reconciler and the driver carry it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from keyscale.clock import now_ms
from keyscale.db.models import Operation, Revision
from keyscale.db.repositories import attempts, events, operations, revisions
from keyscale.vocabulary import (
    AttemptStage,
    ChangePhase,
    CommandStatus,
    DesiredState,
    DriverState,
    JobStatus,
    OperationKind,
    OperationStatus,
    RescaleMode,
    UpgradeMode,
)

from ..errors import (
    ApprovalRefusedError,
    JobStatusConflictError,
    OperationInProgressError,
    OperationNotCancellableError,
    OwnApprovalError,
    TooManyInFlightError,
)
from ..job_spec import spec_of
from .downtime_breakdown import metrics_of_change
from .live_phases import why_not_live
from .operation_results import described, end
from .transitions import Action, enter, is_allowed, what_helps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from keyscale.db.models import Job
    from keyscale.jobs.protocol.specification import JobSpec

    from ..access.principal import Principal

SNAPSHOTS_MAX = 8
"""Maximum number of a job's pending checkpoints and savepoints; the driver takes them one after the other."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a job to a revision.

    Attributes:
        kind: A kind that replaces the driver.
        to: The revision.
        mode: How state is taken along.
        allow_non_restored_state: Whether state may be dropped that the revision's program does not have.
        rewind_to: Location of the earlier savepoint that the revision starts from; None: the present state.
        last_state_age_ms_max: The greatest age of the latest checkpoint that a change from the last state may take;
            None: any age.
    """

    kind: OperationKind
    to: Revision
    mode: UpgradeMode = UpgradeMode.SAVEPOINT
    allow_non_restored_state: bool = False
    rewind_to: str | None = None
    last_state_age_ms_max: int | None = None


def start(
    session: Session,
    job: Job,
    user: Principal,
    operation_id: str,
    *,
    skip_lost_records: bool = False,
    reset_time: bool = False,
) -> Operation:
    """Requests that a settled job runs.

    The start ends when the job has processed its first input. With `reset_time`, the job's time begins again, once.

    Raises:
        JobStatusConflictError: It is not settled.
    """
    _require(session, OperationKind.START, job)
    now = now_ms()
    job.desired = DesiredState.RUNNING
    job.failure = None
    job.consecutive_failures = job.next_start_at_ms = job.restarts = 0
    job.failures = None
    job.skip_lost_records = skip_lost_records
    job.time_reset_after = attempts.next_number(session, job.id) - 1 if reset_time else None
    job.started_at_ms, job.ended_at_ms = now, None
    enter(job, OperationKind.START.traits.status)
    message = "start was requested" + (", without the records that sources have lost" if skip_lost_records else "")
    message += ", with time that begins again" if reset_time else ""
    return _request(session, job, user, operation_id, OperationKind.START, message)


def stop(session: Session, job: Job, user: Principal, operation_id: str, kind: OperationKind) -> Operation:
    """Requests that a running job takes a savepoint and ends.

    Raises:
        JobStatusConflictError: It does not run.
    """
    _require(session, kind, job)
    _end_start(session, job)
    job.desired = DesiredState.STOPPED
    enter(job, kind.traits.status)
    return _request(
        session,
        job,
        user,
        operation_id,
        kind,
        old_attempt=_active_number(session, job),
        command_status=CommandStatus.IN_PROGRESS,
    )


def cancel(session: Session, job: Job, user: Principal, operation_id: str) -> Operation:
    """Requests that a job ends now.

    Raises:
        JobStatusConflictError: It has ended already.
    """
    _require(session, OperationKind.CANCEL, job)
    job.desired = DesiredState.CANCELLED
    enter(job, OperationKind.CANCEL.traits.status)
    return _request(session, job, user, operation_id, OperationKind.CANCEL)


def snapshot(session: Session, job: Job, user: Principal, operation_id: str, kind: OperationKind) -> Operation:
    """Requests a checkpoint or savepoint of a running job.

    Raises:
        TooManyInFlightError: The maximum number of requests is pending.
        JobStatusConflictError: The job does not run.
    """
    _require(session, kind, job)
    if operations.count_pending(session, job.id) >= SNAPSHOTS_MAX:
        raise TooManyInFlightError(
            f"at most {SNAPSHOTS_MAX} checkpoints and savepoints of a job wait for their results"
        )
    return _request(
        session,
        job,
        user,
        operation_id,
        kind,
        old_attempt=_active_number(session, job),
        command_status=CommandStatus.IN_PROGRESS,
    )


def revise(session: Session, job: Job, spec: JobSpec, user: Principal, message: str | None = None) -> Revision:
    """Stores a new revision of a job.

    It is not yet the job's revision.
    """
    revision = Revision(
        job_id=job.id,
        number=revisions.next_number(session, job.id),
        spec=spec.given(),
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
    _require(session, OperationKind.START, job)
    job.revision = revision.number


def adjust(session: Session, job: Job, revision: Revision, user: Principal) -> None:
    """Switches a job to a revision that needs no restart.

    Its driver follows the revision from now on.

    Raises:
        JobStatusConflictError: The job does not run.
        OperationInProgressError: The job is being changed.
    """
    _require(session, Action.ADJUST, job)
    before, job.revision = job.revision, revision.number
    active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
    if active is not None:
        active.revision = revision.number
        if active.driver_state != DriverState.SLEEPING or not spec_of(revision).autoscaler.lets_sleep:
            active.sleep_requested_at_ms = None  # a running job may have to wait longer now
    events.record(
        session,
        job_id=job.id,
        at_ms=now_ms(),
        kind="REVISION_FOLLOWED",
        actor=user.name,
        message=f"the job continues with revision {revision.number} instead of {before}, without a restart",
    )


def require_changeable(session: Session, job: Job, kind: OperationKind, mode: UpgradeMode) -> None:
    """Refuses a change of a job that cannot be changed now.

    Raises:
        OperationInProgressError: Another operation changes it.
        JobStatusConflictError: It does not run, or has no driver that could take a savepoint.
    """
    from_last_state = kind.traits.may_change_program and mode is UpgradeMode.LAST_STATE
    action = Action.UPGRADE_LAST_STATE if from_last_state else kind
    running = operations.running(session, job.id)
    if running is not None and running.kind.is_change:
        _refuse_during(action, job, running.id)
    _require(session, action, job)
    has_driver = attempts.of_stage(session, job.id, AttemptStage.ACTIVE) is not None
    if not has_driver and mode is not UpgradeMode.LAST_STATE:
        raise JobStatusConflictError(
            f"the job has no driver at the moment: {what_helps(action, JobStatus.RESTARTING, job.name)}"
        )


def change(
    session: Session,
    job: Job,
    user: Principal,
    operation_id: str,
    wanted: Change,
    *,
    approved: Operation | None = None,
) -> Operation:
    """Requests the change of a running job to another revision.

    Call `require_changeable` first. `approved` is the change's operation if it has waited for an approval.
    """
    _end_start(session, job)
    kind = wanted.kind
    active = attempts.latest(session, job.id)
    mode_of_rescale, not_live = (
        rescale_way(session, job, spec_of(wanted.to)) if kind is OperationKind.RESCALE else (None, None)
    )
    phase = ChangePhase.PREPARE if mode_of_rescale is RescaleMode.LIVE else ChangePhase.REQUESTED
    columns = _columns_of(session, job, wanted) | {
        "phase": phase,
        "phases": [{"phase": phase, "started_at_ms": now_ms(), "ended_at_ms": None}],
        "rescale_mode": mode_of_rescale,
        "not_live": not_live,
        "old_attempt": active.number if active else 0,
        "metrics_before": metrics_of_change(active.metrics) if active else None,
    }
    enter(job, kind.traits.status)
    if approved is not None:
        for name, value in (columns | {"status": OperationStatus.IN_PROGRESS}).items():
            setattr(approved, name, value)
        return approved
    return _request(session, job, user, operation_id, kind, **columns)


def rescale_way(session: Session, job: Job, wanted: JobSpec) -> tuple[RescaleMode, Mapping[str, Any] | None]:
    """Returns a rescale's way, and the reason for a new driver."""
    active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
    state, slots = (None, None) if active is None else (active.driver_state, active.slots)
    not_live = why_not_live(wanted.rescale_mode, state, slots, wanted.parallelism)
    return (RescaleMode.LIVE if not_live is None else RescaleMode.STANDBY), not_live


def await_approval(session: Session, job: Job, user: Principal, operation_id: str, wanted: Change) -> Operation:
    """Stores a change that waits for the approval of another user.

    Raises:
        OperationInProgressError: Another change of the job waits.
    """
    other = operations.waiting(session, job.id)
    if other is not None:
        helps = f"approve it or cancel it first: `./keyscale operations cancel {other.id}`"
        raise OperationInProgressError(f"the {described(other)} waits for an approval; {helps}", other.id)
    operation = _request(
        session,
        job,
        user,
        operation_id,
        wanted.kind,
        f"a change to revision {wanted.to.number} waits for an approval",
        event="APPROVAL_REQUESTED",
        **_columns_of(session, job, wanted),
    )
    operation.status = OperationStatus.PENDING_APPROVAL
    return operation


def _columns_of(session: Session, job: Job, wanted: Change) -> dict[str, Any]:
    """Returns the columns of an operation that state its change."""
    return {
        "from_revision": job.revision,
        "to_revision": wanted.to.number,
        "from_parallelism": revisions.current(session, job).spec["parallelism"],
        "to_parallelism": wanted.to.spec["parallelism"],
        "upgrade_mode": wanted.mode,
        "allow_non_restored_state": wanted.allow_non_restored_state,
        "rewind_to": wanted.rewind_to,
        "last_state_age_ms_max": wanted.last_state_age_ms_max,
    }


def approve(session: Session, job: Job, user: Principal, operation: Operation) -> None:
    """Stores who approves a change that waits.

    Raises:
        ApprovalRefusedError: The change does not wait, or the job has another revision now.
        OwnApprovalError: The user has requested the change.
    """
    if operation.status is not OperationStatus.PENDING_APPROVAL:
        raise ApprovalRefusedError(f"the operation is {operation.status}")
    request = events.first_of_operation(session, job.id, operation.id)
    if operation.requested_by == user.name or (request is not None and request.actor_id == user.id):
        raise OwnApprovalError(f"{user.name} has requested the change")
    if operation.from_revision != job.revision:
        raise ApprovalRefusedError(f"the job has revision {job.revision} now, not {operation.from_revision}")
    operation.approved_by, operation.approved_at_ms = user.name, now_ms()
    events.record(
        session,
        job_id=job.id,
        at_ms=operation.approved_at_ms,
        kind="CHANGE_APPROVED",
        actor=user.name,
        message=f"{described(operation)} was approved",
        operation_id=operation.id,
    )


def record_done(
    session: Session,
    job: Job,
    user: Principal,
    operation_id: str,
    *,
    kind: OperationKind,
    before: Revision,
    to: Revision,
    approved: Operation | None = None,
) -> Operation:
    """Stores a change that is complete at once."""
    if approved is not None:
        approved.status, approved.ended_at_ms = OperationStatus.COMPLETED, now_ms()
        return approved
    operation = Operation(
        id=operation_id,
        job_id=job.id,
        kind=kind,
        status=OperationStatus.COMPLETED,
        requested_at_ms=now_ms(),
        requested_by=user.name,
        ended_at_ms=now_ms(),
        from_revision=before.number,
        to_revision=to.number,
        from_parallelism=before.spec["parallelism"],
        to_parallelism=to.spec["parallelism"],
    )
    session.add(operation)
    return operation


def cancel_operation(session: Session, operation: Operation, user: Principal) -> None:
    """Requests that an operation is cancelled; a second time changes nothing.

    Raises:
        OperationNotCancellableError: It is over, it goes back already, or its kind cannot be cancelled.
    """
    if operation.cancel_requested_at_ms is not None and operation.status is OperationStatus.IN_PROGRESS:
        return
    if not operation.kind.is_change:
        raise OperationNotCancellableError(f"a {operation.kind} cannot be cancelled")
    if operation.status is OperationStatus.PENDING_APPROVAL:
        end(session, operation, OperationStatus.CANCELLED)
        return
    if not is_cancellable(operation):
        goes_back = operation.status is OperationStatus.IN_PROGRESS
        raise OperationNotCancellableError(
            f"the {described(operation)} {'goes back already' if goes_back else f'is {operation.status}'}"
        )
    operation.cancel_requested_at_ms = now_ms()
    events.record(
        session,
        job_id=operation.job_id,
        at_ms=operation.cancel_requested_at_ms,
        kind=f"{operation.kind}_CANCEL_REQUESTED",
        actor=user.name,
        message=f"cancel of the {described(operation)} was requested",
        operation_id=operation.id,
    )


def is_cancellable(operation: Operation) -> bool:
    """Returns whether an operation may still be cancelled.

    It must be a change that waits for an approval, or that is in progress and does not roll back.
    """
    if operation.status is OperationStatus.PENDING_APPROVAL:
        return True
    is_on = operation.status is OperationStatus.IN_PROGRESS and operation.phase is not ChangePhase.ROLL_BACK
    return is_on and operation.kind.is_change


def require_deletable(session: Session, job: Job) -> None:
    """Refuses to delete a job that may still run.

    Raises:
        JobStatusConflictError: It is not settled.
    """
    _require(session, Action.DELETE, job)


def require_state_changeable(session: Session, job: Job) -> None:
    """Refuses to change the state of a job that may still run.

    Raises:
        JobStatusConflictError: It is not settled.
    """
    _require(session, Action.CHANGE_STATE, job)


def _require(session: Session, action: OperationKind | Action, job: Job) -> None:
    if is_allowed(action, job.status):
        return
    if job.status in {JobStatus.RESCALING, JobStatus.UPGRADING} and action is not OperationKind.START:
        running = operations.running(session, job.id)
        _refuse_during(action, job, None if running is None else running.id)
    helps = what_helps(action, job.status, job.name)
    raise JobStatusConflictError(f"cannot {_words_of(action)} while the job is {job.status}: {helps}")


def _refuse_during(action: OperationKind | Action, job: Job, operation_id: str | None) -> NoReturn:
    helps = what_helps(action, job.status, job.name)
    named = "" if operation_id is None else f" by {operation_id}"
    changed = "rescaled" if job.status is JobStatus.RESCALING else "upgraded"
    raise OperationInProgressError(
        f"cannot {_words_of(action)} while the job is being {changed}{named}: {helps}", operation_id
    )


def _words_of(action: OperationKind | Action) -> str:
    return action.refusal if isinstance(action, OperationKind) else action


def _end_start(session: Session, job: Job) -> None:
    """Ends a start in progress, as another operation follows it."""
    running = operations.running(session, job.id)
    if running is not None and running.kind is OperationKind.START:
        is_up = job.status in {JobStatus.RUNNING, JobStatus.SLEEPING}
        end(session, running, OperationStatus.COMPLETED if is_up else OperationStatus.CANCELLED)
        session.flush()  # first, as a job has one such operation in progress


def _active_number(session: Session, job: Job) -> int:
    active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
    return active.number if active else 0


def _request(  # noqa: PLR0917 - the parts of a request
    session: Session,
    job: Job,
    user: Principal,
    operation_id: str,
    kind: OperationKind,
    message: str | None = None,
    *,
    event: str | None = None,
    **columns: Any,
) -> Operation:
    """Stores an operation and its event.

    By default, the message names the operation, and the event is the kind's own.
    """
    operation = Operation(
        id=operation_id,
        job_id=job.id,
        kind=kind,
        status=OperationStatus.IN_PROGRESS,
        requested_at_ms=now_ms(),
        requested_by=user.name,
        **columns,
    )
    session.add(operation)
    events.record(
        session,
        job_id=job.id,
        at_ms=operation.requested_at_ms,
        kind=event or kind.request_event,
        actor=user.name,
        message=message or f"{described(operation)} was requested",
        operation_id=operation_id,
    )
    return operation
