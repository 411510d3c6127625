"""The route that rebuilds jobs after the database was lost."""

from fastapi import APIRouter

from ..access.identities import Admin
from ..schemas.recovered_job import RecoveredJobList, RecoverRequest
from ..services import recovered_jobs
from .dependencies import Control
from .guarded_route import GuardedRoute

router = APIRouter(tags=["jobs"], route_class=GuardedRoute)


@router.post("/recover")
def recover_jobs(control: Control, user: Admin, request: RecoverRequest) -> RecoveredJobList:
    """Rebuilds jobs from the store after the database was lost.

    The jobs keep their ids, and are STOPPED; a start continues from the commit log. A job that the database has is
    unchanged. A job that is refused does not keep other jobs from being rebuilt. An answer has a few jobs, and a `next`
    for the rest.
    """
    return recovered_jobs.recover(control, user, request)
