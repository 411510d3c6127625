"""Days: what a job did on each day.

Days are kept for longer than single checkpoints, attempts and events.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import series
from keyscale.db.repositories.series import DAYS

from ..jobs.jobs import require_job
from .schemas.day import DayAnswer, DayList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.db.models import Job, SeriesPoint

    from ..control_plane.context import Context


def list_of(context: Context, reference: str, limit: int) -> DayList:
    """Lists the newest days of a job.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        points = series.read(session, job.id, DAYS, 0, now_ms())
    return DayList(days=days_of(job, points)[::-1][:limit])


def days_of(job: Job, points: Sequence[SeriesPoint]) -> list[DayAnswer]:
    """Returns the days of a job from its points.

    Both are in the order of time. Pure.

    A counter of a day is its growth since the previous known day; on the day of the job's creation, since zero.
    """
    began_ms = job.created_at_ms - job.created_at_ms % DAYS.step_ms
    known: dict[str, int | None] = dict.fromkeys(("input_records", "output_records"))
    found = []
    for point in points:
        grown: dict[str, int | None] = {}
        for name, before in known.items():
            total = getattr(point, name)
            since = 0 if before is None and point.at_ms == began_ms else before
            grown[name] = None if total is None or since is None else max(0, total - since)
            known[name] = before if total is None else total
        found.append(_day(point, grown))
    return found


def _day(point: SeriesPoint, grown: dict[str, int | None]) -> DayAnswer:
    completed, total_ms = point.checkpoints_completed, point.checkpoint_duration_sum_ms
    return DayAnswer(
        day=datetime.fromtimestamp(point.at_ms / 1000, UTC).date(),
        **grown,
        restarts=point.restarts or 0,
        checkpoints_completed=completed or 0,
        checkpoints_failed=point.checkpoints_failed or 0,
        checkpointed_bytes=point.checkpointed_bytes or 0,
        checkpoint_duration_min_ms=point.checkpoint_duration_min_ms,
        checkpoint_duration_avg_ms=None if not completed or total_ms is None else total_ms // completed,
        checkpoint_duration_max_ms=point.checkpoint_duration_ms,
        state_size=point.state_size,
        lag_ms_max=point.lag_ms,
    )
