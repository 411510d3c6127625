"""Signs of the jobs that the reconciler looks after.

One statement reads them for all jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session


class JobSign(NamedTuple):
    """Values that show whether a job has changed.

    Attributes:
        id: The job.
        version: A value that differs after each change of the job, its attempts with processes, or its running
            operation.
            A heartbeat changes it only with a new state or the first commit, and during a start with the first input
            or the first wait for it. See `job_versions`.
        attempt: The active attempt.
        heartbeat_at_ms: The last heartbeat of the active attempt.
        attached_at_ms: When the driver of the active attempt first asked for work.
    """

    id: str
    version: str
    attempt: int | None = None
    heartbeat_at_ms: int | None = None
    attached_at_ms: int | None = None


_TO_RECONCILE = text(
    """
SELECT j.id, concat_ws(' ', j.xmin, o.xmin, a.versions, CASE WHEN o.kind = 'START' THEN (
    SELECT concat_ws(' ', metrics ->> 'waits_for_input', metrics ->> 'input_batches' IS DISTINCT FROM '0')
    FROM heartbeats WHERE job_id = j.id AND attempt = a.active
) END), a.active, a.heartbeat_at_ms, a.attached_at_ms
FROM jobs j LEFT JOIN (
    SELECT a.job_id, string_agg(a.number || ':' || a.xmin, ',' ORDER BY a.number) AS versions,
        max(a.number) FILTER (WHERE a.stage = 'ACTIVE') AS active,
        max(h.at_ms) FILTER (WHERE a.stage = 'ACTIVE') AS heartbeat_at_ms,
        max(a.attached_at_ms) FILTER (WHERE a.stage = 'ACTIVE') AS attached_at_ms
    FROM attempts a LEFT JOIN heartbeats h ON h.job_id = a.job_id AND h.attempt = a.number
    WHERE a.stage <> 'ENDED' OR NOT a.reaped GROUP BY a.job_id
) a ON a.job_id = j.id LEFT JOIN operations o ON o.job_id = j.id AND o.status = 'IN_PROGRESS'
    AND o.kind NOT IN ('CANCEL', 'CHECKPOINT', 'SAVEPOINT')
WHERE j.desired = 'RUNNING' OR j.status NOT IN ('CREATED', 'STOPPED', 'FAILED', 'FINISHED') OR a.job_id IS NOT NULL
ORDER BY j.created_at_ms, j.id
"""
)


def to_reconcile(session: Session) -> Sequence[JobSign]:
    """Returns the signs of the jobs that need the reconciler.

    They run, should run, should stop, or still have processes. The oldest job comes first.
    """
    return list(map(JobSign._make, session.connection().execute(_TO_RECONCILE)))
