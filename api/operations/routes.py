"""The routes of operations.

One route is for all kinds; each kind has a short form.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from keyscale.vocabulary import PLAIN, OperationKind, OperationStatus

from ..access.identities import Operator, User
from ..control_plane.dependencies import ContextOf, ListingOf
from ..control_plane.guarded_route import GuardedRoute
from . import operation_requests, operations
from .schemas.any_operation import AnyOperation
from .schemas.change import RollbackRequest, UpdateRequest
from .schemas.operation import OperationAnswer, OperationList, OperationRequest, RescaleRequest, StartRequest

router = APIRouter(tags=["operations"], route_class=GuardedRoute)

IfMatch = Annotated[
    str | None,
    Header(
        max_length=1000,
        description="Required for an upgrade: the ETag of the job, which names its revision, or `*` for any revision.",
        examples=['"3"'],
    ),
]
Kinds = Annotated[list[OperationKind], Query(max_length=len(OperationKind), description="Only these kinds.")]
Statuses = Annotated[list[OperationStatus], Query(max_length=len(OperationStatus), description="Only these statuses.")]


_ACCEPTED: dict[str, Any] = {
    "status_code": 202,
    "responses": {200: {"model": OperationAnswer, "description": "Done, or a dry run."}},
}


@router.post("/jobs/{job_id}/operations", **_ACCEPTED)
def request_operation(  # noqa: PLR0917 - FastAPI passes them by name
    context: ContextOf, user: Operator, job_id: str, request: AnyOperation, response: Response, if_match: IfMatch = None
) -> OperationAnswer:
    """Requests an operation of any kind.

    The same id with the same arguments again is the same operation. Poll it, or read its stream, by its id.
    """
    answer = operation_requests.request(context, user, job_id, request.kind, request, if_match)
    return _told(response, answer)


@router.get("/jobs/{job_id}/operations")
def list_operations(
    context: ContextOf,
    _: User,
    job_id: str,
    listing: ListingOf,
    kind: Kinds = [],  # noqa: B006 - FastAPI copies it
    status: Statuses = [],  # noqa: B006 - FastAPI copies it
) -> OperationList:
    """Lists a job's operations, the newest first."""
    return operations.list_of(context, job_id, listing, kind, status)


@router.get("/operations/{operation_id}")
def show_operation(context: ContextOf, _: User, operation_id: str) -> OperationAnswer:
    """Shows an operation by its id.

    Ids survive all restarts.
    """
    return operations.show(context, operation_id)


@router.post("/operations/{operation_id}/cancel", status_code=202)
def cancel_operation(context: ContextOf, user: Operator, operation_id: str) -> OperationAnswer:
    """Cancels a change, such as a rescale; the job stays unchanged.

    Before the savepoint the old driver simply continues. After it, the job goes back to the savepoint, unless the new
    driver has committed a batch before: then the change has succeeded.
    """
    return operations.cancel(context, user, operation_id)


@router.post("/operations/{operation_id}/approve", **_ACCEPTED)
def approve_operation(context: ContextOf, user: Operator, operation_id: str, response: Response) -> OperationAnswer:
    """Approves a change that waits, and begins it.

    Another user than the one who requested the change has to approve it. A cancel refuses the change.
    """
    return _told(response, operation_requests.approve(context, user, operation_id))


@router.post("/jobs/{job_id}/start", **_ACCEPTED)
def start_job(
    context: ContextOf, user: Operator, job_id: str, response: Response, request: StartRequest | None = None
) -> OperationAnswer:
    """Starts a job.

    It starts from its latest checkpoint or savepoint if it has run before, or from `restore_from`. The start is
    COMPLETED when the job has processed its first input, or has found none.
    """
    return _ask(context, user, job_id, OperationKind.START, request or StartRequest(), response)


def _short_form(kind: OperationKind) -> Callable[..., OperationAnswer]:
    def request_kind(
        context: ContextOf, user: Operator, job_id: str, response: Response, request: OperationRequest | None = None
    ) -> OperationAnswer:
        return _ask(context, user, job_id, kind, request or OperationRequest(), response)

    return request_kind


for _kind in PLAIN:
    router.add_api_route(
        f"/jobs/{{job_id}}/{_kind.short_form}",
        _short_form(_kind),
        methods=["POST"],
        name=f"take_{_kind.lower()}" if _kind.is_snapshot else f"{_kind.lower()}_job",
        description=_kind.description,
        **_ACCEPTED,
    )


@router.post("/jobs/{job_id}/rescale", **_ACCEPTED)
def rescale_job(
    context: ContextOf, user: Operator, job_id: str, request: RescaleRequest, response: Response
) -> OperationAnswer:
    """Changes a running job's parallelism.

    The running driver prepares the new subtasks and switches between two batches. Where it cannot, a new driver
    continues from a savepoint. After a failure the job goes back to its old parallelism.

    With `dry_run` it shows the plan: the ranges, bytes and files of each subtask, the skew, and the expected downtime.
    """
    return _ask(context, user, job_id, OperationKind.RESCALE, request, response)


@router.patch("/jobs/{job_id}", **_ACCEPTED)
def update_job(  # noqa: PLR0917 - FastAPI passes them by name
    context: ContextOf,
    user: Operator,
    job_id: str,
    request: UpdateRequest,
    response: Response,
    if_match: IfMatch = None,
) -> OperationAnswer:
    """Changes a job's specification: its program, parameters, parallelism or settings.

    A running job continues with the new revision (202); after a failure it goes back to the old revision. The
    operation is COMPLETED at once (200) for a job that does not run, which starts with the new revision, and for
    settings that the running driver follows.

    With `dry_run` it shows the plan, and the header If-Match is not needed. A new program, or new parameters, secrets
    or Spark settings, are tried in a separate process: the script runs up to `env.execute()`, and each operator's
    function is opened on empty state.
    """
    answer = operation_requests.request(context, user, job_id, OperationKind.UPGRADE, request, if_match)
    return _told(response, answer)


@router.post("/jobs/{job_id}/rollback", **_ACCEPTED)
def roll_job_back(
    context: ContextOf, user: Operator, job_id: str, request: RollbackRequest, response: Response
) -> OperationAnswer:
    """Takes a job back to an earlier revision.

    The state is the revision's savepoint or the current state.

    A running job first takes a savepoint of its current state, so that nothing is lost.
    """
    return _ask(context, user, job_id, OperationKind.ROLLBACK, request, response)


def _ask(  # noqa: PLR0917 - the parts of a request
    context: ContextOf,
    user: Operator,
    job_id: str,
    kind: OperationKind,
    request: OperationRequest,
    response: Response,
) -> OperationAnswer:
    return _told(response, operation_requests.request(context, user, job_id, kind, request))


def _told(response: Response, answer: OperationAnswer) -> OperationAnswer:
    response.status_code = 200 if answer.status is None or answer.status.has_ended else 202
    if answer.to_revision is not None:
        response.headers["ETag"] = f'"{answer.to_revision}"'
    return answer
