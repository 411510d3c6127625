"""Queries on checkpoints and savepoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, func, select, update

from keyscale.db.models import Checkpoint, CheckpointSubtask
from keyscale.db.statuses import CheckpointStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy.orm import Session


def list_of(session: Session, job_id: str, *, limit: int) -> Sequence[Checkpoint]:
    """Returns the newest checkpoints and savepoints of a job."""
    return session.scalars(
        select(Checkpoint).where(Checkpoint.job_id == job_id).order_by(Checkpoint.checkpoint_id.desc()).limit(limit)
    ).all()


def counts(session: Session, job_id: str) -> dict[CheckpointStatus, int]:
    """Returns the number of a job's checkpoints and savepoints per status."""
    rows = session.execute(
        select(Checkpoint.status, func.count()).where(Checkpoint.job_id == job_id).group_by(Checkpoint.status)
    )
    return dict(rows.all())


def find(session: Session, job_id: str, checkpoint_id: int) -> Checkpoint | None:
    """Returns a job's checkpoint or savepoint with this number."""
    return session.get(Checkpoint, (job_id, checkpoint_id))


def latest_completed(session: Session, job_id: str) -> Checkpoint | None:
    """Returns the newest completed checkpoint or savepoint of a job."""
    return session.scalars(
        select(Checkpoint)
        .where(Checkpoint.job_id == job_id, Checkpoint.status == CheckpointStatus.COMPLETED)
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(1)
    ).first()


def next_id(session: Session, job_id: str) -> int:
    """Returns a number above all that the job's drivers have reported: a number is never used again."""
    return (session.scalar(select(func.max(Checkpoint.checkpoint_id)).where(Checkpoint.job_id == job_id)) or 0) + 1


def subtasks(session: Session, job_id: str, checkpoint_id: int) -> Sequence[CheckpointSubtask]:
    """Returns a checkpoint's subtasks by operator and index."""
    return session.scalars(
        select(CheckpointSubtask)
        .where(CheckpointSubtask.job_id == job_id, CheckpointSubtask.checkpoint_id == checkpoint_id)
        .order_by(CheckpointSubtask.operator_uid, CheckpointSubtask.subtask)
    ).all()


def replace_subtasks(session: Session, checkpoint: Checkpoint, rows: Iterable[CheckpointSubtask]) -> None:
    """Replaces the subtasks of an older report with those of a newer one."""
    session.execute(
        delete(CheckpointSubtask).where(
            CheckpointSubtask.job_id == checkpoint.job_id, CheckpointSubtask.checkpoint_id == checkpoint.checkpoint_id
        )
    )
    session.add_all(rows)


def mark_subsumed(session: Session, job_id: str, checkpoint_ids: Sequence[int]) -> None:
    """Records that newer checkpoints subsume these; savepoints are never subsumed."""
    session.execute(
        update(Checkpoint)
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.checkpoint_id.in_(checkpoint_ids),
            Checkpoint.status == CheckpointStatus.COMPLETED,
            Checkpoint.is_savepoint.is_(False),
        )
        .values(status=CheckpointStatus.SUBSUMED)
    )


def fail_unfinished(session: Session, job_id: str, attempt: int, *, at_ms: int, message: str) -> None:
    """Records that the unfinished checkpoints of an attempt failed with it."""
    session.execute(
        update(Checkpoint)
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.attempt == attempt,
            Checkpoint.status == CheckpointStatus.IN_PROGRESS,
        )
        .values(status=CheckpointStatus.FAILED, failure_timestamp=at_ms, failure_message=message)
    )


def find_by_path(session: Session, job_id: str, external_path: str) -> Checkpoint | None:
    """Returns the job's checkpoint or savepoint whose manifest is at a location."""
    return session.scalars(
        select(Checkpoint)
        .where(Checkpoint.job_id == job_id, Checkpoint.external_path == external_path)
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(1)
    ).first()
