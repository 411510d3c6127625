"""The routes of a job's rescales."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from ..access.identities import Operator, User
from ..schemas.change import RescaleAnswer, RescaleList, RescaleRequest
from ..schemas.change_plan import PlanAnswer
from ..schemas.revision import SpecificationChange
from ..services import changes, plans
from .dependencies import Control, ListingOf
from .guarded_route import GuardedRoute

router = APIRouter(prefix="/jobs/{job_id}", tags=["rescales"], route_class=GuardedRoute)


@router.post(
    "/rescale",
    status_code=202,
    response_model=RescaleAnswer,
    responses={200: {"model": PlanAnswer, "description": "A dry run: nothing was changed."}},
)
def rescale_job(control: Control, user: Operator, job_id: str, request: RescaleRequest) -> RescaleAnswer | JSONResponse:
    """Changes a running job's parallelism.

    The phases are savepoint, stop, restore and verify; after a failure the job goes back to its old parallelism.

    With `dry_run` it shows the plan: the ranges, bytes and files of each subtask, the skew, and the expected downtime.
    """
    if request.dry_run:
        planned = plans.plan(control, user, job_id, SpecificationChange(spec={"parallelism": request.parallelism}))
        return JSONResponse(planned.model_dump(mode="json"))
    return changes.request_rescale(control, user, job_id, request)


@router.get("/rescales")
def list_rescales(control: Control, _: User, job_id: str, listing: ListingOf) -> RescaleList:
    """Lists a job's rescales, the newest first."""
    return changes.list_rescales(control, job_id, listing)


@router.get("/rescales/{rescale_id}")
def show_rescale(control: Control, _: User, job_id: str, rescale_id: str) -> RescaleAnswer:
    """Shows a rescale with its phases and the downtime."""
    return changes.show_rescale(control, job_id, rescale_id)
