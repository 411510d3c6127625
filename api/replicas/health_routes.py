"""The route of the health check."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from ..control_plane.dependencies import ContextOf
from ..problem import problem
from . import health

router = APIRouter(tags=["health"])


@router.get("/health")
def show_health(context: ContextOf) -> JSONResponse:
    """Shows the version, the state of the parts, and the leader.

    The parts are the database, the object store and the reconciler. No token is needed.
    """
    parts, errors = health.check(context)
    if errors:
        return problem(errors[0], **parts)
    return JSONResponse({"status": "ok", **parts, "role": context.pulse.role})
