"""Savepoints: list, show and keep existing savepoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import checkpoints, events
from keyscale.vocabulary import CheckpointStatus, SnapshotOwner

from ..control_plane.cursors import write_cursor
from ..errors import SavepointNotFoundError
from ..jobs.jobs import require_job, require_job_id
from .schemas.savepoint import SavepointAnswer, SavepointList

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.models import Checkpoint

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..control_plane.cursors import Listing


def list_of(context: Context, reference: str, listing: Listing, owner: SnapshotOwner | None) -> SavepointList:
    """Lists a job's savepoints.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job_id = require_job_id(session, reference)
        found = checkpoints.list_savepoints(session, job_id, listing.page(int), owner=owner)
    return SavepointList(
        savepoints=[SavepointAnswer.model_validate(each) for each in found.rows], next=write_cursor(found.next)
    )


def show(context: Context, reference: str, savepoint_id: str) -> SavepointAnswer:
    """Shows a savepoint.

    Raises:
        JobNotFoundError: The job does not exist.
        SavepointNotFoundError: The job has no such savepoint, or it was deleted.
    """
    with context.reads() as session:
        return SavepointAnswer.model_validate(_require(session, require_job_id(session, reference), savepoint_id))


def keep(context: Context, user: Principal, reference: str, savepoint_id: str) -> SavepointAnswer:
    """Gives a savepoint to its user.

    The platform then never deletes it. A second time changes nothing.

    Raises:
        JobNotFoundError: The job does not exist.
        SavepointNotFoundError: The job has no such savepoint, or it was deleted.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        found = _require(session, job.id, savepoint_id)
        if found.owner is not SnapshotOwner.USER:
            found.owner = SnapshotOwner.USER
            events.record(
                session,
                job_id=job.id,
                at_ms=now_ms(),
                kind="SAVEPOINT_KEPT",
                actor=user.name,
                message=f"savepoint {found.checkpoint_id} is kept: the platform does not delete it",
                checkpoint_id=found.checkpoint_id,
                location=found.external_path,
            )
        session.flush()
        return SavepointAnswer.model_validate(found)


def _require(session: Session, job_id: str, savepoint_id: str) -> Checkpoint:
    found = checkpoints.find_savepoint(session, job_id, savepoint_id)
    if found is None or found.status is not CheckpointStatus.COMPLETED:
        raise SavepointNotFoundError("the job has no completed savepoint of this id")
    return found
