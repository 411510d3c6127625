"""The routes that drivers call; the messages are those of `keyscale.jobs.protocol.messages`.

A job's own code can send whatever it likes with its driver's token. Reports are read in the thread that answers them,
and the processor time of both is charged to the job. A job has one large report in progress, and one is read at a time:
what is read takes twenty times the memory of its text.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from keyscale.jobs.protocol.control_address import Proof, prove
from keyscale.jobs.protocol.messages import (
    AttachRequest,
    AttachResponse,
    CheckpointReport,
    Heartbeat,
    HeartbeatResponse,
    Message,
    StoreCredentials,
)

from ..access.identities import Driver, ProvableAttempt
from ..reports import drivers
from .dependencies import Control
from .guarded_route import ReportRoute

Report = TypeVar("Report", bound=Message)


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect as error:
        raise HTTPException(400, "the body breaks off") from error


Body = Annotated[bytes, Depends(_body)]


def _read(control: Control, kind: type[Report], body: bytes) -> Report:
    is_large = len(body) > ReportRoute.unguarded_bytes_max
    with control.report_reading if is_large else nullcontext():
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
def _charged(control: Control, driver: Driver) -> Iterator[None]:
    began = time.thread_time()
    try:
        yield
    finally:
        control.rates.reports_ms.charge(driver.job_id, 1000 * (time.thread_time() - began))


router = APIRouter(prefix="/driver", tags=["driver"], include_in_schema=False, route_class=ReportRoute)


@router.post("/attach")
def attach(control: Control, driver: Driver, body: Body) -> AttachResponse:
    """A driver asks for work."""
    with _charged(control, driver):
        return drivers.attach(control, driver, _read(control, AttachRequest, body))


@router.get("/proof")
def prove_knowledge(control: Control, attempt: ProvableAttempt, nonce: str = "") -> Proof:
    """A driver that has lost its control plane asks whether this one knows its attempt. It sends no token."""
    return Proof(proof=prove(attempt, nonce, control.settings.control_url))


@router.get("/artifact")
def read_artifact(control: Control, driver: Driver) -> StreamingResponse:
    """A driver fetches its job's artifact."""
    return StreamingResponse(drivers.artifact_bytes(control, driver), media_type="application/octet-stream")


@router.get("/store-credentials")
def give_store_credentials(control: Control, driver: Driver) -> StoreCredentials:
    """A driver asks for credentials of the object store that reach its own job."""
    return drivers.store_credentials(control, driver)


@router.post("/heartbeat")
def heartbeat(control: Control, driver: Driver, body: Body) -> HeartbeatResponse:
    """A driver reports its state, and gets its commands."""
    with _charged(control, driver):
        return drivers.heartbeat(control, driver, _read(control, Heartbeat, body))


@router.post("/checkpoints", status_code=204)
def report_checkpoint(control: Control, driver: Driver, body: Body) -> Response:
    """A driver reports a checkpoint's progress."""
    with _charged(control, driver):
        drivers.report_checkpoint(control, driver, _read(control, CheckpointReport, body))
    return Response(status_code=204)
