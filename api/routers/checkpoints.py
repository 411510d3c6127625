"""The routes of a job's checkpoints."""

from fastapi import APIRouter

from keyscale.api.access.identities import Operator, User
from keyscale.api.routers.dependencies import CheckpointNumber, Control, ListingOf
from keyscale.api.routers.guarded_route import GuardedRoute
from keyscale.api.schemas.checkpoint import CheckpointConfigAnswer, CheckpointDetailAnswer, CheckpointsAnswer
from keyscale.api.schemas.operation import OperationAccepted, OperationRequest
from keyscale.api.services import checkpoints, operations

router = APIRouter(prefix="/jobs/{job_id}/checkpoints", tags=["checkpoints"], route_class=GuardedRoute)


@router.post("", status_code=202)
def trigger_checkpoint(
    control: Control, user: Operator, job_id: str, request: OperationRequest | None = None
) -> OperationAccepted:
    """Takes a checkpoint now; poll GET /operations/{operation_id}."""
    return operations.trigger_checkpoint(control, user, job_id, request or OperationRequest())


@router.get("")
def show_checkpoints(control: Control, _: User, job_id: str, listing: ListingOf) -> CheckpointsAnswer:
    """Shows counts, summary, latest and history of a job's checkpoints and savepoints, under Flink's names."""
    return checkpoints.show_statistics(control, job_id, listing)


@router.get("/config")
def show_checkpoint_config(control: Control, _: User, job_id: str) -> CheckpointConfigAnswer:
    """Shows how a job's checkpoints are taken."""
    return checkpoints.show_config(control, job_id)


@router.get("/{checkpoint_id}")
def show_checkpoint(control: Control, _: User, job_id: str, checkpoint_id: CheckpointNumber) -> CheckpointDetailAnswer:
    """Shows a checkpoint by operator and subtask."""
    return checkpoints.show_detail(control, job_id, checkpoint_id)
