"""The route of checks of programs.

It has a router of its own, as a request with a body takes a place of uploads in the router of artifacts.
"""

from fastapi import APIRouter

from ..access.identities import Operator
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from . import program_checks
from .schemas import ProgramCheckAnswer, ProgramCheckRequest

router = APIRouter(prefix="/artifacts", tags=["artifacts"], route_class=GuardedRoute)


@router.post("/{artifact_id}/check")
def check_artifact(
    context: ContextOf, user: Operator, artifact_id: str, request: ProgramCheckRequest | None = None
) -> ProgramCheckAnswer:
    """Checks a program without a job.

    The program runs up to `env.execute()`, and its functions are opened on empty state. The answer has the operators,
    states, sources and sinks that it declares, or why a job could not start with it. Settings, libraries and secrets
    have the rules of a new job.
    """
    return program_checks.check(context, user, artifact_id, request or ProgramCheckRequest())
