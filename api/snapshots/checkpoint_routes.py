"""The routes of a job's checkpoints."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from keyscale.vocabulary import CheckpointStatus

from ..access.identities import Operator, User
from ..control_plane.dependencies import CheckpointNumber, ContextOf, DryRun, ListingOf
from ..control_plane.guarded_route import GuardedRoute
from ..shapes import NUMBER_MAX
from . import checkpoints, comparisons, snapshot_deletions, snapshot_sql, verifications
from .schemas.checkpoint import CheckpointConfigAnswer, CheckpointDetailAnswer, CheckpointsAnswer
from .schemas.snapshot_maintenance import ComparisonAnswer, DeletionAnswer, VerificationAnswer, VerifyRequest
from .schemas.snapshot_sql import SqlAnswer, SqlRequest

router = APIRouter(prefix="/jobs/{job_id}/checkpoints", tags=["checkpoints"], route_class=GuardedRoute)

Statuses = Annotated[
    list[CheckpointStatus],
    Query(max_length=len(CheckpointStatus), description="Only these statuses in the history."),
]


@router.get("")
def show_checkpoints(
    context: ContextOf,
    _: User,
    job_id: str,
    listing: ListingOf,
    status: Statuses = [],  # noqa: B006 - FastAPI copies it
) -> CheckpointsAnswer:
    """Shows statistics of a job's checkpoints and savepoints.

    They are counts, summary, latest and history, with Flink's names.
    """
    return checkpoints.show_statistics(context, job_id, listing, status)


@router.get("/config")
def show_checkpoint_config(context: ContextOf, _: User, job_id: str) -> CheckpointConfigAnswer:
    """Shows how a job's checkpoints are taken."""
    return checkpoints.show_config(context, job_id)


@router.delete(
    "/{checkpoint_id:int}",
    status_code=202,
    responses={200: {"model": DeletionAnswer, "description": "A dry run: nothing was changed."}},
)
def delete_checkpoint(  # noqa: PLR0917 - FastAPI passes them by name
    context: ContextOf,
    user: Operator,
    job_id: str,
    checkpoint_id: CheckpointNumber,
    response: Response,
    dry_run: DryRun = False,
) -> DeletionAnswer:
    """Deletes an unneeded checkpoint or savepoint.

    Its files are deleted if no other snapshot names them.

    Its objects are deleted in the background; an event reports when. A dry run shows what the deletion would free, and
    why it would be refused.
    """
    response.status_code = 200 if dry_run else 202
    return snapshot_deletions.delete_checkpoint(context, user, job_id, checkpoint_id, dry_run=dry_run)


@router.post("/{checkpoint_id:int}/verify", status_code=202)
def verify_checkpoint(
    context: ContextOf,
    user: Operator,
    job_id: str,
    checkpoint_id: CheckpointNumber,
    request: VerifyRequest | None = None,
) -> VerificationAnswer:
    """Verifies a checkpoint or savepoint in the background.

    The verification checks that all its files exist and that its job could start from it.
    """
    hashes = (request or VerifyRequest()).hashes
    return verifications.begin(context, user, job_id, checkpoint_id, hashes=hashes)


@router.get("/{checkpoint_id:int}/verification")
def show_verification(context: ContextOf, _: User, job_id: str, checkpoint_id: CheckpointNumber) -> VerificationAnswer:
    """Shows the progress or result of a snapshot's last verification."""
    return verifications.show(context, job_id, checkpoint_id)


@router.get("/{checkpoint_id:int}/compare")
def compare_checkpoints(  # noqa: PLR0917 - FastAPI passes them by name
    context: ContextOf,
    user: User,
    job_id: str,
    checkpoint_id: CheckpointNumber,
    to: Annotated[int, Query(ge=1, le=NUMBER_MAX)],
    listing: ListingOf,
) -> ComparisonAnswer:
    """Compares two checkpoints or savepoints of a job.

    The answer has sizes by operator, and shared files.
    """
    return comparisons.compare(context, user, job_id, checkpoint_id, to, listing)


@router.post("/{checkpoint_id:int}/sql")
def run_sql(
    context: ContextOf, user: Operator, job_id: str, checkpoint_id: CheckpointNumber, request: SqlRequest
) -> SqlAnswer:
    """Runs a SELECT over the state in a checkpoint or savepoint.

    The statement can reach neither files nor the network, and ends at limits of rows, time and memory.
    """
    return snapshot_sql.run(context, user, job_id, checkpoint_id, request)


@router.get("/{checkpoint_id:int}")
def show_checkpoint(
    context: ContextOf, _: User, job_id: str, checkpoint_id: CheckpointNumber
) -> CheckpointDetailAnswer:
    """Shows a checkpoint by operator and subtask."""
    return checkpoints.show_detail(context, job_id, checkpoint_id)
