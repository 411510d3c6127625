"""Jobs: create and delete them.

Also shows them with their attempts.
"""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import IntegrityError

from keyscale.clock import now_ms
from keyscale.db.models import DeletedJob, Job
from keyscale.db.repositories import (
    artifacts,
    attempts,
    checkpoints,
    events,
    exceptions,
    jobs,
    operations,
    overviews,
    revisions,
    series,
    snapshot_needs,
)
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.jobs.protocol.specification import known_settings
from keyscale.vocabulary import SETTLED, Approval, AttemptStage, CheckpointStatus, ClaimMode, DesiredState, JobStatus

from ..control_plane.cursors import write_cursor
from ..database_clock import shared_now_ms
from ..errors import (
    ApprovalRequiredError,
    ArtifactNotFoundError,
    JobNameTakenError,
    JobNotFoundError,
    OutOfScopeError,
    ParallelismInvalidError,
    RequestInvalidError,
)
from ..health.facts import HealthFacts, idle_at_ms
from ..health.faults import unsettled_failure
from ..health.health import health_of
from ..job_spec import spec_of
from ..launching.spark_conf import check_spark_conf
from ..libraries.job_libraries import require_libraries
from ..lifecycle import requests
from ..lifecycle.current_report import reports_now
from ..lifecycle.job_transaction import JobTransaction
from ..lifecycle.restoring import Restore
from ..secret_labels.secret_labels import require_covered
from ..shapes import JOB_ID_PATTERN
from .conditions import ConditionFacts, conditions_of
from .job_metrics import job_metrics_of
from .restore_sources import Restorer, find_source, require_kept
from .schemas.job import (
    AttemptAnswer,
    AttemptList,
    AttemptSummaryAnswer,
    JobAnswer,
    JobList,
    JobStatusAnswer,
    JobSummaryAnswer,
    RestoreAnswer,
    RunningOperationAnswer,
)
from .start_waits import failing_start_of, waits_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from keyscale.db.repositories.overviews import JobOverview
    from keyscale.jobs.protocol.specification import JobSpec

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing
    from ..health.facts import StartWait
    from .restore_sources import FoundSource
    from .schemas.job import JobRequest
    from .schemas.restore import RestoreRequest

logger = logging.getLogger(__name__)

_STATUS_FIELDS = tuple(name for name in JobStatusAnswer.model_fields if name in Job.__table__.c and name != "failure")


def create(context: Context, user: Principal, request: JobRequest) -> JobAnswer:
    """Creates a job.

    Raises:
        ArtifactNotFoundError: The artifact does not exist.
        ArtifactNotRunnableError: The artifact is a jar, a wheel, or a zip of modules alone.
        JarNotAllowedError: A job may not bring this jar.
        LibraryInvalidError: A library cannot be used.
        LibraryClashError: Two libraries, or a library and the platform, have the same names.
        LibraryRequirementError: A wheel needs a package that the job and the platform lack.
        ParallelismInvalidError: A parallelism is out of range.
        SparkConfNotAllowedError: The job may not choose this setting.
        JobLimitError: The job asks for more than the limits allow.
        SecretUnknownError: The platform does not have a secret that the job names, or the scope does not cover it.
        JobNameTakenError: A job already has this name.
        OutOfScopeError: The user may not make this job.
        StoreUnavailableError: The object store cannot be used.
        JobNotFoundError: The user may not see the job to restore from, or it does not exist.
        RestoreSourceError: The job could not start from the snapshot in restore_from.
    """
    require_name(user, request.name, request.labels)
    spec, store_url = request.spec, context.settings.store_url
    context.store.require_usable(store_url)
    chosen = spec.max_parallelism if "max_parallelism" in spec.model_fields_set else None
    source = find_source(context, user, request, Restorer(None, store_url, chosen, spec.hash_id))
    if source is not None:
        spec = spec.model_copy(update={"max_parallelism": source.max_parallelism})
    job = new_job(request.name, spec, request.labels, store_url)
    return store_new(context, user, job, spec, request, source)


def new_job(name: str, spec: JobSpec, labels: dict[str, str], store_url: str) -> Job:
    """Returns a job that has not been stored yet."""
    return Job(
        id=uuid.uuid4().hex,
        name=name,
        max_parallelism=spec.max_parallelism,
        hash_id=spec.hash_id,
        labels=labels,
        store_url=store_url,
        desired=DesiredState.STOPPED,
        status=JobStatus.CREATED,
        consecutive_failures=0,
        restarts=0,
        next_start_at_ms=0,
        created_at_ms=now_ms(),
    )


def require_name(user: Principal, name: str, labels: Mapping[str, str]) -> None:
    """Refuses a name or labels that a user may not use.

    Raises:
        RequestInvalidError: The name looks like an id.
        OutOfScopeError: The user may not make this job.
    """
    if re.match(JOB_ID_PATTERN, name):
        raise RequestInvalidError("name: it looks like the id of a job")
    if not user.scope.covers(job_id="", name=name, labels=labels):
        raise OutOfScopeError("neither the name nor the labels of the job are in your scope")


def store_new(  # noqa: PLR0917 - the parts of a new job
    context: Context,
    user: Principal,
    job: Job,
    spec: JobSpec,
    request: RestoreRequest,
    source: FoundSource | None,
    *,
    cloned: JobSpec | None = None,
    message: str | None = None,
    starts: bool = False,
) -> JobAnswer:
    """Stores a new job with its first revision, and how it restores.

    `cloned` is the specification of the job that it is a clone of. Raises as `create`.
    """
    check_specification(context, spec)
    name = job.name
    try:
        with context.sessions.begin() as session:
            require_program(context, session, user, spec)
            require_covered(session, user, cloned, spec)
            session.add(job)
            session.flush()
            requests.revise(session, job, spec, user, message)
            store_restore(session, job, request, source)
            events.record(
                session,
                job_id=job.id,
                at_ms=job.created_at_ms,
                kind="JOB_CREATED",
                actor=user.name,
                message=f"created {name}",
            )
            if starts:
                requests.start(session, job, user, uuid.uuid4().hex)
            session.flush()
            return job_answer(session, job)
    except IntegrityError as error:
        if "uq_jobs_name" in str(error.orig):
            raise JobNameTakenError(f"a job called {name} already exists") from None
        raise ArtifactNotFoundError("the artifact was deleted at the same moment") from None


def check_specification(context: Context, spec: JobSpec) -> None:
    """Refuses a specification that no job may have.

    Raises:
        ParallelismInvalidError: The parallelism is out of range.
        SparkConfNotAllowedError: A job may not choose this setting.
        JobLimitError: The job asks for more than the limits allow.
        SecretUnknownError: The platform does not have a secret that it names.
    """
    check_parallelism(spec.parallelism, spec.max_parallelism)
    check_spark_conf(spec.spark_conf, context.settings.spark_conf_allowed)
    context.settings.job_limits.check(spec.parallelism, spec.spark_conf)
    context.settings.job_secrets.require(spec.secrets or [])


def store_restore(session: Session, job: Job, request: RestoreRequest, source: FoundSource | None) -> None:
    """Stores how a job's next start restores, if the request says it."""
    transaction = JobTransaction(session, job)
    if source is not None:
        require_kept(session, source)
        transaction.set_pending_restore(source.restore)
    elif request.allow_non_restored_state:
        pending = transaction.pending_restore() or Restore(uuid.uuid4().hex)
        transaction.set_pending_restore(replace(pending, allow_non_restored_state=True))


def delete(context: Context, user: Principal, reference: str, *, keep_objects: bool = False) -> None:
    """Deletes a job that does not run.

    Also deletes its history, its local files, and its objects except savepoints of its user.

    Args:
        context: The control plane.
        user: The user.
        reference: The job.
        keep_objects: Whether all of its objects stay in the store.

    Raises:
        JobNotFoundError: The job does not exist.
        JobStatusConflictError: The job runs.
        ApprovalRequiredError: Changes of the job need an approval.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        requests.require_deletable(session, job)
        if spec_of(revisions.current(session, job)).approval is Approval.REQUIRED:
            raise ApprovalRequiredError("a new job of this name would need no approval")
        runs = [attempt.run_number for attempt in attempts.unreaped(session, job.id)]
        restored_from = attempts.restored_from(session, job.id)
        discarded = checkpoints.waiting_discarded(session, job.id)
        if not keep_objects:
            discarded += _unused_savepoints_of_changes(session, job)
        session.delete(job)
        session.flush()  # after this no driver of the job adds a point
        series.remove(session, job.id)
        exceptions.remove(session, job.id)
        at_ms = now_ms()
        session.add(
            DeletedJob(
                job_id=job.id,
                name=job.name,
                store_url=job.store_url,
                keep_objects=keep_objects,
                deleted_at_ms=at_ms,
                due_at_ms=at_ms,
                discarded=discarded,
                claimed=[location for location, claim_mode in restored_from if claim_mode is ClaimMode.CLAIM],
            )
        )
        events.record(
            session,
            job_id=job.id,
            at_ms=at_ms,
            kind="JOB_DELETED",
            actor=user.name,
            message=f"deleted {job.name}" + (", and kept its objects" if keep_objects else ""),
            store_url=job.store_url,
        )
    for run in runs:
        context.launcher.kill(job.id, run)
    try:
        context.launcher.forget(job.id)
    except OSError as error:
        logger.warning("local files of deleted job %s stay until old runs are removed: %s", job.id, error)


def _unused_savepoints_of_changes(session: Session, job: Job) -> list[str]:
    """Returns the locations of a job's unused savepoints of changes.

    Another job does not restore from them.

    Until this transaction ends, no job can start from one.
    """
    unused = []
    for savepoint in checkpoints.of_changes(session, job.id):
        location = savepoint.external_path or ""
        operations.reserve_id(session, location)
        restoring = snapshot_needs.restoring_jobs(session, location, SETTLED)
        if all(each.id == job.id for each in restoring):
            savepoint.status, savepoint.discard_requested_at_ms = CheckpointStatus.DISCARDED, now_ms()
            unused.append(location)
    return unused


def list_all(context: Context, user: Principal, listing: Listing) -> JobList:
    """Lists the jobs in a user's scope."""
    with context.reads() as session:
        found = jobs.list_page(session, listing.page(int, str), user.scope)
        shown = overviews.of_jobs(session, found.rows)
        waits, at_ms = waits_of(session, shown.values()), shared_now_ms()
        failing = {job_id: failing_start_of(session, each, at_ms) for job_id, each in shown.items()}
    known = [job_id for job_id in found.rows if job_id in shown]  # the others were deleted meanwhile
    summaries = [_summary(shown[job_id], at_ms, waits.get(job_id), failing[job_id]) for job_id in known]
    return JobList(jobs=summaries, next=write_cursor(found.next))


def show(context: Context, reference: str) -> JobAnswer:
    """Shows a job.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        return _answer(session, overviews.find(session, reference))


def id_of(context: Context, reference: str) -> str:
    """Returns the id of the job with an id or name.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        return require_job_id(session, reference)


def list_attempts(context: Context, reference: str, listing: Listing) -> AttemptList:
    """Lists a job's attempts.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        found = attempts.list_page(session, require_job_id(session, reference), listing.page(int))
    shown = [AttemptAnswer.model_validate(attempt) for attempt in found.rows]
    return AttemptList(attempts=shown, next=write_cursor(found.next))


def require_job(session: Session, reference: str, *, lock: bool = False) -> Job:
    """Returns the job with this id or name.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    job = jobs.find(session, reference, lock=lock)
    if job is None:
        raise JobNotFoundError("no job has this id or name")
    return job


def require_job_id(session: Session, reference: str) -> str:
    """Returns the id of the job with this id or name.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    job_id = jobs.find_id(session, reference)
    if job_id is None:
        raise JobNotFoundError("no job has this id or name")
    return job_id


def job_answer(session: Session, job: Job) -> JobAnswer:
    """Returns a job as the API shows it.

    Raises:
        JobNotFoundError: It was deleted a moment ago.
    """
    return _answer(session, overviews.find(session, job.id))


def _answer(session: Session, overview: JobOverview | None) -> JobAnswer:
    if overview is None:
        raise JobNotFoundError("no job has this id or name")
    attempt = None if overview.attempt is None else AttemptAnswer.model_validate(overview.attempt)
    metrics = _reported(overview.attempt or {})
    wait, at_ms = waits_of(session, [overview]).get(overview.job["id"]), shared_now_ms()
    failing = failing_start_of(session, overview, at_ms)
    return JobAnswer.model_validate(_fields(overview, attempt, metrics, at_ms, wait, failing))


def _summary(overview: JobOverview, at_ms: int, wait: StartWait | None, failing: str | None) -> JobSummaryAnswer:
    columns = overview.attempt or {}
    attempt = AttemptSummaryAnswer.model_validate(columns) if columns else None
    return JobSummaryAnswer.model_validate(_fields(overview, attempt, _reported(columns), at_ms, wait, failing))


def _reported(attempt: Mapping[str, Any]) -> DriverMetrics | None:
    """Returns the last report of an attempt's driver."""
    metrics = attempt.get("metrics")
    return None if metrics is None else DriverMetrics.model_validate(metrics)


def _fields(  # noqa: PLR0917 - the facts of a job
    overview: JobOverview,
    attempt: AttemptSummaryAnswer | None,
    metrics: DriverMetrics | None,
    at_ms: int,
    wait: StartWait | None,
    failing: str | None,
) -> dict[str, Any]:
    """Returns the fields of an answer, with the given `attempt`."""
    job, columns = overview.job, overview.attempt or {}
    is_active = attempt is not None and attempt.stage is AttemptStage.ACTIVE
    snapshots = [each for each in (overview.checkpoint, overview.savepoint) if each is not None]
    newest = max(snapshots, key=attrgetter("id"), default=None)
    is_current = attempt is not None and reports_now(attempt, now_ms=at_ms)
    report = columns.get("metrics") or {}
    shown = job_metrics_of(
        metrics,
        columns.get("totals_before"),
        None if newest is None else newest.state_size,
        is_current=is_current,
        at_ms=None if attempt is None else attempt.heartbeat_at_ms,
    )
    failure = job["failure"] or (unsettled_failure(report, columns.get("last_commit_at_ms")) if is_active else None)
    known = HealthFacts(
        report=report,
        is_active=is_active,
        is_current=is_current,
        is_settled=job["status"] in SETTLED,
        failure=failure,
        ended_at_ms=job["ended_at_ms"],
        start_wait=wait,
        checkpoint_ms=None if overview.checkpoint is None else overview.checkpoint.end_to_end_duration,
        checkpoint_timeout_ms=overview.revision["spec"]["checkpoints"]["timeout_ms"],
        snapshot_at_ms=None if newest is None else newest.completed_at_ms,
        idle_at_ms=idle_at_ms(columns, report),
        at_ms=at_ms,
    )
    health = health_of(known)
    facts = ConditionFacts(
        status=job["status"],
        ended_at_ms=job["ended_at_ms"],
        attempt=attempt,
        health=health,
        snapshot=newest,
        restorable_until_at_ms=known.restorable_until_at_ms,
        operation=overview.operation_kind,
        lag_records=shown.lag_records,
        lag_before=columns.get("lag_before"),
        caught_up_at_ms=columns.get("caught_up_at_ms"),
        at_ms=at_ms,
        timers_due_at_ms=report.get("timers_due_at_ms"),
        waits_for=_waits_for(overview),
        failing_start=failing,
    )
    status = {name: job[name] for name in _STATUS_FIELDS} | {
        "state": job["status"],
        "conditions": conditions_of(facts),
        "failure": failure,
        "health": health,
        "artifact_name": overview.artifact_name,
        "artifact_version": overview.artifact_version,
        "running_since_ms": attempt.running_at_ms if attempt and is_active and job["status"] not in SETTLED else None,
        "attempt": attempt,
        "latest_checkpoint": overview.checkpoint,
        "restorable_until_at_ms": known.restorable_until_at_ms,
        "restore": _restore(job["restore"], columns),
        "operation": None
        if overview.operation_id is None or overview.operation_kind is None
        else RunningOperationAnswer(id=overview.operation_id, kind=overview.operation_kind),
    }
    return {
        "id": job["id"],
        "name": job["name"],
        "labels": job["labels"],
        "revision": overview.revision["number"],
        "created_at_ms": job["created_at_ms"],
        "spec": known_settings(overview.revision["spec"]),
        "status": status,
        "metrics": shown,
    }


def _waits_for(overview: JobOverview) -> str | None:
    """Returns what the operation in progress waits for."""
    phases = overview.operation_phases or ()
    waits = phases[-1].get("waits_for") if phases else None
    return None if waits is None else str(waits["message"])


def _restore(pending: Mapping[str, Any] | None, attempt: Mapping[str, Any]) -> RestoreAnswer | None:
    if pending is None:
        return None
    is_fulfilled = attempt.get("restore_id") == pending["id"] and attempt.get("restored_at_ms") is not None
    return None if is_fulfilled else RestoreAnswer.model_validate(pending)


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Refuses a parallelism that a job cannot have.

    Raises:
        ParallelismInvalidError: It is below 1 or above the max parallelism.
    """
    if not 1 <= parallelism <= max_parallelism:
        raise ParallelismInvalidError(f"parallelism {parallelism} is not from 1 to {max_parallelism}")


def require_program(context: Context, session: Session, user: Principal, spec: JobSpec) -> None:
    """Refuses a program and libraries that a user may not run.

    Also refuses libraries that do not fit together. Keeps the artifacts from deletion.

    Raises:
        ArtifactNotFoundError: No artifact that the user may see has this id.
        ArtifactNotRunnableError: The program is a jar, a wheel, or a zip of modules alone.
        JarNotAllowedError: A job may not bring this jar.
        LibraryInvalidError: A library cannot be used.
        LibraryClashError: Two libraries, or a library and the platform, have the same names.
        LibraryRequirementError: A wheel needs a package that the job and the platform lack.
    """
    require_libraries(
        session,
        spec.artifact_id,
        spec.libraries,
        context.settings.jar_rules,
        scope=user.scope,
        user_id=user.id,
    )
    artifacts.keep(session, [spec.artifact_id, *spec.libraries])
