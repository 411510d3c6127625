"""The routes of a job's revisions, and of the changes between them."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response

from ..access.identities import Operator, User
from ..schemas.base import NUMBER_MAX
from ..schemas.change import ChangeAnswer, ChangeList
from ..schemas.revision import (
    RevisionAnswer,
    RevisionDiffAnswer,
    RevisionList,
    RollbackRequest,
    UpdateAnswer,
    UpdateRequest,
)
from ..services import changes, revisions
from .dependencies import Control, ListingOf
from .guarded_route import GuardedRoute

router = APIRouter(prefix="/jobs/{job_id}", tags=["revisions"], route_class=GuardedRoute)

RevisionNumber = Annotated[int, Path(ge=1, le=NUMBER_MAX)]
IfMatch = Annotated[str | None, Header(max_length=1000, description="The ETag of the job, which names its revision.")]


@router.patch("", status_code=202, responses={200: {"model": UpdateAnswer, "description": "Done already."}})
def update_job(  # noqa: PLR0917 - FastAPI passes them by name
    control: Control, user: Operator, job_id: str, request: UpdateRequest, response: Response, if_match: IfMatch = None
) -> UpdateAnswer:
    """Changes a job's specification: its program, parameters, parallelism or settings.

    A running job continues with the new revision, by a change to poll (202); after a failure it goes back to the old
    revision. A job that does not run starts with the new revision (200).
    """
    answer = revisions.update(control, user, job_id, request, if_match)
    return _told(response, answer)


@router.post("/rollback", status_code=202, responses={200: {"model": UpdateAnswer, "description": "Done already."}})
def roll_job_back(
    control: Control, user: Operator, job_id: str, request: RollbackRequest, response: Response
) -> UpdateAnswer:
    """Takes a job back to an earlier revision.

    The state is the revision's savepoint or the current state.

    A running job first takes a savepoint of its current state, so that nothing is lost.
    """
    return _told(response, revisions.roll_back(control, user, job_id, request))


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


@router.get("/changes")
def list_changes(control: Control, _: User, job_id: str, listing: ListingOf) -> ChangeList:
    """Lists a job's changes of revision, newest first.

    Rescales are changes.
    """
    return changes.list_changes(control, job_id, listing)


@router.get("/changes/{change_id}")
def show_change(control: Control, _: User, job_id: str, change_id: str) -> ChangeAnswer:
    """Shows a change with its phases, its downtime and its failure.

    A change has a failure if it was rolled back.
    """
    return changes.show_change(control, job_id, change_id)


@router.post("/changes/{change_id}/cancel", status_code=202)
def cancel_change(control: Control, user: Operator, job_id: str, change_id: str) -> ChangeAnswer:
    """Cancels a change, such as a rescale; the job stays unchanged.

    Before the savepoint the old driver simply continues. After it, the job goes back to the savepoint, unless the new
    driver has committed a batch before: then the change has succeeded.
    """
    return changes.cancel(control, user, job_id, change_id)


def _told(response: Response, answer: UpdateAnswer) -> UpdateAnswer:
    response.status_code = 200 if answer.change is None else 202
    response.headers["ETag"] = f'"{answer.job.revision}"'
    return answer
