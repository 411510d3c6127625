"""Finding what a path names, or refusing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.errors import JobNotFoundError
from db.repositories import jobs

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from db.models import Job


def require_job(session: Session, reference: str, *, lock: bool = False) -> Job:
    """Returns the job of an id or name.

    Raises:
        JobNotFoundError: There is none.
    """
    job = jobs.find(session, reference, lock=lock)
    if job is None:
        raise JobNotFoundError("no job has this id or name")
    return job
