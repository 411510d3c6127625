"""The route of a driver's log."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from ..access.identities import User
from ..control_plane.dependencies import AttemptNumber, ContextOf
from ..control_plane.guarded_route import GuardedRoute
from ..shapes import NUMBER_MAX
from . import logs
from .logs import LogPart
from .schemas import LogAnswer

router = APIRouter(prefix="/jobs/{job_id}/logs", tags=["logs"], route_class=GuardedRoute)

LogBytes = Annotated[int, Query(ge=1, le=1 << 20)]


async def _log_part(
    attempt: AttemptNumber = None,
    tail_bytes: LogBytes = 64 << 10,
    offset: Annotated[
        int | None, Query(ge=0, le=NUMBER_MAX, description="Where to begin; default: `tail_bytes` before the end.")
    ] = None,
    limit_bytes: LogBytes = 64 << 10,
    search: Annotated[
        str | None, Query(min_length=1, max_length=200, description="Return the lines with this text, in any case.")
    ] = None,
) -> LogPart:
    return LogPart(attempt, tail_bytes, offset, limit_bytes, search)


@router.get("")
def show_log(context: ContextOf, user: User, job_id: str, part: Annotated[LogPart, Depends(_log_part)]) -> LogAnswer:
    """Shows a driver's log: its end, or lines by offset or text.

    To follow the log, ask again with `next_offset`. A log of another replica is fetched from that replica.
    """
    return logs.show(context, user, job_id, part)
