"""The route that rebuilds jobs after the database was lost."""

from fastapi import APIRouter

from ..access.identities import Admin
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from . import recovered_jobs
from .schemas import RecoveredJobList, RecoverRequest

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)


@router.post("/recover")
def recover_jobs(context: ContextOf, user: Admin, request: RecoverRequest) -> RecoveredJobList:
    """Rebuilds jobs from the store after the database was lost.

    The jobs keep their ids, and are STOPPED; a start continues from the commit log. A job that the database has is
    unchanged. A job that is refused does not keep other jobs from being rebuilt. An answer has a few jobs, and a `next`
    for the rest.
    """
    return recovered_jobs.recover(context, user, request)
