"""Updates of a job's specification, and returns to earlier revisions."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import attempts, operations, revisions
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.jobs.protocol.specification import differences
from keyscale.units import duration_text
from keyscale.vocabulary import SETTLED, Approval, AttemptStage, JobStatus, OperationKind, RestoreMode, UpgradeMode

from ..errors import (
    LastStateTooOldError,
    OutputWithdrawnError,
    RevisionConflictError,
    RevisionRequiredError,
    RevisionWithoutSavepointError,
)
from ..health.faults import unsettled_failure
from ..job_spec import changed, spec_of
from ..jobs.jobs import check_specification, require_job, require_program
from ..lifecycle import requests
from ..lifecycle.job_transaction import JobTransaction
from ..lifecycle.requests import Change
from ..lifecycle.restoring import Restore
from ..secret_labels.secret_labels import require_covered
from . import plans
from .operations import carry_out, is_known, planned
from .plans import require_revision

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from keyscale.db.models import Job, Operation
    from keyscale.jobs.protocol.specification import JobSpec

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from .schemas.change import RollbackRequest, UpdateRequest
    from .schemas.operation import OperationAnswer

_ETAG = re.compile(r'(W/)?"(?P<revision>[0-9]{1,18})"|^\s*(?P<bare>[0-9]{1,18})\s*$')
"""An ETag of a revision; a plain number is also accepted."""


def update(
    context: Context, user: Principal, reference: str, request: UpdateRequest, if_match: str | None
) -> OperationAnswer:
    """Changes a job's specification.

    A running job continues with the new revision, a settled job starts with it.

    The same id again is the same operation. A change without an effect makes no revision.

    Args:
        context: The control plane.
        user: The user.
        reference: The job.
        request: The change.
        if_match: The header of this name: the ETag of the revision to change.

    Raises:
        JobNotFoundError: The job does not exist.
        RevisionRequiredError: The request does not name its revision.
        RevisionConflictError: The job has a newer revision.
        JobStatusConflictError: The job's status does not allow a change.
        OperationInProgressError: Another operation changes the job.
        LastStateTooOldError: Its latest checkpoint is older than the request allows.
        OperationIdTakenError: The id belongs to another operation.
        ChangeIncompatibleError: The running job could not take over its state.
        KeyscaleError: As when a change is planned.
    """
    if request.dry_run:
        return planned(user, OperationKind.UPGRADE, plans.plan(context, user, reference, request))
    given = request.spec
    if request.upgrade_mode is not UpgradeMode.STATELESS:
        _plan_first(context, user, reference, request, lambda present: changed(present, given), if_match)

    def begin(session: Session, job: Job, operation_id: str) -> Operation:
        _require_match(job, if_match)
        before = revisions.current(session, job)
        present = spec_of(before)
        wanted, mode = changed(present, given), request.upgrade_mode
        kind = _kind_of(present, wanted, mode)
        if wanted == present:
            return requests.record_done(session, job, user, operation_id, kind=kind, before=before, to=before)
        check_specification(context, wanted)
        if (wanted.artifact_id, wanted.libraries) != (present.artifact_id, present.libraries):
            require_program(context, session, user, wanted)
        require_covered(session, user, present, wanted)
        revision = requests.revise(session, job, wanted, user, request.message)
        change = Change(
            kind,
            revision,
            mode,
            request.allow_non_restored_state,
            last_state_age_ms_max=request.last_state_age_ms_max,
        )
        return request_change(session, job, user, operation_id, change)

    return carry_out(context, reference, OperationKind.UPGRADE, request, begin)


def _kind_of(present: JobSpec, wanted: JobSpec, mode: UpgradeMode) -> OperationKind:
    """Returns the kind of a change.

    A change of the parallelism alone is a rescale.
    """
    is_other = wanted.parallelism != present.parallelism
    only_parallelism = is_other and present.model_copy(update={"parallelism": wanted.parallelism}) == wanted
    return OperationKind.RESCALE if only_parallelism and mode is UpgradeMode.SAVEPOINT else OperationKind.UPGRADE


def roll_back(context: Context, user: Principal, reference: str, request: RollbackRequest) -> OperationAnswer:
    """Takes a job back to an earlier revision.

    A running job first takes a savepoint of its current state.

    A job that keeps failing cannot take a savepoint; it rolls back from its latest checkpoint and its log.

    Raises:
        JobNotFoundError: The job does not exist.
        RevisionNotFoundError: The job has no such revision.
        RevisionWithoutSavepointError: The revision has no savepoint.
        OutputWithdrawnError: The job's sinks have taken output of that savepoint back.
        JobStatusConflictError: The job's status does not allow a change.
        OperationInProgressError: Another operation changes the job.
        OperationIdTakenError: The id belongs to another operation.
        ChangeIncompatibleError: The running job could not take over its current state.
        KeyscaleError: As when a change is planned.
    """
    kind = OperationKind.ROLLBACK
    if request.dry_run:
        return planned(user, kind, plans.plan_return(context, user, reference, request.revision))
    if request.state == "CURRENT":
        with context.reads() as session:
            wanted = spec_of(require_revision(session, require_job(session, reference), request.revision))
        _plan_first(context, user, reference, request, lambda _: wanted)
    else:
        _require_output(context, reference, request)

    def begin(session: Session, job: Job, operation_id: str) -> Operation:
        revision = require_revision(session, job, request.revision)
        returned = spec_of(revision)
        check_specification(context, returned)
        require_covered(session, user, spec_of(revisions.current(session, job)), returned)
        rewind_to = None
        if request.state == "SAVEPOINT":
            rewind_to = operations.last_savepoint_of(session, job.id, revision.number)
            if rewind_to is None:
                raise RevisionWithoutSavepointError(f"revision {revision.number} has no savepoint")
        allows = request.allow_non_restored_state
        change = Change(kind, revision, allow_non_restored_state=allows, rewind_to=rewind_to)
        return request_change(session, job, user, operation_id, change)

    return carry_out(context, reference, kind, request, begin)


def request_change(session: Session, job: Job, user: Principal, operation_id: str, change: Change) -> Operation:
    """Begins a change, or stores that the change waits for an approval.

    Raises:
        LastStateTooOldError: The latest checkpoint is older than the change allows.
        ApiError: The job's status, or another operation, does not allow the change.
    """
    _require_young(session, job, change)
    if spec_of(revisions.current(session, job)).approval is Approval.NONE:
        return _begin(session, job, user, operation_id, change)
    return requests.await_approval(session, job, user, operation_id, change)


def approve(session: Session, job: Job, user: Principal, operation: Operation) -> None:
    """Approves a change that waits, and begins it.

    A second approval by the same user changes nothing.

    Raises:
        ApprovalRefusedError: The change does not wait, or the job has another revision now.
        OwnApprovalError: The user has requested the change.
        ApiError: As when the change is requested.
    """
    if operation.approved_by == user.name:
        return
    requests.approve(session, job, user, operation)
    change = Change(
        operation.kind,
        require_revision(session, job, operation.to_revision or 0),
        operation.upgrade_mode or UpgradeMode.SAVEPOINT,
        operation.allow_non_restored_state,
        operation.rewind_to,
        operation.last_state_age_ms_max,
    )
    _require_young(session, job, change)
    _begin(session, job, user, operation.id, change, approved=operation)


def _begin(  # noqa: PLR0917 - the parts of a change
    session: Session,
    job: Job,
    user: Principal,
    operation_id: str,
    change: Change,
    approved: Operation | None = None,
) -> Operation:
    """Begins a change.

    A change of a settled job, or of settings that the driver follows, is complete at once.
    """
    kind, to, mode = change.kind, change.to, change.mode
    before = revisions.current(session, job)
    is_plain = mode is UpgradeMode.SAVEPOINT and change.rewind_to is None
    if job.status in SETTLED:
        _change_settled(session, job, change)
    elif is_plain and _is_followed(spec_of(before), spec_of(to)):
        requests.adjust(session, job, to, user)
    else:
        if mode is UpgradeMode.SAVEPOINT and kind is not OperationKind.RESCALE and is_failing(session, job):
            change = replace(change, mode=UpgradeMode.LAST_STATE)  # a job that keeps failing cannot take a savepoint
        requests.require_changeable(session, job, kind, change.mode)
        return requests.change(session, job, user, operation_id, change, approved=approved)
    return requests.record_done(session, job, user, operation_id, kind=kind, before=before, to=to, approved=approved)


def _plan_first(  # noqa: PLR0917 - the parts of a change
    context: Context,
    user: Principal,
    reference: str,
    request: UpdateRequest | RollbackRequest,
    change: Callable[[JobSpec], JobSpec],
    if_match: str | None = "*",
) -> None:
    """Refuses a change under which a running job would lose its state.

    The check precedes the stop. Loading a program takes seconds: no transaction is held meanwhile, and the caller
    checks everything again.
    """
    if not request.plan_first:
        return
    with context.reads() as session:
        job = require_job(session, reference)
        if job.status not in {JobStatus.RUNNING, JobStatus.SLEEPING, JobStatus.RESTARTING} or is_known(
            session, request
        ):
            return
        _require_match(job, if_match)
        wanted = change(spec_of(revisions.current(session, job)))
    allows = request.allow_non_restored_state
    plans.require_takeover(context, user, reference, wanted, allow_non_restored_state=allows)


def _require_output(context: Context, reference: str, request: RollbackRequest) -> None:
    """Refuses a savepoint of a history that the job has left.

    Raises:
        OutputWithdrawnError: The job's sinks have taken output of the savepoint back.
        StoreUnavailableError: The store does not answer.
        PlanTimeoutError: The savepoint was not read in time.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        store_url, location = job.store_url, operations.last_savepoint_of(session, job.id, request.revision)
        if location is None or is_known(session, request):
            return
    if not context.store.keeps_output(store_url, location, limit_ms=context.settings.plan_timeout_ms):
        raise OutputWithdrawnError(f"{location}: the job went back behind it")


def _require_match(job: Job, if_match: str | None) -> None:
    if if_match is None:
        raise RevisionRequiredError("the header If-Match is missing")
    if if_match.strip() == "*":
        return
    named = {int(found["revision"] or found["bare"]) for found in _ETAG.finditer(if_match)}
    if job.revision not in named:
        raise RevisionConflictError(f"the job has revision {job.revision}", job.revision)


def is_failing(session: Session, job: Job) -> bool:
    """Returns whether a job that shall run has failed without recovery.

    It recovers with its next commit of a batch with input.
    """
    if job.status in {JobStatus.RESTARTING, JobStatus.SLEEPING} or job.failure is not None:
        return True
    attempt = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
    if attempt is None or attempt.metrics is None:
        return False
    metrics = DriverMetrics.model_validate(attempt.metrics)
    is_unsettled = unsettled_failure(attempt.metrics, attempt.last_commit_at_ms) is not None
    return is_unsettled or (metrics.last_failure is not None and metrics.input_batches == 0)


def _is_followed(present: JobSpec, wanted: JobSpec) -> bool:
    """Returns whether a running job follows a specification in its present attempt."""
    return not any(each.needs_attempt for each in differences(present, wanted))


def _require_young(session: Session, job: Job, change: Change) -> None:
    """Refuses a running job's change from a checkpoint that is too old.

    The last checkpoint of a sleeping job has everything, however old it is.

    Raises:
        LastStateTooOldError: The latest checkpoint is older than the change allows.
    """
    age_ms_max = change.last_state_age_ms_max
    is_complete = job.status in SETTLED or job.status is JobStatus.SLEEPING
    if age_ms_max is None or change.mode is not UpgradeMode.LAST_STATE or is_complete:
        return
    latest = JobTransaction(session, job).latest_completed()
    if latest is None or latest.latest_ack_timestamp is None:
        raise LastStateTooOldError("the job has no completed checkpoint")
    age_ms = now_ms() - latest.latest_ack_timestamp
    if age_ms > age_ms_max:
        raise LastStateTooOldError(f"checkpoint {latest.checkpoint_id} is {duration_text(age_ms)} old")


def _change_settled(session: Session, job: Job, change: Change) -> None:
    requests.select_revision(session, job, change.to)
    transaction, allows = JobTransaction(session, job), change.allow_non_restored_state
    if change.mode is UpgradeMode.STATELESS:
        transaction.set_pending_restore(Restore(uuid.uuid4().hex, RestoreMode.STATELESS))
    elif change.rewind_to is not None:
        restore = Restore(uuid.uuid4().hex, RestoreMode.REWIND, change.rewind_to)
        transaction.set_pending_restore(replace(restore, allow_non_restored_state=allows))
    elif allows:
        restore = transaction.pending_restore() or Restore(uuid.uuid4().hex)
        transaction.set_pending_restore(replace(restore, allow_non_restored_state=True))
