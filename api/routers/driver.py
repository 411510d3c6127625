"""The routes that drivers call; the messages are those of `keyscale.jobs.protocol.messages`."""

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from keyscale.api.access.identities import Driver, ProvableAttempt
from keyscale.api.reports import drivers
from keyscale.api.routers.dependencies import Control
from keyscale.api.routers.guarded_route import GuardedRoute
from keyscale.jobs.protocol.control_address import Proof, prove
from keyscale.jobs.protocol.messages import (
    AttachRequest,
    AttachResponse,
    CheckpointReport,
    Heartbeat,
    HeartbeatResponse,
    StoreCredentials,
)

router = APIRouter(prefix="/driver", tags=["driver"], include_in_schema=False, route_class=GuardedRoute)


@router.post("/attach")
def attach(control: Control, driver: Driver, request: AttachRequest) -> AttachResponse:
    """A driver asks for work."""
    return drivers.attach(control, driver, request)


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
def heartbeat(control: Control, driver: Driver, message: Heartbeat) -> HeartbeatResponse:
    """A driver reports its state, and gets its commands."""
    return drivers.heartbeat(control, driver, message)


@router.post("/checkpoints", status_code=204)
def report_checkpoint(control: Control, driver: Driver, report: CheckpointReport) -> Response:
    """A driver reports a checkpoint's progress."""
    drivers.report_checkpoint(control, driver, report)
    return Response(status_code=204)
