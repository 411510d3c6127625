from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

from sqlalchemy.exc import IntegrityError

from api.clock import now_ms
from api.errors import (
    ArtifactNotFoundError,
    ArtifactNotRunnableError,
    JobNameTakenError,
    ParallelismInvalidError,
    RequestInvalidError,
)
from api.lifecycle import intents
from api.schemas.operation import OperationAccepted
from api.services import operations
from api.services.job_views import job_answer
from api.services.lookup import require_job
from api.spark_conf import check_spark_conf
from db.models import Job
from db.repositories import artifacts, attempts, events
from db.statuses import ArtifactKind, CommandKind, DesiredState, JobStatus
from state.key_groups import default_max_parallelism

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from api.context import Context
    from api.schemas.job import JobAnswer, JobRequest, StopRequest
    from api.security import Principal

MAX_PARALLELISM_LIMIT = 32768
_ID_LOOKALIKE = re.compile(r"[0-9a-f]{32}")
_PARAMETERS_MAX = 200


def create(context: Context, user: Principal, request: JobRequest) -> JobAnswer:
    """Creates a job.

    Raises:
        ArtifactNotFoundError: There is no such artifact.
        ArtifactNotRunnableError: The artifact is a jar.
        ParallelismInvalidError: A parallelism is out of range.
        SparkConfNotAllowedError: A setting is not the job's to choose.
        JobNameTakenError: There is a job of this name.
        StoreUnavailableError: The object store cannot be used.
    """
    max_parallelism = _max_parallelism(request)
    check_parallelism(request.parallelism, max_parallelism)
    check_spark_conf(request.spark_conf)
    if _ID_LOOKALIKE.fullmatch(request.name):
        raise RequestInvalidError("name: it looks like a job's id")
    if len(request.parameters) > _PARAMETERS_MAX:
        raise RequestInvalidError(f"parameters: at most {_PARAMETERS_MAX}")
    context.store.require_usable(context.settings.store_url)
    job = Job(
        id=uuid.uuid4().hex,
        name=request.name,
        artifact_id=request.artifact_id,
        parallelism=request.parallelism,
        max_parallelism=max_parallelism,
        hash_id=request.hash_id,
        parameters=request.parameters,
        spark_conf=request.spark_conf,
        checkpoints=request.checkpoints.model_dump(),
        restart=request.restart.model_dump() if request.restart is not None else None,
        store_url=context.settings.store_url,
        desired=DesiredState.STOPPED,
        status=JobStatus.CREATED,
        consecutive_failures=0,
        restarts=0,
        next_start_at_ms=0,
        created_at_ms=now_ms(),
    )
    try:
        with context.sessions.begin() as session:
            _require_runnable(session, request.artifact_id)
            session.add(job)
            session.flush()
            events.record(
                session,
                job_id=job.id,
                at_ms=job.created_at_ms,
                kind="JOB_CREATED",
                actor=user.name,
                message=f"created {job.name}",
            )
            return job_answer(session, job)
    except IntegrityError as error:
        if "uq_jobs_name" in str(error.orig):
            raise JobNameTakenError(f"there is a job called {request.name}") from None
        raise ArtifactNotFoundError("the artifact was deleted at this moment") from None


def start(context: Context, user: Principal, reference: str) -> JobAnswer:
    """Starts a job.

    Raises:
        JobNotFoundError: There is no such job.
        JobStatusConflictError: It runs already.
        StoreUnavailableError: The object store cannot be used; the job is as it was.
    """
    with context.sessions() as session:
        store_url = require_job(session, reference).store_url
    context.store.require_usable(store_url)
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        intents.start(session, job, user)
        session.flush()
        answer = job_answer(session, job)
    context.wakeup.ring()
    return answer


def stop(context: Context, user: Principal, reference: str, request: StopRequest) -> OperationAccepted:
    """Stops a job with a savepoint; the same operation id again is the same stop.

    Raises:
        JobNotFoundError: There is no such job.
        JobStatusConflictError: It does not run.
        OperationIdTakenError: The id belongs to something else.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        operation_id = request.operation_id or uuid.uuid4().hex
        command = operations.find_repeated(session, job, operation_id, CommandKind.STOP_WITH_SAVEPOINT)
        if command is None:
            command = intents.stop(session, job, user, operation_id, drain=request.drain)
    context.wakeup.ring()
    return OperationAccepted(operation_id=command.id, status=command.status)


def cancel(context: Context, user: Principal, reference: str) -> JobAnswer:
    """Ends a job now.

    Raises:
        JobNotFoundError: There is no such job.
        JobStatusConflictError: It has ended.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        intents.cancel(session, job, user)
        session.flush()
        answer = job_answer(session, job)
    context.wakeup.ring()
    return answer


def delete(context: Context, user: Principal, reference: str) -> None:
    """Deletes a job that does not run, with its history; its objects in the store stay.

    Raises:
        JobNotFoundError: There is no such job.
        JobStatusConflictError: It runs.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        intents.require_deletable(job)
        left = [attempt.number for attempt in attempts.unreaped(session, job.id)]
        session.delete(job)
        events.record(
            session,
            job_id=job.id,
            at_ms=now_ms(),
            kind="JOB_DELETED",
            actor=user.name,
            message=f"deleted {job.name}",
            store_url=job.store_url,
        )
    for number in left:
        context.launcher.kill(job.id, number)
    context.launcher.forget(job.id)


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Refuses a parallelism that a job cannot have.

    Raises:
        ParallelismInvalidError: It is below 1 or above the max parallelism.
    """
    if not 1 <= parallelism <= max_parallelism:
        raise ParallelismInvalidError(f"parallelism {parallelism} is not from 1 to {max_parallelism}")


def _max_parallelism(request: JobRequest) -> int:
    if request.max_parallelism is None:
        check_parallelism(request.parallelism, MAX_PARALLELISM_LIMIT)
        return default_max_parallelism(request.parallelism)
    if not 1 <= request.max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ParallelismInvalidError(f"max_parallelism is not from 1 to {MAX_PARALLELISM_LIMIT}")
    return request.max_parallelism


def _require_runnable(session: Session, artifact_id: str) -> None:
    artifact = artifacts.find(session, artifact_id)
    if artifact is None:
        raise ArtifactNotFoundError("no artifact has this id")
    if artifact.kind is ArtifactKind.JAR:
        raise ArtifactNotRunnableError("a jar holds no PySpark program")
