"""The routes of diagnostics."""

from fastapi import APIRouter

from ..access.identities import Operator
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from . import diagnostics
from .schemas import DiagnosticAnswer, DiagnosticList, DiagnosticRequest

router = APIRouter(prefix="/jobs/{job_id}/diagnostics", tags=["diagnostics"], route_class=GuardedRoute)


@router.post("", status_code=202)
def request_diagnostic(context: ContextOf, user: Operator, job_id: str, request: DiagnosticRequest) -> DiagnosticAnswer:
    """Requests a look into a running job, beside its batches.

    Poll it by its id: the driver answers within seconds, also while a batch hangs. The same id again is the same
    diagnostic.
    """
    return diagnostics.request(context, user, job_id, request)


@router.get("")
def list_diagnostics(context: ContextOf, _: Operator, job_id: str) -> DiagnosticList:
    """Lists the latest diagnostics of a job, the newest first."""
    return diagnostics.list_of(context, job_id)


@router.get("/{diagnostic_id}")
def show_diagnostic(context: ContextOf, _: Operator, job_id: str, diagnostic_id: str) -> DiagnosticAnswer:
    """Shows a diagnostic with its parts."""
    return diagnostics.show(context, job_id, diagnostic_id)
