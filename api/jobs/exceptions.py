"""Exceptions: the history of a job's failures."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from keyscale.db.repositories import exceptions

from ..control_plane.cursors import write_cursor
from .jobs import require_job_id
from .schemas.job_exception import JobExceptionAnswer, JobExceptionList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.db.models import JobException

    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing

ANSWER_CHARACTERS_MAX = 500_000
"""The texts of a job's 500 exceptions may have sixty times as many."""


def list_of(context: Context, reference: str, listing: Listing) -> JobExceptionList:
    """Lists a job's exceptions; fewer than requested if they are long.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        found = exceptions.list_page(session, require_job_id(session, reference), listing.page(int))
    rows = found.rows[: rows_that_fit(found.rows)]
    following = found.next if len(rows) == len(found.rows) else (rows[-1].id,)
    shown = [JobExceptionAnswer.model_validate(each) for each in rows]
    return JobExceptionList(exceptions=shown, next=write_cursor(following))


def rows_that_fit(rows: Sequence[JobException]) -> int:
    """Returns how many exceptions fit into one answer, at least one.

    The limit keeps readers from waiting too long.
    """
    sizes = accumulate(len(row.message) + len(row.traceback or "") for row in rows)
    return max(1, sum(size <= ANSWER_CHARACTERS_MAX for size in sizes))
