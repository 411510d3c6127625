"""The routes of a job's savepoints."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from keyscale.vocabulary import SnapshotOwner

from ..access.identities import Operator, User
from ..control_plane.dependencies import ContextOf, DryRun, ListingOf
from ..control_plane.guarded_route import GuardedRoute
from . import savepoints, snapshot_deletions
from .schemas.savepoint import SavepointAnswer, SavepointList
from .schemas.snapshot_maintenance import DeletionAnswer

Owner = Annotated[SnapshotOwner | None, Query(description="Only savepoints of this owner.")]

router = APIRouter(prefix="/jobs/{job_id}/savepoints", tags=["savepoints"], route_class=GuardedRoute)


@router.get("")
def list_savepoints(context: ContextOf, _: User, job_id: str, listing: ListingOf, owner: Owner = None) -> SavepointList:
    """Lists a job's savepoints, newest first.

    Savepoints of stops and rescales are included. A savepoint in progress is an operation.
    """
    return savepoints.list_of(context, job_id, listing, owner)


@router.get("/{savepoint_id}")
def show_savepoint(context: ContextOf, _: User, job_id: str, savepoint_id: str) -> SavepointAnswer:
    """Shows a savepoint; its operation shows how it was taken."""
    return savepoints.show(context, job_id, savepoint_id)


@router.post("/{savepoint_id}/keep")
def keep_savepoint(context: ContextOf, user: Operator, job_id: str, savepoint_id: str) -> SavepointAnswer:
    """Keeps a savepoint that was taken for a change.

    It is then the user's, and the platform never deletes it.
    """
    return savepoints.keep(context, user, job_id, savepoint_id)


@router.delete(
    "/{savepoint_id}",
    status_code=202,
    responses={200: {"model": DeletionAnswer, "description": "A dry run: nothing was changed."}},
)
def delete_savepoint(  # noqa: PLR0917 - FastAPI passes them by name
    context: ContextOf, user: Operator, job_id: str, savepoint_id: str, response: Response, dry_run: DryRun = False
) -> DeletionAnswer:
    """Deletes an unneeded savepoint.

    A dry run shows what the deletion would free, and why it would be refused.
    """
    response.status_code = 200 if dry_run else 202
    return snapshot_deletions.delete_savepoint(context, user, job_id, savepoint_id, dry_run=dry_run)
