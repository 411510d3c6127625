"""Queries on the savepoints that jobs' policies take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, select, true

from keyscale.vocabulary import CheckpointStatus, JobStatus, OperationKind, OperationStatus, SnapshotOwner

from ..models import Checkpoint, Job, Operation, Revision
from ..models.operation import SAVEPOINT_POLICY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.orm import Session

_SETTINGS = Revision.spec["savepoints"]


class Taking(NamedTuple):
    """A running job with a policy.

    Attributes:
        job_id: The job.
        settings: The policy.
        requested_at_ms: When the policy has last requested a savepoint.
        status: What has become of it.
    """

    job_id: str
    settings: Mapping[str, Any]
    requested_at_ms: int | None
    status: OperationStatus | None


class Kept(NamedTuple):
    """A savepoint of a policy that exists.

    Attributes:
        savepoint: The savepoint.
        settings: The policy of its job as it is now; None: the job has settings of an earlier version.
    """

    savepoint: Checkpoint
    settings: Mapping[str, Any] | None


def running_policies(session: Session) -> Sequence[Taking]:
    """Returns the running jobs whose policy takes savepoints."""
    last = (
        select(Operation.requested_at_ms, Operation.status)
        .where(
            Operation.job_id == Job.id,
            Operation.kind == OperationKind.SAVEPOINT,
            Operation.requested_by == SAVEPOINT_POLICY,
        )
        .order_by(Operation.requested_at_ms.desc())
        .limit(1)
        .lateral()
    )
    rows = session.execute(
        select(Job.id, _SETTINGS, last.c.requested_at_ms, last.c.status)
        .join(Revision, and_(Revision.job_id == Job.id, Revision.number == Job.revision))
        .outerjoin(last, true())
        .where(Job.status == JobStatus.RUNNING, _SETTINGS["interval_ms"].as_integer().is_not(None))
    )
    return [Taking(*row) for row in rows]


def kept_savepoints(session: Session) -> Sequence[Kept]:
    """Returns the savepoints of all policies, of each job the newest first."""
    rows = session.execute(
        select(Checkpoint, _SETTINGS)
        .join(Operation, and_(Operation.job_id == Checkpoint.job_id, Operation.id == Checkpoint.savepoint_id))
        .join(Job, Job.id == Checkpoint.job_id)
        .join(Revision, and_(Revision.job_id == Job.id, Revision.number == Job.revision))
        .where(
            Checkpoint.is_savepoint,
            Checkpoint.owner == SnapshotOwner.PLATFORM,
            Checkpoint.status == CheckpointStatus.COMPLETED,
            Operation.kind == OperationKind.SAVEPOINT,
        )
        .order_by(Checkpoint.job_id, Checkpoint.checkpoint_id.desc())
    )
    return [Kept(*row) for row in rows]
