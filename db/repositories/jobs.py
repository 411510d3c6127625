"""Queries on jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, or_, select

from keyscale.vocabulary import DesiredState

from ..job_scope import EVERYTHING, JobScope
from ..models import Job, Operation
from .pages import Page, PageRequest, read_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy.orm import Session


# Built once: building costs half as much as sending.
_FIND = select(Job).where(or_(Job.id == bindparam("reference"), Job.name == bindparam("reference")))
_FIND_ID = _FIND.with_only_columns(Job.__table__.c.id)


def list_page(session: Session, page: PageRequest, scope: JobScope = EVERYTHING) -> Page[str]:
    """Returns the ids of the jobs of a scope, the newest first."""
    key = (Job.created_at_ms, Job.id)
    found = read_keys(session, select(*key).where(scope.criterion()), key, page)
    return Page([job_id for _, job_id in found.rows], found.next)


def ids(session: Session) -> Sequence[str]:
    """Returns the ids of all jobs."""
    return session.scalars(select(Job.id).order_by(Job.id)).all()


def known(session: Session, job_ids: Collection[str]) -> set[str]:
    """Returns the ids of jobs among some ids."""
    return set(session.scalars(select(Job.id).where(Job.id.in_(job_ids))))


def find(session: Session, reference: str, *, lock: bool = False, scope: JobScope = EVERYTHING) -> Job | None:
    """Returns a job by its id or its name.

    Only here can a name replace an id.

    Args:
        session: The transaction.
        reference: An id, or a name (a name never looks like an id).
        lock: Whether other transactions must wait with changes of this job until this one ends.
        scope: Where to look.
    """
    statement = _FIND if scope.is_everything else _FIND.where(scope.criterion())
    return session.scalars(statement.with_for_update() if lock else statement, {"reference": reference}).first()


def find_id(session: Session, reference: str) -> str | None:
    """Returns the id of the job with an id or name."""
    return session.scalar(_FIND_ID, {"reference": reference})


def lock(session: Session, job_id: str) -> Job | None:
    """Returns the job as it is now, locked for this transaction."""
    return session.scalars(
        select(Job).where(Job.id == job_id).with_for_update().execution_options(populate_existing=True)
    ).first()


def id_of_operation(session: Session, operation_id: str) -> str | None:
    """Returns the id of an operation's job."""
    return session.scalars(select(Operation.job_id).where(Operation.id == operation_id)).first()


def stores_in_use(session: Session) -> Sequence[str]:
    """Returns the stores of all jobs that should run."""
    return session.scalars(select(Job.store_url).where(Job.desired == DesiredState.RUNNING).distinct()).all()
