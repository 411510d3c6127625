"""Shows the autoscaler of a job, and lists its decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import revisions, scaling
from keyscale.db.repositories.pages import PageRequest

from ..control_plane.cursors import write_cursor
from ..jobs.jobs import require_job, require_job_id
from .observation import settings_of
from .schemas import AutoscalerAnswer, ScalingDecisionAnswer, ScalingDecisionList

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


def _latest(session: Session, job_id: str, *, moves_only: bool = False) -> ScalingDecisionAnswer | None:
    rows = scaling.list_page(session, job_id, PageRequest(limit=1), moves_only=moves_only).rows
    return ScalingDecisionAnswer.model_validate(rows[0]) if rows else None
