"""Requests and reports of drivers.

Any message may arrive twice or late; messages of a driver with an ended attempt have no effect.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.models import Checkpoint, Job
from keyscale.db.repositories import (
    artifacts,
    attempts,
    checkpoints,
    diagnostics,
    events,
    exceptions,
    jobs,
    operations,
    replicas,
    revisions,
)
from keyscale.errors import KeyscaleError
from keyscale.jobs.protocol.messages import (
    DIAGNOSTIC_CHARACTERS_MAX,
    Assignment,
    AttachResponse,
    Command,
    DiagnosticCommand,
    HeartbeatResponse,
    LiveSettings,
    ReservedAttempt,
    StoreCredentials,
)
from keyscale.jobs.protocol.redaction import Mask
from keyscale.state.doors.objects import assume
from keyscale.vocabulary import (
    AttemptStage,
    ChangePhase,
    CheckpointStatus,
    CommandKind,
    CommandStatus,
    DriverState,
    OperationKind,
    SnapshotOwner,
)

from ..access.tokens import reserved_token
from ..database_clock import shared_now_ms
from ..errors import AttemptOverError, ReportInvalidError, StoreRoleMissingError, StoreUnavailableError
from ..job_spec import spec_of
from ..jobs.program_loads import stored_bytes
from ..libraries.job_libraries import libraries_of
from ..lifecycle.decision import DEFAULT_TIMEOUTS
from ..lifecycle.downtime_breakdown import metrics_of_change, note_progress
from ..lifecycle.job_totals import totals_before
from ..lifecycle.operation_results import settle_command
from ..lifecycle.store_grant import grant_of
from ..metrics import series
from .masked_reports import masked_checkpoint, masked_failure, masked_heartbeat
from .report_validity import ReportedAttempt, why_not_checkpoint, why_not_heartbeat, why_not_result
from .stored_reports import store_checkpoint, store_heartbeat, subtask_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.orm import Session

    from keyscale.db.models import Attempt, Operation
    from keyscale.jobs.protocol.messages import (
        AttachRequest,
        CheckpointReport,
        CommandResult,
        DiagnosticReport,
        Heartbeat,
    )

    from ..access.identities import DriverIdentity
    from ..control_plane.context import Context

logger = logging.getLogger(__name__)

_WAIT_MS = 200
_WAIT_FOR_SAVEPOINT_MS = 50  # the job stands still until the new driver runs
_CURRENT = frozenset({DriverState.RUNNING, DriverState.SLEEPING})
_FINAL = frozenset({CheckpointStatus.COMPLETED, CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED})


def attach(context: Context, driver: DriverIdentity, request: AttachRequest) -> AttachResponse:
    """Answers a driver that asks for work."""
    with context.sessions.begin() as session:
        attempt = attempts.find(session, driver.job_id, driver.attempt, lock=True)
        job = jobs.find(session, driver.job_id)
        if attempt is None or job is None or attempt.stage in {AttemptStage.ENDED, AttemptStage.RESERVED}:
            return AttachResponse(decision="exit")
        is_news = attempt.attached_at_ms is None
        attempt.heartbeat_at_ms = shared_now_ms()  # a standby that warms up repeats this request and sends nothing else
        if is_news:
            attempt.attached_at_ms = now_ms()
        attempt.pid, attempt.host, attempt.spark_ui_url = request.pid, request.host, request.spark_ui_url
        if attempt.stage is AttemptStage.STANDBY:
            change = operations.running(session, job.id)
            near = change is not None and change.phase not in {None, ChangePhase.REQUESTED}
            answer = AttachResponse(
                decision="wait",
                preview=_assignment(session, job, attempt) if request.wants_preview else None,
                retry_after_ms=_WAIT_FOR_SAVEPOINT_MS if near else _WAIT_MS,
            )
        else:
            if attempt.assigned_at_ms is None:
                attempt.assigned_at_ms = now_ms()
            answer = AttachResponse(decision="run", assignment=_assignment(session, job, attempt))
    if is_news:
        context.wakeup.ring()
    return answer


def artifact_bytes(context: Context, driver: DriverIdentity) -> Iterator[bytes]:
    """Returns the bytes of the attempt's artifact, chunk by chunk.

    Raises:
        AttemptOverError: The attempt is over.
    """
    if driver.over:
        raise AttemptOverError("another attempt runs the job, or none")
    with context.reads() as session:
        attempt = attempts.find(session, driver.job_id, driver.attempt)
        revision = revisions.of_attempt(session, attempt) if attempt is not None else None
        artifact = artifacts.find(session, revision.artifact_id) if revision is not None else None
        if artifact is None:
            raise AttemptOverError("the job is gone")
        sha256 = artifact.sha256
    return stored_bytes(context, sha256)


def store_credentials(context: Context, driver: DriverIdentity) -> StoreCredentials:
    """Returns credentials for the objects that the job may access.

    These are the job's own objects, and the objects that it restores from.

    Raises:
        AttemptOverError: The attempt is over.
        StoreRoleMissingError: The platform has no role to narrow, or the job's store has no roles.
        StoreUnavailableError: The store grants no credentials now.
    """
    role = context.settings.store_role
    with context.reads() as session:
        job = jobs.find(session, driver.job_id)
        if job is None or driver.over:
            raise AttemptOverError("another attempt runs the job, or none")
        granted = grant_of(job, attempts.restored_from(session, job.id))
    if role is None or not job.store_url.startswith("s3://"):
        raise StoreRoleMissingError("drivers use the credentials of the control plane")
    try:
        made = assume(
            role,
            granted,
            session=f"keyscale-{job.id}-{driver.attempt}",
            endpoint_url=context.settings.store_token_endpoint,
        )
    except KeyscaleError as error:
        logger.warning("job %s: no credentials for attempt %d: %s", job.id, driver.attempt, error)
        raise StoreUnavailableError(f"{error.code}: {error}") from error
    return StoreCredentials.model_validate(asdict(made))


def heartbeat(context: Context, driver: DriverIdentity, message: Heartbeat) -> HeartbeatResponse:
    """Stores a driver's state and command results.

    Returns the commands and diagnostics without a result.

    Raises:
        AttemptOverError: The attempt is over: the driver must end.
        ReportInvalidError: The report cannot be true.
    """
    if _is_repetition(context, driver, message):
        return HeartbeatResponse(control_urls=context.announcer.urls)
    with context.sessions.begin() as session:
        # The job is locked before attempts and commands, as the reconciler does: no deadlock.
        job = jobs.lock(session, driver.job_id) if message.results else None
        attempt = attempts.find(session, driver.job_id, driver.attempt, lock=True)
        if attempt is None or attempt.stage is AttemptStage.ENDED:
            raise AttemptOverError("another attempt runs the job, or none")
        _refuse(why_not_heartbeat(message, attempt.stage, attempt.number))
        message = masked_heartbeat(message, _mask(context, session, attempt))
        at_ms = now_ms()
        _note_restart(session, attempt, message)
        if message.failure is not None and attempt.failure is None:
            exceptions.record(session, attempt.job_id, attempt.number, at_ms, message.failure.model_dump())
        heard_at_ms = shared_now_ms()
        is_sample_due = series.is_sample_due(attempt, message, heard_at_ms)
        series.begin_counting(session, attempt)
        is_news = store_heartbeat(attempt, message, at_ms, heard_at_ms)
        has_progressed = note_progress(attempt, message.metrics, at_ms)
        if is_sample_due:
            is_current = attempt.stage is AttemptStage.ACTIVE and message.state in _CURRENT
            before = attempt.totals_before
            series.sample(session, attempt.job_id, message.metrics, before, is_current=is_current, at_ms=at_ms)
        if job is not None:
            reporter = _reporter(session, job, attempt)
            for result in message.results:
                is_news |= _store_result(session, reporter, result)
        waiting = operations.pending(session, attempt.job_id, attempt.number)
        without_result = [_command(session, operation) for operation in waiting]
        looks = diagnostics.pending(session, attempt.job_id, attempt.number, heard_at_ms)
        settings = _settings(session, attempt, message)
    if has_progressed:  # in a separate transaction: other transactions lock a change before an attempt
        with context.sessions.begin() as session:
            settled = metrics_of_change(attempt.metrics) if attempt.settled_at_ms is not None else None
            operations.note_progress(session, attempt.job_id, attempt.number, attempt.caught_up_at_ms, settled)
    if is_news:
        context.wakeup.ring()
    return HeartbeatResponse(
        commands=without_result if attempt.driver_state == DriverState.RUNNING else [],
        diagnostics=[DiagnosticCommand.model_validate(each.request) for each in looks],
        settings=settings,
        sleeps=attempt.sleep_requested_at_ms is not None and not any(_ends_sleep(attempt, each) for each in waiting),
        control_urls=context.announcer.urls,
    )


def _ends_sleep(attempt: Attempt, operation: Operation) -> bool:
    """Returns whether a driver must be awake for an operation.

    A sleeping job stops without its driver, and a change continues from its last checkpoint.
    """
    is_asleep = attempt.driver_state == DriverState.SLEEPING
    return not is_asleep or operation.kind.is_snapshot or operation.kind is OperationKind.DRAIN


def _command(session: Session, operation: Operation) -> Command:
    """Returns an operation's command to the driver of its old attempt."""
    command = Command(
        id=operation.command_id,
        kind=operation.command_kind,
        savepoint_id=operation.savepoint_id,
        drain=operation.kind is OperationKind.DRAIN,
    )
    if command.kind is not CommandKind.RESCALE:
        return command
    next_attempt, return_attempt = _reserved(session, operation)
    return command.model_copy(
        update={
            "next_attempt": next_attempt,
            "return_attempt": return_attempt,
            "limit_ms": DEFAULT_TIMEOUTS.prepare_ms,
            "is_withdrawn": operation.cancel_requested_at_ms is not None,
        }
    )


def _reserved(session: Session, operation: Operation) -> list[ReservedAttempt]:
    """Returns the attempts that the driver may open in a live rescale."""
    job, key = session.get_one(Job, operation.job_id), replicas.shared_key(session)
    return [
        ReservedAttempt(
            token=reserved_token(key, f"{job.id}:{attempt.number}", operation.id),
            assignment=_assignment(session, job, attempt),
        )
        for attempt in attempts.all_of_stage(session, job.id, AttemptStage.RESERVED)
    ]


def _is_repetition(context: Context, driver: DriverIdentity, message: Heartbeat) -> bool:
    """Stores a heartbeat of an idle driver that repeats the last one.

    It takes one statement. Returns False for any other heartbeat, without storing it.
    """
    is_idle = message.state is DriverState.RUNNING and message.metrics.waits_for_input
    if not is_idle or message.results or message.failure is not None:
        return False
    heard_at_ms = shared_now_ms()
    with context.sessions.begin() as session:
        repeated = attempts.repeat_heartbeat(
            session,
            driver.job_id,
            driver.attempt,
            metrics_json=message.metrics.model_dump_json(),
            last_batch_id=None if message.last_commit is None else message.last_commit.batch_id,
            revision=message.revision,
            restored_at_ms=message.restored_at_ms,
            at_ms=heard_at_ms,
        )
        if repeated is not None and series.begins_step(repeated.heartbeat_at_ms, heard_at_ms):
            before = repeated.totals_before
            series.sample(session, driver.job_id, message.metrics, before, is_current=True, at_ms=now_ms())
    return repeated is not None


def report_checkpoint(context: Context, driver: DriverIdentity, report: CheckpointReport) -> None:
    """Stores a checkpoint's progress.

    A late report of an attempt that is over still counts if its status is COMPLETED and the store confirms it: the
    manifest is published, and the attempt had committed the checkpoint's batches. A report of a newer attempt under the
    same number is never overwritten.

    Raises:
        ReportInvalidError: The report cannot be true.
        StoreUnavailableError: The report is late, and the store does not answer.
    """
    if driver.over and not _is_confirmed(context, driver, report):
        return
    with context.sessions.begin() as session:
        job = jobs.lock(session, driver.job_id)
        attempt = attempts.find(session, driver.job_id, driver.attempt)
        if job is None or attempt is None:
            return
        _refuse(why_not_checkpoint(report, _reporter(session, job, attempt)))
        found = checkpoints.find(session, job.id, report.checkpoint_id)
        if found is not None and (found.attempt > driver.attempt or found.status in _FINAL):
            return
        status = CheckpointStatus(report.status)
        failed_at_ms = found.failure_timestamp if found is not None else None
        if attempt.stage is AttemptStage.ENDED and not driver.over:  # it has ended since, and the store was not asked
            raise AttemptOverError("another attempt runs the job, or none")
        # These are queries: they would flush a new row without values.
        mask, owner = Mask(_secrets(context, session, job, attempt)), _owner(session, job, report)
        if found is None:
            found = Checkpoint(job_id=job.id, checkpoint_id=report.checkpoint_id)
            session.add(found)
        if found.savepoint_id != report.savepoint_id or found.attempt != driver.attempt:
            found.owner = owner
        store_checkpoint(found, driver.attempt, status, masked_checkpoint(report, mask))
        session.flush()
        checkpoints.store_subtasks(session, found, [subtask_columns(subtask) for subtask in report.subtasks])
        checkpoints.mark_subsumed(session, job.id, report.subsumed_checkpoint_ids)
        if status is CheckpointStatus.COMPLETED:
            series.note_checkpoint(session, found, now_ms())
        if status is CheckpointStatus.FAILED and failed_at_ms is None:
            series.note_failed_checkpoint(session, job.id, found.failure_timestamp or now_ms())
        elif status is not CheckpointStatus.FAILED and failed_at_ms is not None:
            series.take_back_failed_checkpoint(session, job.id, failed_at_ms)


def report_diagnostic(context: Context, driver: DriverIdentity, report: DiagnosticReport) -> None:
    """Stores what a driver shows of its job, with secrets masked.

    A report of an unknown or an answered diagnostic has no effect.

    Raises:
        ReportInvalidError: The report is too long.
    """
    with context.sessions.begin() as session:
        attempt, job = attempts.find(session, driver.job_id, driver.attempt), jobs.find(session, driver.job_id)
        if attempt is None or job is None or diagnostics.find(session, job.id, report.diagnostic_id) is None:
            return
        if sum(len(part.name) + len(part.text) for part in report.parts) > DIAGNOSTIC_CHARACTERS_MAX:
            raise ReportInvalidError(f"a diagnostic has at most {DIAGNOSTIC_CHARACTERS_MAX} characters")
        mask = Mask(_secrets(context, session, job, attempt))
        diagnostics.settle(
            session,
            report.diagnostic_id,
            job_id=job.id,
            attempt=attempt.number,
            parts=[{"name": mask.redact(part.name), "text": mask.redact(part.text)} for part in report.parts],
            failure=None if report.failure is None else masked_failure(report.failure, mask).model_dump(),
            at_ms=shared_now_ms(),
        )


def _owner(session: Session, job: Job, report: CheckpointReport) -> SnapshotOwner:
    """Returns the first owner of a reported checkpoint or savepoint."""
    if report.savepoint_id is None:
        return SnapshotOwner.PLATFORM
    operation = operations.find(session, report.savepoint_id)
    is_ours = operation is not None and operation.job_id == job.id
    return operation.savepoint_owner if operation is not None and is_ours else SnapshotOwner.USER


def _assignment(session: Session, job: Job, attempt: Attempt) -> Assignment:
    revision = revisions.of_attempt(session, attempt)
    artifact = artifacts.find(session, revision.artifact_id)
    if artifact is None:
        raise AttemptOverError("the job's artifact is gone")
    return Assignment.model_validate(
        {
            "job_id": job.id,
            "job_name": job.name,
            "attempt": attempt.number,
            "spec": revision.spec,
            "artifact_filename": artifact.filename,
            "artifact_sha256": artifact.sha256,
            "libraries": libraries_of(session, revision.libraries).files,
            "store_url": job.store_url,
            "restore_from": attempt.restore_from,
            "restore_mode": attempt.restore_mode.lower(),
            "restore_id": attempt.restore_id,
            "claim_mode": attempt.claim_mode.lower(),
            "allow_non_restored_state": attempt.allow_non_restored_state,
            "revision": attempt.revision,
            "next_checkpoint_id": checkpoints.next_id(session, job.id),
            "skip_lost_records": job.skip_lost_records,
            "time_reset_after": job.time_reset_after,
            "failures": job.failures or {},
            "counters": totals_before(session, attempt.job_id, attempt.number),
        }
    )


def _settings(session: Session, attempt: Attempt, message: Heartbeat) -> LiveSettings | None:
    """Returns the settings of the attempt's revision, if its driver lacks them.

    The driver lacks them if it has another revision's settings.
    """
    if message.revision in {None, attempt.revision}:
        return None
    revision = revisions.of_attempt(session, attempt)
    return LiveSettings(revision=revision.number, spec=spec_of(revision))


def _secrets(context: Context, session: Session, job: Job, attempt: Attempt) -> dict[str, str]:
    used = revisions.in_use(session, job, attempt.number)
    return context.launcher.secrets_of(job.id, attempt.run_number, used)


def _mask(context: Context, session: Session, attempt: Attempt) -> Callable[[str], str]:
    """Returns what masks the secrets of an attempt's job.

    The secrets are read for the first text: most heartbeats have none.
    """

    @cache
    def mask() -> Mask:
        job = jobs.find(session, attempt.job_id)
        return Mask({} if job is None else _secrets(context, session, job, attempt))

    def masked(text: str) -> str:
        return mask()(text)

    return masked


def _note_restart(session: Session, attempt: Attempt, message: Heartbeat) -> None:
    """Records that a driver has counted a failure since its last heartbeat."""
    known = ((attempt.metrics or {}).get("failures") or {}).get("count", 0)
    metrics = message.metrics
    if attempt.metrics is not None and metrics.failures.count > known and metrics.last_failure is not None:
        events.record(
            session,
            job_id=attempt.job_id,
            at_ms=now_ms(),
            kind="RUN_FAILED",
            actor=f"attempt {attempt.number}",
            message=f"attempt {attempt.number} failed and follows the restart strategy: {metrics.last_failure.code}",
            failure_code=metrics.last_failure.code,
        )
        if message.failure is None:  # otherwise it is the same failure
            series.note_restart(session, attempt.job_id, now_ms())
            exceptions.record(session, attempt.job_id, attempt.number, now_ms(), metrics.last_failure.model_dump())


def _is_confirmed(context: Context, driver: DriverIdentity, report: CheckpointReport) -> bool:
    if CheckpointStatus(report.status) is not CheckpointStatus.COMPLETED:
        return False
    with context.reads() as session:
        job = jobs.find(session, driver.job_id)
    return job is not None and context.store.confirms_checkpoint(
        job.store_url,
        job.id,
        attempt=driver.attempt,
        checkpoint_id=report.checkpoint_id,
        savepoint_id=report.savepoint_id,
    )


def _reporter(session: Session, job: Job, attempt: Attempt) -> ReportedAttempt:
    return ReportedAttempt(
        job_id=job.id,
        store_url=job.store_url,
        number=attempt.number,
        parallelism=attempt.parallelism,
        max_parallelism=job.max_parallelism,
        newest_checkpoint_id=checkpoints.next_id(session, job.id) - 1,
    )


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise ReportInvalidError(reason)


def _store_result(session: Session, reporter: ReportedAttempt, result: CommandResult) -> bool:
    operation = operations.find_commanded(session, result.command_id)
    if operation is None or operation.command_status is not CommandStatus.IN_PROGRESS:
        return False
    if (operation.job_id, operation.old_attempt) != (reporter.job_id, reporter.number):
        return False
    _refuse(why_not_result(result, operation.savepoint_id, reporter))
    settle_command(
        session,
        operation,
        status=CommandStatus(result.status),
        location=result.location,
        checkpoint_id=result.checkpoint_id,
        failed=result.failure.model_dump() if result.failure else None,
    )
    return True
