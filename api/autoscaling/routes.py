"""The routes of the autoscaler."""

from typing import Annotated

from fastapi import APIRouter, Query

from keyscale.vocabulary import KEY_GROUPS_MAX

from ..access.identities import User
from ..control_plane.dependencies import ContextOf, ListingOf
from ..control_plane.guarded_route import GuardedRoute
from . import decisions
from .schemas import AutoscalerAnswer, ReplayAnswer, ScalingDecisionList

router = APIRouter(prefix="/jobs/{job_id}/autoscaler", tags=["autoscaler"], route_class=GuardedRoute)


@router.get("")
def show_autoscaler(context: ContextOf, _: User, job_id: str) -> AutoscalerAnswer:
    """Shows the mode, latest decision and last move of a job's autoscaler."""
    return decisions.show(context, job_id)


@router.get("/decisions")
def list_scaling_decisions(
    context: ContextOf,
    _: User,
    job_id: str,
    listing: ListingOf,
    moves_only: Annotated[bool, Query(description="Only decisions that have rescaled the job.")] = False,
) -> ScalingDecisionList:
    """Lists the autoscaler's decisions about a job, the newest first."""
    return decisions.list_of(context, job_id, listing, moves_only=moves_only)


@router.get("/replay")
def replay_input(
    context: ContextOf,
    _: User,
    job_id: str,
    parallelism: Annotated[int, Query(ge=1, le=KEY_GROUPS_MAX, description="The parallelism to replay it at.")],
    hours: Annotated[float, Query(gt=0, le=720, description="How much of the past is replayed.")] = 24,
) -> ReplayAnswer:
    """Replays a job's past input at another parallelism.

    It shows the records that would have waited, beside those that waited, and how far the model is from what was
    measured.
    """
    return decisions.replay_of(context, job_id, parallelism, hours)
