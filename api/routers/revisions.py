"""The routes of a job's revisions."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from ..access.identities import User
from ..schemas.base import NUMBER_MAX
from ..schemas.revision import (
    RevisionAnswer,
    RevisionDiffAnswer,
    RevisionList,
)
from ..services import revisions
from .dependencies import Control, ListingOf
from .guarded_route import GuardedRoute

router = APIRouter(prefix="/jobs/{job_id}", tags=["revisions"], route_class=GuardedRoute)

RevisionNumber = Annotated[int, Path(ge=1, le=NUMBER_MAX)]


@router.get("/revisions")
def list_revisions(control: Control, _: User, job_id: str, listing: ListingOf) -> RevisionList:
    """Lists a job's revisions, the newest first."""
    return revisions.list_of(control, job_id, listing)


@router.get("/revisions/{revision}")
def show_revision(control: Control, _: User, job_id: str, revision: RevisionNumber) -> RevisionAnswer:
    """Shows a revision, and how the last change to it ended."""
    return revisions.show(control, job_id, revision)


@router.get("/revisions/{revision}/diff")
def compare_revisions(
    control: Control, _: User, job_id: str, revision: RevisionNumber, to: Annotated[int, Query(ge=1, le=NUMBER_MAX)]
) -> RevisionDiffAnswer:
    """Compares two revisions of a job."""
    return revisions.compare(control, job_id, revision, to)
