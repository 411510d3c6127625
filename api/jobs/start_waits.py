"""The starts that wait for their turn, as users see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import attempts, events
from keyscale.vocabulary import AttemptStage

from ..health.facts import StartWait
from ..lifecycle.start_line import WantedStart, places_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy.orm import Session

    from keyscale.db.repositories.overviews import JobOverview

_USUAL_START_MS = 10_000
_EVER_MS = 1 << 62


def waits_of(session: Session, overviews: Iterable[JobOverview]) -> Mapping[str, StartWait]:
    """Returns the waiting starts, by job.

    Reads them only if one of the jobs may wait. All replicas show the same.
    """
    if not any(map(_may_wait, overviews)):
        return {}
    waiting = [
        WantedStart(job_id, number, wanted_at_ms, created_at_ms, is_down=stage is AttemptStage.ACTIVE)
        for job_id, number, stage, wanted_at_ms, created_at_ms in attempts.list_unlaunched(session)
    ]
    places = places_of(waiting, begun=0, at_once=0)
    return {
        start.job_id: StartWait(places[start.key], len(waiting), start.wanted_at_ms)
        for start in sorted(waiting, key=lambda start: start.rank, reverse=True)  # a job's first start comes last
    }


def _may_wait(overview: JobOverview) -> bool:
    attempt = overview.attempt or {}
    is_launched = attempt.get("launched_at_ms") is not None or attempt.get("driver_state") is not None
    return overview.operation_id is not None or (attempt.get("stage") == AttemptStage.ACTIVE and not is_launched)


def failing_start_of(session: Session, overview: JobOverview, at_ms: int) -> str | None:
    """Returns why the start of a job's driver fails.

    The leader tries again, as while the object store is away. Reads nothing for a driver that has asked for work, or
    that is new.
    """
    attempt = overview.attempt or {}
    is_heard = attempt.get("attached_at_ms") is not None or attempt.get("driver_state") is not None
    if is_heard or attempt.get("stage") != AttemptStage.ACTIVE or at_ms - attempt["created_at_ms"] < _USUAL_START_MS:
        return None
    told = events.between(
        session,
        overview.job["id"],
        attempt["created_at_ms"],
        _EVER_MS,
        kinds=("JOB_SET_ASIDE", "JOB_TAKEN_UP"),
        limit=1,
    )
    return told[0].message if told and told[0].kind == "JOB_SET_ASIDE" else None
