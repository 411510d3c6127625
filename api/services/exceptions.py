"""Exceptions: the history of a job's failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.api.schemas.job_exception import JobExceptionAnswer, JobExceptionList
from keyscale.api.services.cursors import write_cursor
from keyscale.api.services.jobs import require_job_id
from keyscale.db.repositories import exceptions

if TYPE_CHECKING:
    from keyscale.api.services.context import Context
    from keyscale.api.services.cursors import Listing


def list_of(context: Context, reference: str, listing: Listing) -> JobExceptionList:
    """Lists a job's exceptions.

    Raises:
        JobNotFoundError: There is no such job.
    """
    with context.reads() as session:
        found = exceptions.list_page(session, require_job_id(session, reference), listing.page(int))
    shown = [JobExceptionAnswer.model_validate(each) for each in found.rows]
    return JobExceptionList(exceptions=shown, next=write_cursor(found.next))
