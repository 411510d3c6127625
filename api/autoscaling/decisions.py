"""Shows the autoscaler of a job, and lists its decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import revisions, scaling
from keyscale.db.repositories.pages import PageRequest
from keyscale.db.repositories.series import RETENTIONS

from ..control_plane.cursors import write_cursor
from ..database_clock import shared_now_ms
from ..jobs.jobs import require_job, require_job_id
from .input_replay import replay
from .key_group_division import division_by_size
from .model import CostModel
from .observation import facts_of, settings_of
from .schemas import (
    AutoscalerAnswer,
    ReplayAnswer,
    ReplayPeaksAnswer,
    ReplayPointAnswer,
    ScalingDecisionAnswer,
    ScalingDecisionList,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing


def show(context: Context, reference: str) -> AutoscalerAnswer:
    """Shows the autoscaler of a job.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        return AutoscalerAnswer(
            mode=settings_of(revisions.current(session, job).spec).mode,
            decision=_latest(session, job.id),
            last_move=_latest(session, job.id, moves_only=True),
        )


def list_of(context: Context, reference: str, listing: Listing, *, moves_only: bool) -> ScalingDecisionList:
    """Lists the decisions about a job.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        found = scaling.list_page(session, job_id, listing.page(int), moves_only=moves_only)
    shown = [ScalingDecisionAnswer.model_validate(each) for each in found.rows]
    return ScalingDecisionList(decisions=shown, next=write_cursor(found.next))


def replay_of(context: Context, reference: str, parallelism: int, hours: float) -> ReplayAnswer:
    """Replays a job's past input at another parallelism.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    at_ms = shared_now_ms()
    since_ms = at_ms - int(3_600_000 * hours)
    step_ms = next(
        retention.step_ms for retention in RETENTIONS if retention.step_ms * (retention.slots - 1) >= at_ms - since_ms
    )
    with context.reads() as session:
        job = scaling.find_job(session, require_job_id(session, reference))
        loads = scaling.loads(session, [job.id], since_ms, step_ms).get(job.id, ())
        runs = scaling.runs(session, job.id, since_ms)
        division = division_by_size(session, job)
    facts = facts_of(job, (), (), core_ms=0, parallelism_max=job.max_parallelism, at_ms=at_ms, division=division)
    if not facts.batches:
        return _not_replayed(parallelism, "no batch with input shows how fast the job is: start the job first")
    model = CostModel(facts)
    found = replay(loads, runs, model.capacity, min(parallelism, job.max_parallelism))
    if found is None:
        return _not_replayed(parallelism, "the sources have not said how many records waited in this time")
    lines = zip(found.at_ms, found.measured, found.as_run, found.replayed, strict=True)
    return ReplayAnswer(
        parallelism=parallelism,
        capacity=found.capacity,
        peaks=ReplayPeaksAnswer(
            measured_ms=found.peak_ms(found.measured),
            as_run_ms=found.peak_ms(found.as_run),
            replayed_ms=found.peak_ms(found.replayed),
        ),
        error=found.error,
        reason=None,
        points=[
            ReplayPointAnswer(at_ms=moment_ms, lag_records=measured, as_run=as_run, replayed=replayed)
            for moment_ms, measured, as_run, replayed in lines
        ],
    )


def _not_replayed(parallelism: int, reason: str) -> ReplayAnswer:
    return ReplayAnswer(parallelism=parallelism, capacity=None, peaks=None, error=None, reason=reason, points=[])


def _latest(session: Session, job_id: str, *, moves_only: bool = False) -> ScalingDecisionAnswer | None:
    rows = scaling.list_page(session, job_id, PageRequest(limit=1), moves_only=moves_only).rows
    return ScalingDecisionAnswer.model_validate(rows[0]) if rows else None
