"""The routes of a job's revisions."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from ..access.identities import User
from ..control_plane.dependencies import ContextOf, ListingOf
from ..control_plane.guarded_route import GuardedRoute
from ..shapes import NUMBER_MAX, TEXT_PATTERN
from . import revisions
from .schemas import RevisionAnswer, RevisionDiffAnswer, RevisionList

router = APIRouter(prefix="/jobs/{job_id}", tags=["revisions"], route_class=GuardedRoute)

CreatedBy = Annotated[
    str | None, Query(pattern=TEXT_PATTERN, max_length=200, description="Only revisions that this user created.")
]
RevisionNumber = Annotated[int, Path(ge=1, le=NUMBER_MAX)]


@router.get("/revisions")
def list_revisions(
    context: ContextOf, _: User, job_id: str, listing: ListingOf, created_by: CreatedBy = None
) -> RevisionList:
    """Lists a job's revisions, the newest first."""
    return revisions.list_of(context, job_id, listing, created_by)


@router.get("/revisions/{revision}")
def show_revision(context: ContextOf, _: User, job_id: str, revision: RevisionNumber) -> RevisionAnswer:
    """Shows a revision, and how the last change to it ended."""
    return revisions.show(context, job_id, revision)


@router.get("/revisions/{revision}/diff")
def compare_revisions(
    context: ContextOf, _: User, job_id: str, revision: RevisionNumber, to: Annotated[int, Query(ge=1, le=NUMBER_MAX)]
) -> RevisionDiffAnswer:
    """Compares two revisions of a job."""
    return revisions.compare(context, job_id, revision, to)
