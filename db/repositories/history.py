"""Removes outdated history, a few rows at a time.

Each statement stays within its time limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

from ..models.event import REFUSAL
from .series import SUM_MAX

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

_CHECKPOINTS = """
WITH gone AS (
    DELETE FROM checkpoints WHERE job_id = :job_id AND checkpoint_id IN (
        SELECT checkpoint_id FROM checkpoints
        WHERE job_id = :job_id AND status IN ('SUBSUMED', 'DISCARDED', 'FAILED')
          AND (discard_requested_at_ms IS NULL OR objects_deleted_at_ms IS NOT NULL) AND checkpoint_id <= (
            SELECT checkpoint_id FROM checkpoints WHERE job_id = :job_id
            ORDER BY checkpoint_id DESC OFFSET :keep LIMIT 1
        ) AND NOT EXISTS (
            SELECT 1 FROM attempts
            WHERE attempts.job_id = :job_id AND attempts.restore_from = checkpoints.external_path
        )
        ORDER BY checkpoint_id LIMIT :some
    )
    RETURNING *
), added AS (
    INSERT INTO checkpoint_days AS days (job_id, day, completed, failed, checkpointed_size, state_size_max,
                                         end_to_end_duration, end_to_end_duration_max, processed_records)
    SELECT job_id, trigger_timestamp / 86400000, count(*) FILTER (WHERE status <> 'FAILED'),
           count(*) FILTER (WHERE status = 'FAILED'), least(sum(checkpointed_size), :most), max(state_size),
           least(sum(end_to_end_duration), :most), max(end_to_end_duration), least(sum(processed_records), :most)
    FROM gone GROUP BY 1, 2
    ON CONFLICT (job_id, day) DO UPDATE SET
        completed = days.completed + excluded.completed,
        failed = days.failed + excluded.failed,
        checkpointed_size = least(days.checkpointed_size + excluded.checkpointed_size, :most),
        state_size_max = greatest(days.state_size_max, excluded.state_size_max),
        end_to_end_duration = least(days.end_to_end_duration + excluded.end_to_end_duration, :most),
        end_to_end_duration_max = greatest(days.end_to_end_duration_max, excluded.end_to_end_duration_max),
        processed_records = least(days.processed_records + excluded.processed_records, :most)
)
SELECT count(*) FROM gone
"""

_SUBTASKS = """
WITH gone AS (
    DELETE FROM checkpoint_subtasks WHERE ctid = ANY (ARRAY(
        SELECT parts.ctid FROM checkpoint_subtasks parts
        JOIN checkpoints whole USING (job_id, checkpoint_id)
        WHERE parts.job_id = :job_id AND whole.status IN ('SUBSUMED', 'DISCARDED', 'FAILED')
          AND parts.checkpoint_id <= (
            SELECT checkpoint_id FROM checkpoints WHERE job_id = :job_id
            ORDER BY checkpoint_id DESC OFFSET :keep LIMIT 1
        )
        LIMIT :some
    ))
    RETURNING 1
)
SELECT count(*) FROM gone
"""

_ATTEMPTS = """
WITH gone AS (
    DELETE FROM attempts WHERE job_id = :job_id AND number IN (
        SELECT number FROM attempts
        WHERE job_id = :job_id AND stage = 'ENDED' AND reaped AND number <= (
            SELECT number FROM attempts WHERE job_id = :job_id ORDER BY number DESC OFFSET :keep LIMIT 1
        )
        ORDER BY number LIMIT :some
    )
    RETURNING 1
)
SELECT count(*) FROM gone
"""

# A kept attempt keeps its start, stop or change: the savepoint that a revision stopped with is in that row.
_OPERATIONS = """
WITH gone AS (
    DELETE FROM operations WHERE id IN (
        SELECT id FROM operations o
        WHERE job_id = :job_id AND status NOT IN ('PENDING_APPROVAL', 'IN_PROGRESS') AND (requested_at_ms, id) <= (
            SELECT requested_at_ms, id FROM operations WHERE job_id = :job_id
            ORDER BY requested_at_ms DESC, id DESC OFFSET :keep LIMIT 1
        ) AND (kind IN ('CHECKPOINT', 'SAVEPOINT') OR NOT EXISTS (
            SELECT 1 FROM attempts a WHERE a.job_id = o.job_id AND a.number IN (o.old_attempt, o.new_attempt)
        ))
        ORDER BY requested_at_ms, id LIMIT :some
    )
    RETURNING 1
)
SELECT count(*) FROM gone
"""

_EVENTS = """
WITH gone AS (
    DELETE FROM events WHERE id IN (SELECT id FROM events WHERE at_ms < :before_ms ORDER BY at_ms LIMIT :some)
    RETURNING 1
)
SELECT count(*) FROM gone
"""


_MOST_EVENTS = """
WITH gone AS (
    DELETE FROM events WHERE id IN (
        SELECT id FROM events WHERE kind <> 'ACCESS_DENIED' AND id <= (
            SELECT id FROM events WHERE kind <> 'ACCESS_DENIED' ORDER BY id DESC OFFSET :keep LIMIT 1
        )
        ORDER BY id LIMIT :some
    )
    RETURNING 1
)
SELECT count(*) FROM gone
"""


_REFUSALS = """
WITH gone AS (
    DELETE FROM events WHERE id IN (
        SELECT id FROM events WHERE kind = :kind AND id <= (
            SELECT id FROM events WHERE kind = :kind ORDER BY id DESC OFFSET :keep LIMIT 1
        )
        ORDER BY id LIMIT :some
    )
    RETURNING 1
)
SELECT count(*) FROM gone
"""


def remove_checkpoints(session: Session, job_id: str, *, keep: int, some: int) -> int:
    """Removes old checkpoints without objects, and adds them to day sums.

    The origin of a kept attempt stays.

    Args:
        session: The transaction.
        job_id: The job.
        keep: How many of its newest checkpoints and savepoints stay; completed ones always do.
        some: The most rows to remove at once.

    Returns:
        The number of removed checkpoints.
    """
    return session.scalar(text(_CHECKPOINTS), {"job_id": job_id, "keep": keep, "some": some, "most": SUM_MAX}) or 0


def remove_subtasks(session: Session, job_id: str, *, keep: int, some: int) -> int:
    """Removes the subtasks of checkpoints without objects.

    The newest `keep` checkpoints keep their subtasks.
    """
    return session.scalar(text(_SUBTASKS), {"job_id": job_id, "keep": keep, "some": some}) or 0


def remove_attempts(session: Session, job_id: str, *, keep: int, some: int) -> int:
    """Removes ended attempts except the newest `keep`."""
    return session.scalar(text(_ATTEMPTS), {"job_id": job_id, "keep": keep, "some": some}) or 0


def remove_operations(session: Session, job_id: str, *, keep: int, some: int) -> int:
    """Removes ended operations except the newest `keep`.

    Operations of kept attempts stay, except checkpoints and savepoints.
    """
    return session.scalar(text(_OPERATIONS), {"job_id": job_id, "keep": keep, "some": some}) or 0


def remove_events(session: Session, *, before_ms: int, some: int) -> int:
    """Removes events from before a time."""
    return session.scalar(text(_EVENTS), {"before_ms": before_ms, "some": some}) or 0


def remove_most_events(session: Session, *, keep: int, some: int) -> int:
    """Removes events except the newest `keep`; refused requests do not count."""
    return session.scalar(text(_MOST_EVENTS), {"keep": keep, "some": some}) or 0


def remove_refusals(session: Session, *, keep: int, some: int) -> int:
    """Removes refused requests except the newest `keep`."""
    return session.scalar(text(_REFUSALS), {"kind": REFUSAL, "keep": keep, "some": some}) or 0
