"""The routes of jobs, their attempts, events and logs."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from ..access.identities import Operator, User
from ..schemas.base import NUMBER_MAX
from ..schemas.job import (
    AttemptList,
    EventList,
    JobAnswer,
    JobList,
    JobRequest,
    LogAnswer,
)
from ..schemas.job_exception import JobExceptionList
from ..schemas.revision import CloneRequest
from ..services import clones, exceptions, jobs, logs
from ..services.logs import LogPart
from .dependencies import AttemptNumber, Control, ListingOf
from .events import FilterOf
from .guarded_route import GuardedRoute

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=GuardedRoute)

LogBytes = Annotated[int, Query(ge=1, le=1 << 20)]
KeepObjects = Annotated[bool, Query(description="Keep the job's checkpoints and log in the object store.")]


@router.post("", status_code=201)
def create_job(control: Control, user: Operator, request: JobRequest, response: Response) -> JobAnswer:
    """Creates a job. It is not started."""
    return _tagged(response, jobs.create(control, user, request))


@router.get("")
def list_jobs(control: Control, user: User, listing: ListingOf) -> JobList:
    """Lists the jobs in the user's scope, the newest first."""
    return jobs.list_all(control, user, listing)


@router.get("/{job_id}")
def show_job(control: Control, _: User, job_id: str, response: Response) -> JobAnswer:
    """Shows a job.

    All paths accept the job's name instead of its id.
    """
    return _tagged(response, jobs.show(control, job_id))


@router.delete("/{job_id}", status_code=204)
def delete_job(control: Control, user: Operator, job_id: str, keep_objects: KeepObjects = False) -> None:
    """Deletes a job that does not run, and then its stored objects.

    Savepoints stay. The event JOB_OBJECTS_DELETED reports how much was deleted, and where the savepoints are.
    """
    jobs.delete(control, user, job_id, keep_objects=keep_objects)


@router.post("/{job_id}/clone", status_code=201)
def clone_job(control: Control, user: Operator, job_id: str, request: CloneRequest, response: Response) -> JobAnswer:
    """Creates a job with this job's specification and state.

    This job is unchanged.

    The state comes from its latest completed checkpoint or savepoint, or from `restore_from`.
    """
    return _tagged(response, clones.clone(control, user, job_id, request))


@router.get("/{job_id}/attempts")
def list_attempts(control: Control, _: User, job_id: str, listing: ListingOf) -> AttemptList:
    """Lists a job's attempts, the newest first."""
    return jobs.list_attempts(control, job_id, listing)


@router.get("/{job_id}/events")
def list_events(control: Control, user: User, job_id: str, listing: ListingOf, chosen: FilterOf) -> EventList:
    """Lists a job's events, newest first."""
    return jobs.list_job_events(control, user, job_id, listing, chosen)


@router.get("/{job_id}/exceptions")
def list_exceptions(control: Control, _: User, job_id: str, listing: ListingOf) -> JobExceptionList:
    """Lists the failures of a job's runs, newest first.

    They have the tracebacks of the job's own code.
    """
    return exceptions.list_of(control, job_id, listing)


async def _log_part(
    attempt: AttemptNumber = None,
    tail_bytes: LogBytes = 64 << 10,
    offset: Annotated[
        int | None, Query(ge=0, le=NUMBER_MAX, description="Where to begin; default: `tail_bytes` before the end.")
    ] = None,
    limit_bytes: LogBytes = 64 << 10,
    search: Annotated[
        str | None, Query(min_length=1, max_length=200, description="Return the lines with this text, in any case.")
    ] = None,
) -> LogPart:
    return LogPart(attempt, tail_bytes, offset, limit_bytes, search)


@router.get("/{job_id}/logs")
def show_log(control: Control, user: User, job_id: str, part: Annotated[LogPart, Depends(_log_part)]) -> LogAnswer:
    """Shows a driver's log: its end, or lines by offset or text.

    To follow the log, ask again with `next_offset`. A log of another replica is fetched from that replica.
    """
    return logs.show(control, user, job_id, part)


def _tagged(response: Response, job: JobAnswer) -> JobAnswer:
    """Sets the ETag for the If-Match header of later changes."""
    response.headers["ETag"] = f'"{job.revision}"'
    return job
