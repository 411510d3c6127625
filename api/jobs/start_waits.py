"""The starts that wait for their turn, as users see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import attempts
from keyscale.vocabulary import AttemptStage

from ..health.facts import StartWait
from ..lifecycle.start_line import WantedStart, places_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy.orm import Session

    from keyscale.db.repositories.overviews import JobOverview


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
