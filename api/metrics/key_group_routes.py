"""The route of the sizes of a job's key groups."""

from typing import Annotated

from fastapi import APIRouter, Query

from keyscale.jobs.protocol.storable_text import StorableText

from ..access.identities import User
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from . import key_group_history
from .schemas.key_group_history import KeyGroupsAnswer

router = APIRouter(prefix="/jobs/{job_id}", tags=["jobs"], route_class=GuardedRoute)


@router.get("/key-groups")
def show_key_groups(
    context: ContextOf,
    _: User,
    job_id: str,
    operator: Annotated[
        StorableText | None, Query(max_length=1000, description="One operator's uid; default: all.")
    ] = None,
) -> KeyGroupsAnswer:
    """Shows each key group's size at the latest checkpoints, and its owner."""
    return key_group_history.show(context, job_id, operator)
