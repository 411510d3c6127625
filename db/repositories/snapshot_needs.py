"""Queries on the users of a checkpoint or savepoint.

A batch that runs while a checkpoint completes may still be rebuilt from the previous checkpoint. So a running job needs
its two newest checkpoints, and the snapshot that it restored from until it has taken two; any other job needs one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select, text

from keyscale.vocabulary import CheckpointStatus

from ..models import Checkpoint, Job

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy.orm import Session

    from keyscale.vocabulary import JobStatus

_RESTORES = """
SELECT j.* FROM jobs j LEFT JOIN LATERAL (
    SELECT number, restore_from FROM attempts a WHERE a.job_id = j.id AND a.restore_from IS NOT NULL
    ORDER BY number DESC LIMIT 1
) newest ON true LEFT JOIN LATERAL (
    SELECT min(number) AS number FROM attempts a
    WHERE a.job_id = j.id AND a.restore_id = j.restore ->> 'id' AND a.restored_at_ms IS NOT NULL
) done ON true
WHERE (j.restore ->> 'location' = :location AND done.number IS NULL)
   OR EXISTS (
        SELECT 1
        FROM (
            VALUES (j.rewound_by, j.rewound_to), (done.number, j.restore ->> 'location'),
                   (newest.number, newest.restore_from)
        ) begun (attempt, location)
        WHERE begun.location = :location AND (
            SELECT count(*) FROM checkpoints c WHERE c.job_id = j.id AND c.attempt >= begun.attempt
            AND NOT c.is_savepoint AND c.status IN ('COMPLETED', 'SUBSUMED')
        ) < CASE WHEN j.status = ANY (:settled) THEN 1 ELSE 2 END)
ORDER BY j.name LIMIT 10
"""
_CHANGES = """
SELECT id FROM operations
WHERE status IN ('PENDING_APPROVAL', 'IN_PROGRESS') AND kind IN ('RESTART', 'RESCALE', 'UPGRADE', 'ROLLBACK')
  AND job_id = :job_id AND (location = :location OR rewind_to = :location)
"""
_REVISIONS = """
SELECT DISTINCT a.revision FROM operations o JOIN attempts a ON a.job_id = o.job_id AND a.number = o.old_attempt
JOIN jobs j ON j.id = o.job_id
WHERE o.job_id = :job_id AND o.kind NOT IN ('CHECKPOINT', 'SAVEPOINT') AND o.command_status = 'COMPLETED'
  AND o.location = :location
  AND a.revision <> j.revision
ORDER BY a.revision
"""
_RELEASABLE = """
SELECT taken.* FROM checkpoints taken JOIN operations o ON o.job_id = taken.job_id AND o.id = taken.savepoint_id
WHERE taken.is_savepoint AND taken.owner = 'PLATFORM' AND taken.status = 'COMPLETED' AND o.status <> 'IN_PROGRESS'
  AND o.kind <> 'SAVEPOINT'
  AND EXISTS (
    SELECT 1 FROM checkpoints newer
    WHERE newer.job_id = o.job_id AND newer.status = 'COMPLETED' AND newer.checkpoint_id > taken.checkpoint_id
  )
  AND (o.kind IN ('RESCALE', 'RESTART') OR o.status IN ('CANCELLED', 'ROLLED_BACK') OR EXISTS (
    SELECT 1 FROM operations later JOIN checkpoints its ON its.job_id = later.job_id AND its.savepoint_id = later.id
    WHERE later.job_id = o.job_id AND later.kind IN ('UPGRADE', 'ROLLBACK') AND later.status IN ('COMPLETED', 'FAILED')
      AND its.status = 'COMPLETED' AND its.checkpoint_id > taken.checkpoint_id
  ))
ORDER BY taken.job_id, taken.checkpoint_id
"""


def releasable_savepoints(session: Session) -> Sequence[Checkpoint]:
    """Returns the savepoints of changes that the platform may not need.

    The change has ended, and the job has a newer snapshot. A savepoint of an upgrade or rollback stays until the next
    upgrade or rollback has taken one, so that the job can go back to the revision before with its state. A job may
    still need the snapshots: ask `restoring_jobs`.
    """
    return session.scalars(select(Checkpoint).from_statement(text(_RELEASABLE))).all()


def newest_checkpoints(session: Session, job_id: str, limit: int) -> Sequence[int]:
    """Returns the numbers of a job's newest completed checkpoints.

    Savepoints are left out; the newest comes first.
    """
    return session.scalars(
        select(Checkpoint.checkpoint_id)
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.status == CheckpointStatus.COMPLETED,
            Checkpoint.is_savepoint.is_(False),
        )
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(limit)
    ).all()


def restoring_jobs(session: Session, location: str, settled: Collection[JobStatus]) -> Sequence[Job]:
    """Returns up to ten jobs that restore from a location.

    A job that has restored from it counts while it still needs the snapshot.

    Args:
        session: The transaction.
        location: A manifest's location.
        settled: The statuses of jobs that do not run.
    """
    values = {"location": location, "settled": [str(status) for status in settled]}
    return session.scalars(select(Job).from_statement(text(_RESTORES)), values).all()


def running_changes(session: Session, job_id: str, location: str) -> list[str]:
    """Returns the ids of a job's running changes that restore a location."""
    return list(session.scalars(text(_CHANGES), {"job_id": job_id, "location": location}))


def revisions_kept_by(session: Session, job_id: str, location: str) -> list[int]:
    """Returns a job's earlier revisions with their last state at a location."""
    return list(session.scalars(text(_REVISIONS), {"job_id": job_id, "location": location}))
