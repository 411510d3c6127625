"""Requests of operations, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import revisions as stored_revisions
from keyscale.vocabulary import Approval, DriverEffect, JobStatus, OperationKind, RestoreMode, UpgradeMode

from ..errors import ApprovalRequiredError, ParallelismUnchangedError
from ..job_spec import changed, spec_of
from ..jobs.jobs import check_parallelism, require_job, store_restore
from ..jobs.restore_sources import Restorer, find_source
from ..jobs.schemas.job_spec import SpecificationChange
from ..lifecycle import requests
from . import changes, plans
from .operations import act_on, carry_out, is_known, planned
from .schemas.change import RollbackRequest, UpdateRequest
from .schemas.operation import RescaleRequest, StartRequest

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.models import Job, Operation

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..jobs.restore_sources import FoundSource
    from .schemas.operation import OperationAnswer, OperationRequest


def request(  # noqa: PLR0917 - the parts of a request
    context: Context,
    user: Principal,
    reference: str,
    kind: OperationKind,
    wanted: OperationRequest,
    if_match: str | None = None,
) -> OperationAnswer:
    """Requests an operation.

    Args:
        context: The control plane.
        user: The user.
        reference: The job.
        kind: The kind of the operation.
        wanted: Its arguments, in the form of its kind.
        if_match: The header of this name, for an upgrade: the ETag of the revision to change.

    Raises:
        JobNotFoundError: The job does not exist.
        JobStatusConflictError: The job's status does not allow the operation.
        OperationInProgressError: Another operation changes the job.
        OperationIdTakenError: The id belongs to another operation.
        KeyscaleError: As the kind of the operation.
    """
    match wanted:
        case StartRequest():
            return _start(context, user, reference, wanted)
        case RescaleRequest():
            return _rescale(context, user, reference, wanted)
        case UpdateRequest():
            return changes.update(context, user, reference, wanted, if_match)
        case RollbackRequest():
            return changes.roll_back(context, user, reference, wanted)

    def begin(session: Session, job: Job, operation_id: str) -> Operation:
        match kind.traits.effect:
            case DriverEffect.STOPS:
                return requests.stop(session, job, user, operation_id, kind)
            case DriverEffect.KILLS:
                return requests.cancel(session, job, user, operation_id)
            case DriverEffect.REPLACES:
                return _replace_driver(session, job, user, operation_id, kind)
            case _:
                return requests.snapshot(session, job, user, operation_id, kind)

    return carry_out(context, reference, kind, wanted, begin)


def approve(context: Context, user: Principal, operation_id: str) -> OperationAnswer:
    """Approves a change that waits, and begins it.

    Raises:
        OperationNotFoundError: No operation has this id.
        ApprovalRefusedError: The change does not wait, or the job has another revision now.
        OwnApprovalError: The user has requested the change.
        KeyscaleError: As the kind of the operation.
    """
    return act_on(context, operation_id, lambda session, job, found: changes.approve(session, job, user, found))


def _start(context: Context, user: Principal, reference: str, wanted: StartRequest) -> OperationAnswer:
    """Starts a job.

    Raises:
        ParallelismInvalidError: The job cannot have this parallelism.
        ApprovalRequiredError: The job's changes need an approval, and the start is no plain one.
        JobLimitError: The job would ask for more than the limits allow.
        RestoreSourceError: The job could not start from the snapshot in restore_from.
        StoreUnavailableError: The object store cannot be used; the job is unchanged.
    """
    with context.reads() as session:
        job, is_repeated = require_job(session, reference), is_known(session, wanted)
    source = None
    if not is_repeated:
        context.store.require_usable(job.store_url)
        source = find_source(context, user, wanted, Restorer.of(job))

    def begin(session: Session, job: Job, operation_id: str) -> Operation:
        if wanted.parallelism is not None:
            _start_at(context, session, user, job, wanted.parallelism)
        made = requests.start(
            session,
            job,
            user,
            operation_id,
            skip_lost_records=wanted.skip_lost_records,
            reset_time=wanted.reset_time,
        )
        if (reason := _why_approval(wanted, source)) and _needs_approvals(session, job):
            raise ApprovalRequiredError(reason)
        store_restore(session, job, wanted, source)
        return made

    return carry_out(context, reference, OperationKind.START, wanted, begin)


def _why_approval(wanted: StartRequest, source: FoundSource | None) -> str | None:
    """Returns why a start needs an approval.

    None for a plain start, which only runs the job.
    """
    if source is not None and source.restore.mode is RestoreMode.REWIND:
        return "a start from a chosen snapshot replaces the job's state"
    if wanted.allow_non_restored_state:
        return "a start with allow_non_restored_state may drop state"
    if wanted.skip_lost_records:
        return "a start with skip_lost_records leaves out records"
    return "a start with reset_time changes the job's time" if wanted.reset_time else None


def _needs_approvals(session: Session, job: Job) -> bool:
    return spec_of(stored_revisions.current(session, job)).approval is Approval.REQUIRED


def _start_at(context: Context, session: Session, user: Principal, job: Job, parallelism: int) -> None:
    """Gives a settled job a revision of another parallelism."""
    present = spec_of(stored_revisions.current(session, job))
    wanted = changed(present, {"parallelism": parallelism})
    if wanted == present:
        return
    if present.approval is Approval.REQUIRED:
        raise ApprovalRequiredError("a start at another parallelism changes the job")
    check_parallelism(parallelism, job.max_parallelism)
    context.settings.job_limits.check(parallelism, wanted.spark_conf)
    requests.select_revision(session, job, requests.revise(session, job, wanted, user))


def _rescale(context: Context, user: Principal, reference: str, wanted: RescaleRequest) -> OperationAnswer:
    """Changes a running job's parallelism.

    Raises:
        ParallelismInvalidError: The parallelism is out of range.
        ParallelismUnchangedError: The job has this parallelism.
    """
    if wanted.dry_run:
        change = SpecificationChange(spec={"parallelism": wanted.parallelism})
        return planned(user, OperationKind.RESCALE, plans.plan(context, user, reference, change))

    def begin(session: Session, job: Job, operation_id: str) -> Operation:
        return begin_rescale(context, session, job, user, operation_id, wanted.parallelism)

    return carry_out(context, reference, OperationKind.RESCALE, wanted, begin)


def begin_rescale(  # noqa: PLR0917 - the parts of a change
    context: Context,
    session: Session,
    job: Job,
    user: Principal,
    operation_id: str,
    parallelism: int,
    *,
    message: str | None = None,
) -> Operation:
    """Begins a rescale of a locked job, or requests its approval.

    Args:
        context: The control plane.
        session: The transaction.
        job: The job.
        user: Who rescales the job.
        operation_id: The id of the operation.
        parallelism: The wanted parallelism.
        message: The reason, for the revision.

    Raises:
        ParallelismInvalidError: The parallelism is out of range.
        ParallelismUnchangedError: The job has this parallelism.
        ApiError: The job cannot be changed now.
    """
    check_parallelism(parallelism, job.max_parallelism)
    context.settings.job_limits.check_parallelism(parallelism)
    present = spec_of(stored_revisions.current(session, job))
    requests.require_changeable(session, job, OperationKind.RESCALE, UpgradeMode.SAVEPOINT)
    if parallelism == present.parallelism:
        raise ParallelismUnchangedError(f"the job's parallelism is {present.parallelism}")
    revision = requests.revise(session, job, changed(present, {"parallelism": parallelism}), user, message)
    # A sleeping driver takes no savepoint; its last checkpoint has all state.
    mode = UpgradeMode.LAST_STATE if job.status is JobStatus.SLEEPING else UpgradeMode.SAVEPOINT
    change = requests.Change(OperationKind.RESCALE, revision, mode)
    return changes.request_change(session, job, user, operation_id, change)


def _replace_driver(session: Session, job: Job, user: Principal, operation_id: str, kind: OperationKind) -> Operation:
    """Replaces a job's driver by a new driver of the same revision."""
    # A job that keeps failing cannot take a savepoint.
    mode = UpgradeMode.LAST_STATE if changes.is_failing(session, job) else UpgradeMode.SAVEPOINT
    requests.require_changeable(session, job, kind, mode)
    change = requests.Change(kind, stored_revisions.current(session, job), mode)
    return requests.change(session, job, user, operation_id, change)
