"""The routes that drivers call.

`keyscale.jobs.protocol.messages` has the messages.

A job's own code can send arbitrary requests with its driver's token. Reports are read in the thread that answers them,
and the processor time of both is charged to the job. A job has one large report in progress, and one report is read at
a time: parsing takes twenty times the memory of its text.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from keyscale.address_proof import prove
from keyscale.db.repositories.operations import Listening
from keyscale.jobs.protocol.control_address import UNKNOWN, Proof
from keyscale.jobs.protocol.messages import (
    AttachRequest,
    AttachResponse,
    Call,
    CheckpointReport,
    DiagnosticReport,
    Heartbeat,
    HeartbeatResponse,
    Message,
    StoreCredentials,
)

from ..access.identities import Driver, LostAttempt, ProvableAttempt
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import ReportRoute
from ..shapes import NUMBER_MAX
from . import drivers

Report = TypeVar("Report", bound=Message)
WAIT_S_MAX = 60.0


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect as error:
        raise HTTPException(400, "the body breaks off") from error


Body = Annotated[bytes, Depends(_body)]


def _read(context: ContextOf, kind: type[Report], body: bytes) -> Report:
    is_large = len(body) > ReportRoute.unguarded_bytes_max
    with context.report_reading if is_large else nullcontext():
        return _validated(kind, body)


def _validated(kind: type[Report], body: bytes) -> Report:
    try:
        return kind.model_validate(json.loads(body))  # pydantic's own reader refuses half of a surrogate pair
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found]) from error
    except (ValueError, RecursionError) as error:
        raise RequestValidationError([{"loc": ("body",), "msg": "This is not JSON."}]) from error


@contextmanager
def _charged(context: ContextOf, driver: Driver) -> Iterator[None]:
    began = time.thread_time()
    try:
        yield
    finally:
        context.rates.reports_ms.charge(driver.job_id, 1000 * (time.thread_time() - began))


router = APIRouter(prefix="/driver", tags=["driver"], include_in_schema=False, route_class=ReportRoute)


# First, as drivers send these all the time: each route before a request's route costs a comparison.
@router.post("/heartbeat")
def heartbeat(context: ContextOf, driver: Driver, body: Body) -> HeartbeatResponse:
    """Takes a driver's state, and answers with its commands."""
    with _charged(context, driver):
        return drivers.heartbeat(context, driver, _read(context, Heartbeat, body))


@router.get("/call")
async def wait_for_call(
    context: ContextOf,
    driver: Driver,
    revision: Annotated[int, Query(ge=1, le=NUMBER_MAX)],
    seconds: Annotated[float, Query(ge=0, le=WAIT_S_MAX)],
) -> Call:
    """Waits until the control plane wants a heartbeat of the driver."""
    listening = Listening(driver.job_id, driver.attempt, revision)
    return Call(is_called=driver.over or await context.calls.wait(listening, seconds))


@router.post("/attach")
def attach(context: ContextOf, driver: Driver, body: Body) -> AttachResponse:
    """Answers a driver's request for work."""
    with _charged(context, driver):
        return drivers.attach(context, driver, _read(context, AttachRequest, body))


@router.get("/proof")
def prove_knowledge(context: ContextOf, attempt: ProvableAttempt, nonce: str = "") -> Proof:
    """Proves to a driver that this control plane knows its attempt.

    The driver sends no token before that.
    """
    return Proof(proof=prove(attempt, nonce, context.settings.control_url))


@router.get("/unknown")
def prove_ignorance(context: ContextOf, lost: LostAttempt, nonce: str = "") -> Proof:
    """Proves to a driver that this database has lost its attempt.

    A backup that is older than the attempt has.
    """
    return Proof(proof=prove(lost, nonce, context.settings.control_url, UNKNOWN))


@router.get("/artifact")
def read_artifact(context: ContextOf, driver: Driver) -> StreamingResponse:
    """Sends a driver its job's artifact."""
    return StreamingResponse(drivers.artifact_bytes(context, driver), media_type="application/octet-stream")


@router.get("/store-credentials")
def give_store_credentials(context: ContextOf, driver: Driver) -> StoreCredentials:
    """Gives a driver credentials for its job's objects in the store."""
    return drivers.store_credentials(context, driver)


@router.post("/checkpoints", status_code=204)
def report_checkpoint(context: ContextOf, driver: Driver, body: Body) -> Response:
    """Takes a driver's report of a checkpoint's progress."""
    with _charged(context, driver):
        drivers.report_checkpoint(context, driver, _read(context, CheckpointReport, body))
    return Response(status_code=204)


@router.post("/diagnostics", status_code=204)
def report_diagnostic(context: ContextOf, driver: Driver, body: Body) -> Response:
    """Takes a driver's report of a diagnostic."""
    with _charged(context, driver):
        drivers.report_diagnostic(context, driver, _read(context, DiagnosticReport, body))
    return Response(status_code=204)
