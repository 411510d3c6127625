from typing import Annotated

from fastapi import APIRouter, Query

from api.routers.dependencies import Control, Limit
from api.schemas.job import AttemptList, EventList, JobAnswer, JobList, JobRequest, LogAnswer, StopRequest
from api.schemas.operation import OperationAccepted
from api.security import User
from api.services import driver_logs, job_views, jobs

router = APIRouter(prefix="/jobs", tags=["jobs"])


@router.post("", status_code=201)
def create_job(control: Control, user: User, request: JobRequest) -> JobAnswer:
    """Creates a job. It is not started."""
    return jobs.create(control, user, request)


@router.get("")
def list_jobs(control: Control, _: User) -> JobList:
    """Lists all jobs, the newest first."""
    return job_views.list_all(control)


@router.get("/{job_id}")
def show_job(control: Control, _: User, job_id: str) -> JobAnswer:
    """Shows a job. Here and in every other path its name may stand for its id."""
    return job_views.show(control, job_id)


@router.delete("/{job_id}", status_code=204)
def delete_job(control: Control, user: User, job_id: str) -> None:
    """Deletes a job that does not run. What it has in the object store stays."""
    jobs.delete(control, user, job_id)


@router.post("/{job_id}/start", status_code=202)
def start_job(control: Control, user: User, job_id: str) -> JobAnswer:
    """Starts a job: from its latest checkpoint or savepoint if it has run before."""
    return jobs.start(control, user, job_id)


@router.post("/{job_id}/stop", status_code=202)
def stop_job(control: Control, user: User, job_id: str, request: StopRequest | None = None) -> OperationAccepted:
    """Stops a job with a savepoint. The operation is COMPLETED when the savepoint is there and the driver has stopped."""
    return jobs.stop(control, user, job_id, request or StopRequest())


@router.post("/{job_id}/cancel", status_code=202)
def cancel_job(control: Control, user: User, job_id: str) -> JobAnswer:
    """Ends a job now, without a savepoint. It can be started again from its latest checkpoint."""
    return jobs.cancel(control, user, job_id)


@router.get("/{job_id}/attempts")
def list_attempts(control: Control, _: User, job_id: str) -> AttemptList:
    """Lists a job's attempts, the newest first."""
    return job_views.list_attempts(control, job_id)


@router.get("/{job_id}/events")
def list_events(control: Control, _: User, job_id: str, limit: Limit = 200) -> EventList:
    """Lists what has happened to a job, the newest first."""
    return job_views.list_events(control, job_id, limit)


@router.get("/{job_id}/logs")
def show_log(
    control: Control,
    _: User,
    job_id: str,
    attempt: Annotated[int | None, Query(ge=1, description="Default: the latest one.")] = None,
    tail_bytes: Annotated[int, Query(ge=1, le=1 << 20)] = 64 << 10,
) -> LogAnswer:
    """Shows the end of a driver's log."""
    return driver_logs.show(control, job_id, attempt, tail_bytes)
