"""Reads how a job divides its key groups by size."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from keyscale.db.repositories import checkpoints
from keyscale.errors import KeyscaleError
from keyscale.vocabulary import KeyGroupDivision

from .observation import division_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.repositories.scaling import ScaledJob

    from .facts import DivisionFacts

logger = logging.getLogger(__name__)


def division_by_size(session: Session, job: ScaledJob) -> DivisionFacts | None:
    """Returns how a job divides its key groups by size.

    None: it divides them by count, or the sizes are unknown.
    """
    if job.spec.get("key_group_division") != KeyGroupDivision.BY_SIZE:
        return None
    newest = [each.checkpoint_id for each in checkpoints.latest_with_parts(session, job.id, 1)]
    try:
        return division_of(checkpoints.parts_of(session, job.id, newest, None), job.max_parallelism)
    except (IndexError, KeyscaleError):  # drivers decide what they report
        logger.warning("the newest checkpoint of job %s has no division of its key groups", job.id)
        return None
