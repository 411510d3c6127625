"""The routes of operations.

One route is for all kinds; each kind has a short form.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from keyscale.vocabulary import OperationKind, OperationStatus

from ..access.identities import Operator, User
from ..control_plane.dependencies import Control, ListingOf
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
    control: Control, user: Operator, job_id: str, request: AnyOperation, response: Response, if_match: IfMatch = None
) -> OperationAnswer:
    """Requests an operation of any kind.

    The same id with the same arguments again is the same operation. Poll it, or read its stream, by its id.
    """
    answer = operation_requests.request(control, user, job_id, request.kind, request, if_match)
    return _told(response, answer)


@router.get("/jobs/{job_id}/operations")
def list_operations(
    control: Control,
    _: User,
    job_id: str,
    listing: ListingOf,
    kind: Kinds = [],  # noqa: B006 - FastAPI copies it
    status: Statuses = [],  # noqa: B006 - FastAPI copies it
) -> OperationList:
    """Lists a job's operations, the newest first."""
    return operations.list_of(control, job_id, listing, kind, status)


@router.get("/operations/{operation_id}")
def show_operation(control: Control, _: User, operation_id: str) -> OperationAnswer:
    """Shows an operation by its id.

    Ids survive all restarts.
    """
    return operations.show(control, operation_id)


@router.post("/operations/{operation_id}/cancel", status_code=202)
def cancel_operation(control: Control, user: Operator, operation_id: str) -> OperationAnswer:
    """Cancels a change, such as a rescale; the job stays unchanged.

    Before the savepoint the old driver simply continues. After it, the job goes back to the savepoint, unless the new
    driver has committed a batch before: then the change has succeeded.
    """
    return operations.cancel(control, user, operation_id)


@router.post("/operations/{operation_id}/approve", **_ACCEPTED)
def approve_operation(control: Control, user: Operator, operation_id: str, response: Response) -> OperationAnswer:
    """Approves a change that waits, and begins it.

    Another user than the one who requested the change has to approve it. A cancel refuses the change.
    """
    return _told(response, operation_requests.approve(control, user, operation_id))


@router.post("/jobs/{job_id}/start", **_ACCEPTED)
def start_job(
    control: Control, user: Operator, job_id: str, response: Response, request: StartRequest | None = None
) -> OperationAnswer:
    """Starts a job.

    It starts from its latest checkpoint or savepoint if it has run before, or from `restore_from`. The start is
    COMPLETED when the job has processed its first input, or has found none.
    """
    return _ask(control, user, job_id, OperationKind.START, request or StartRequest(), response)


@router.post("/jobs/{job_id}/stop", **_ACCEPTED)
def stop_job(
    control: Control, user: Operator, job_id: str, response: Response, request: OperationRequest | None = None
) -> OperationAnswer:
    """Stops a job with a savepoint.

    The stop is COMPLETED when the savepoint is published and the job is STOPPED.
    """
    return _ask(control, user, job_id, OperationKind.STOP, request, response)


@router.post("/jobs/{job_id}/drain", **_ACCEPTED)
def drain_job(
    control: Control, user: Operator, job_id: str, response: Response, request: OperationRequest | None = None
) -> OperationAnswer:
    """Drains a job.

    It processes the present input, fires all event-time timers, takes a savepoint and ends the job. The drain is
    COMPLETED when the job is FINISHED.
    """
    return _ask(control, user, job_id, OperationKind.DRAIN, request, response)


@router.post("/jobs/{job_id}/cancel", **_ACCEPTED)
def cancel_job(
    control: Control, user: Operator, job_id: str, response: Response, request: OperationRequest | None = None
) -> OperationAnswer:
    """Ends a job now, without a savepoint.

    The job can be started again from its latest checkpoint. The cancel is COMPLETED when the job is STOPPED.
    """
    return _ask(control, user, job_id, OperationKind.CANCEL, request, response)


@router.post("/jobs/{job_id}/restart", **_ACCEPTED)
def restart_job(
    control: Control, user: Operator, job_id: str, response: Response, request: OperationRequest | None = None
) -> OperationAnswer:
    """Replaces a job's driver by a new driver of the same revision.

    The new driver starts beside the running one, and continues from a savepoint; a job that keeps failing continues
    from its latest checkpoint.
    """
    return _ask(control, user, job_id, OperationKind.RESTART, request, response)


@router.post("/jobs/{job_id}/checkpoint", **_ACCEPTED)
def take_checkpoint(
    control: Control, user: Operator, job_id: str, response: Response, request: OperationRequest | None = None
) -> OperationAnswer:
    """Takes a checkpoint of a running job now."""
    return _ask(control, user, job_id, OperationKind.CHECKPOINT, request, response)


@router.post("/jobs/{job_id}/savepoint", **_ACCEPTED)
def take_savepoint(
    control: Control, user: Operator, job_id: str, response: Response, request: OperationRequest | None = None
) -> OperationAnswer:
    """Takes a savepoint while the job continues.

    The savepoint has the operation's id.
    """
    return _ask(control, user, job_id, OperationKind.SAVEPOINT, request, response)


@router.post("/jobs/{job_id}/rescale", **_ACCEPTED)
def rescale_job(
    control: Control, user: Operator, job_id: str, request: RescaleRequest, response: Response
) -> OperationAnswer:
    """Changes a running job's parallelism.

    The running driver prepares the new subtasks and switches between two batches. Where it cannot, a new driver
    continues from a savepoint. After a failure the job goes back to its old parallelism.

    With `dry_run` it shows the plan: the ranges, bytes and files of each subtask, the skew, and the expected downtime.
    """
    return _ask(control, user, job_id, OperationKind.RESCALE, request, response)


@router.patch("/jobs/{job_id}", **_ACCEPTED)
def update_job(  # noqa: PLR0917 - FastAPI passes them by name
    control: Control, user: Operator, job_id: str, request: UpdateRequest, response: Response, if_match: IfMatch = None
) -> OperationAnswer:
    """Changes a job's specification: its program, parameters, parallelism or settings.

    A running job continues with the new revision (202); after a failure it goes back to the old revision. The
    operation is COMPLETED at once (200) for a job that does not run, which starts with the new revision, and for
    settings that the running driver follows.

    With `dry_run` it shows the plan, and the header If-Match is not needed. A new program, or new parameters, secrets
    or Spark settings, are tried in a separate process: the script runs up to `env.execute()`, and each operator's
    function is opened on empty state.
    """
    answer = operation_requests.request(control, user, job_id, OperationKind.UPGRADE, request, if_match)
    return _told(response, answer)


@router.post("/jobs/{job_id}/rollback", **_ACCEPTED)
def roll_job_back(
    control: Control, user: Operator, job_id: str, request: RollbackRequest, response: Response
) -> OperationAnswer:
    """Takes a job back to an earlier revision.

    The state is the revision's savepoint or the current state.

    A running job first takes a savepoint of its current state, so that nothing is lost.
    """
    return _ask(control, user, job_id, OperationKind.ROLLBACK, request, response)


def _ask(  # noqa: PLR0917 - the parts of a request
    control: Control,
    user: Operator,
    job_id: str,
    kind: OperationKind,
    request: OperationRequest | None,
    response: Response,
) -> OperationAnswer:
    return _told(response, operation_requests.request(control, user, job_id, kind, request or OperationRequest()))


def _told(response: Response, answer: OperationAnswer) -> OperationAnswer:
    response.status_code = 200 if answer.status is None or answer.status.has_ended else 202
    if answer.to_revision is not None:
        response.headers["ETag"] = f'"{answer.to_revision}"'
    return answer
