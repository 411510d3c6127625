"""The routes of jobs, their attempts and exceptions."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from ..access.identities import Operator, User
from ..control_plane.dependencies import ContextOf, ListingOf
from ..control_plane.guarded_route import GuardedRoute
from . import clones, exceptions, jobs
from .schemas.job import AttemptList, CloneRequest, JobAnswer, JobList, JobRequest
from .schemas.job_exception import JobExceptionList

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=GuardedRoute)

KeepObjects = Annotated[bool, Query(description="Keep the job's checkpoints and log in the object store.")]


@router.post("", status_code=201)
def create_job(context: ContextOf, user: Operator, request: JobRequest, response: Response) -> JobAnswer:
    """Creates a job. It is not started."""
    return _tagged(response, jobs.create(context, user, request))


@router.get("")
def list_jobs(context: ContextOf, user: User, listing: ListingOf) -> JobList:
    """Lists the jobs in the user's scope, the newest first."""
    return jobs.list_all(context, user, listing)


@router.get("/{job_id}")
def show_job(context: ContextOf, _: User, job_id: str, response: Response) -> JobAnswer:
    """Shows a job.

    All paths accept the job's name instead of its id.
    """
    return _tagged(response, jobs.show(context, job_id))


@router.delete("/{job_id}", status_code=204)
def delete_job(context: ContextOf, user: Operator, job_id: str, keep_objects: KeepObjects = False) -> None:
    """Deletes a job that does not run, and then its stored objects.

    Savepoints stay. The event JOB_OBJECTS_DELETED reports how much was deleted, and where the savepoints are.
    """
    jobs.delete(context, user, job_id, keep_objects=keep_objects)


@router.post("/{job_id}/clone", status_code=201)
def clone_job(context: ContextOf, user: Operator, job_id: str, request: CloneRequest, response: Response) -> JobAnswer:
    """Creates a job with this job's specification and state.

    This job is unchanged.

    The state comes from its latest completed checkpoint or savepoint, or from `restore_from`.
    """
    return _tagged(response, clones.clone(context, user, job_id, request))


@router.get("/{job_id}/attempts")
def list_attempts(context: ContextOf, _: User, job_id: str, listing: ListingOf) -> AttemptList:
    """Lists a job's attempts, the newest first."""
    return jobs.list_attempts(context, job_id, listing)


@router.get("/{job_id}/exceptions")
def list_exceptions(context: ContextOf, _: User, job_id: str, listing: ListingOf) -> JobExceptionList:
    """Lists the failures of a job's runs, newest first.

    They have the tracebacks of the job's own code.
    """
    return exceptions.list_of(context, job_id, listing)


def _tagged(response: Response, job: JobAnswer) -> JobAnswer:
    """Sets the ETag for the If-Match header of later changes."""
    response.headers["ETag"] = f'"{job.revision}"'
    return job
