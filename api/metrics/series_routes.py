"""The routes of a job's series, days and own metrics."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from ..access.identities import User
from ..control_plane.dependencies import ContextOf
from ..control_plane.guarded_route import GuardedRoute
from ..shapes import NUMBER_MAX
from . import days, series, user_metrics
from .schemas.day import DayList
from .schemas.series import SeriesAnswer, SeriesName
from .schemas.user_metric import UserMetricList
from .series import Span

router = APIRouter(prefix="/jobs/{job_id}", tags=["jobs"], route_class=GuardedRoute)

Names = Annotated[
    list[SeriesName] | None, Query(max_length=50, description="The wanted series, the parameter once per name.")
]
Time = Annotated[int | None, Query(ge=0, le=NUMBER_MAX)]
DayLimit = Annotated[int, Query(ge=1, le=1000, description="How many days to return at most.")]
Points = Annotated[int, Query(ge=1, le=3000, description="About how many points the answer may have.")]


async def _span(from_ms: Time = None, to_ms: Time = None, points: Points = 360) -> Span:
    return Span(from_ms, to_ms, points)


@router.get("/series")
def show_series(
    context: ContextOf, _: User, job_id: str, span: Annotated[Span, Depends(_span)], names: Names = None
) -> SeriesAnswer:
    """Shows a job's metrics over time, with events.

    Metrics are rates, lag, sizes and durations. Default: the last hour.

    The series are kept for an hour in steps of 10 s, for a day in minutes, for 30 days in quarters of an hour, and for
    two years in days.
    """
    return series.show(context, job_id, span, names or ())


@router.get("/user-metrics")
def list_user_metrics(context: ContextOf, _: User, job_id: str) -> UserMetricList:
    """Lists the metrics that a job's functions declare, with their values."""
    return user_metrics.list_of(context, job_id)


@router.get("/days")
def list_days(context: ContextOf, _: User, job_id: str, limit: DayLimit = 30) -> DayList:
    """Lists a job's records, restarts and checkpoints per day, newest first.

    Days are in UTC, and kept for two years.
    """
    return days.list_of(context, job_id, limit)
