"""Queries on operations, and on their commands to drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, cast, exists, func, not_, null, select, text, update

from keyscale.vocabulary import (
    BESIDE,
    SNAPSHOTS,
    AttemptStage,
    CheckpointStatus,
    CommandStatus,
    OperationKind,
    OperationStatus,
    RescaleMode,
)

from ..models import Attempt, Checkpoint, Job, Operation, Revision
from .pages import Page, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy.orm import Session


def reserve_id(session: Session, operation_id: str) -> None:
    """Reserves an operation's id until this transaction ends."""
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:id, 0))"), {"id": operation_id})


def find(session: Session, operation_id: str, *, lock: bool = False) -> Operation | None:
    """Returns the current state of an operation.

    `lock` keeps other transactions from changing it.
    """
    statement = select(Operation).where(Operation.id == operation_id).execution_options(populate_existing=True)
    return session.scalars(statement.with_for_update() if lock else statement).first()


def find_commanded(session: Session, command_id: str) -> Operation | None:
    """Returns the operation of a command, which is locked.

    The id of a change's command begins with the change's kind.
    """
    found = find(session, command_id.rpartition(":")[2], lock=True)
    return found if found is not None and found.command_id == command_id else None


def find_all(session: Session, operation_ids: Collection[str]) -> Sequence[Operation]:
    """Returns the existing operations among some ids."""
    return session.scalars(select(Operation).where(Operation.id.in_(operation_ids))).all()


def list_page(
    session: Session,
    job_id: str,
    page: PageRequest,
    *,
    kinds: Collection[OperationKind] = (),
    statuses: Collection[OperationStatus] = (),
) -> Page[Operation]:
    """Returns a job's operations, the newest first.

    Without kinds or statuses, every kind or status is in the list.
    """
    wanted = select(Operation).where(Operation.job_id == job_id)
    if kinds:
        wanted = wanted.where(Operation.kind.in_(kinds))
    if statuses:
        wanted = wanted.where(Operation.status.in_(statuses))
    return read_page(session, wanted, (Operation.requested_at_ms, Operation.id), page)


def running(session: Session, job_id: str) -> Operation | None:
    """Returns the operation in progress that moves a job.

    Checkpoints, savepoints and a cancel are beside it.
    """
    return session.scalars(
        select(Operation)
        .where(
            Operation.job_id == job_id,
            Operation.status == OperationStatus.IN_PROGRESS,
            Operation.kind.not_in(BESIDE),
        )
        .execution_options(populate_existing=True)
    ).first()


def waiting(session: Session, job_id: str) -> Operation | None:
    """Returns the change of a job that waits for an approval."""
    return session.scalars(
        select(Operation).where(Operation.job_id == job_id, Operation.status == OperationStatus.PENDING_APPROVAL)
    ).first()


def in_progress(session: Session, job_id: str) -> Sequence[Operation]:
    """Returns all operations of a job in progress."""
    return session.scalars(
        select(Operation).where(Operation.job_id == job_id, Operation.status == OperationStatus.IN_PROGRESS)
    ).all()


def pending(session: Session, job_id: str, attempt: int) -> Sequence[Operation]:
    """Returns the operations whose commands wait for an attempt's result.

    The oldest comes first.
    """
    return session.scalars(
        select(Operation)
        .where(
            Operation.job_id == job_id,
            Operation.old_attempt == attempt,
            Operation.command_status == CommandStatus.IN_PROGRESS,
        )
        .order_by(Operation.requested_at_ms, Operation.id)
    ).all()


class Listening(NamedTuple):
    """A driver that waits until it is wanted.

    Attributes:
        job_id: Its job.
        attempt: The number of its attempt.
        revision: The revision that it takes its settings from.
    """

    job_id: str
    attempt: int
    revision: int


_WANTED = text(
    """
SELECT w.job_id, w.attempt, w.revision
FROM unnest(CAST(:job_ids AS text[]), CAST(:attempts AS bigint[]), CAST(:revisions AS bigint[]))
    AS w(job_id, attempt, revision)
LEFT JOIN attempts a ON a.job_id = w.job_id AND a.number = w.attempt
WHERE a.stage IS DISTINCT FROM 'ACTIVE' OR a.revision <> w.revision OR EXISTS (
    SELECT FROM operations o
    WHERE o.job_id = w.job_id AND o.old_attempt = w.attempt AND o.command_status = 'IN_PROGRESS'
) OR EXISTS (
    SELECT FROM diagnostics d
    WHERE d.job_id = w.job_id AND d.attempt = w.attempt AND d.ended_at_ms IS NULL
        AND d.until_ms > extract(epoch FROM now()) * 1000
)
"""
)


def wanted(session: Session, drivers: Collection[Listening]) -> set[Listening]:
    """Returns the drivers that must report.

    A command or a diagnostic waits for them, their settings have changed, or another attempt runs the job.
    """
    job_ids, numbers, known = zip(*drivers, strict=True)
    given = {"job_ids": list(job_ids), "attempts": list(numbers), "revisions": list(known)}
    return {Listening(*row) for row in session.connection().execute(_WANTED, given)}


def count_pending(session: Session, job_id: str) -> int:
    """Counts a job's commands without a result."""
    statement = select(func.count()).where(
        Operation.job_id == job_id, Operation.command_status == CommandStatus.IN_PROGRESS
    )
    return session.scalar(statement) or 0


def last_savepoint_of(session: Session, job_id: str, revision: int) -> str | None:
    """Returns the savepoint with which a job's revision last stopped.

    None if it stopped without a savepoint.
    """
    last = (
        select(Attempt.number)
        .where(Attempt.job_id == job_id, Attempt.revision == revision, Attempt.assigned_at_ms.is_not(None))
        .order_by(Attempt.number.desc())
        .limit(1)
        .scalar_subquery()
    )
    deleted = select(Checkpoint.checkpoint_id).where(
        Checkpoint.job_id == job_id,
        Checkpoint.external_path == Operation.location,
        Checkpoint.discard_requested_at_ms.is_not(None),
    )
    return session.scalars(
        select(Operation.location).where(
            Operation.job_id == job_id,
            Operation.kind.not_in(SNAPSHOTS),
            Operation.command_status == CommandStatus.COMPLETED,
            Operation.old_attempt == last,
            not_(deleted.exists()),
        )
    ).first()


def note_progress(
    session: Session, job_id: str, attempt: int, caught_up_at_ms: int | None, metrics: Mapping[str, Any] | None
) -> None:
    """Stores the progress of an attempt in the change that created it.

    The progress is the time of catching up, and the metrics since.
    """
    session.execute(
        update(Operation)
        .where(Operation.job_id == job_id, Operation.new_attempt == attempt)
        .values(caught_up_at_ms=caught_up_at_ms, metrics_after=null() if metrics is None else metrics)
    )


def last_to(session: Session, job_id: str, revisions: Collection[int]) -> dict[int, Operation]:
    """Returns the newest change to each revision, by revision number."""
    newest = (
        select(Operation.id)
        .where(
            Operation.job_id == Revision.job_id,
            Operation.to_revision == Revision.number,
            Operation.from_revision != Operation.to_revision,
        )
        .order_by(Operation.requested_at_ms.desc(), Operation.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    ids = select(newest).where(Revision.job_id == job_id, Revision.number.in_(revisions))
    found = session.scalars(select(Operation).where(Operation.id.in_(ids)))
    return {change.to_revision: change for change in found if change.to_revision is not None}


def last_downtimes(
    session: Session, job_id: str, kind: OperationKind, mode: RescaleMode | None, limit: int
) -> list[int]:
    """Returns the downtimes of a job's last completed operations.

    They are of one kind and, if rescales, of one way; in milliseconds, the newest first.
    """
    downtime = Operation.resumed_at_ms - Operation.stopped_at_ms
    of_way = (Operation.job_id == job_id, Operation.kind == kind, Operation.rescale_mode.is_not_distinct_from(mode))
    completed = (*of_way, Operation.status == OperationStatus.COMPLETED, downtime.is_not(None))
    newest = select(downtime).where(*completed).order_by(Operation.requested_at_ms.desc())
    return list(session.scalars(newest.limit(limit)))


def last_warm_ups(session: Session, job_id: str, limit: int) -> list[int]:
    """Returns how long drivers of earlier changes took to warm up.

    It is the time from a driver's request for work to the next phase of its change, in milliseconds, the newest first.
    """
    next_phase_at_ms = cast(Operation.phases[1]["started_at_ms"].astext, BigInteger)
    warm_ms = next_phase_at_ms - Attempt.attached_at_ms
    of_change = (Attempt.job_id == Operation.job_id) & (Attempt.number == Operation.new_attempt)
    by_new_driver = Operation.rescale_mode.is_distinct_from(RescaleMode.LIVE)
    found = select(warm_ms).select_from(Operation).join(Attempt, of_change).where(by_new_driver)
    newest = found.where(Operation.job_id == job_id, warm_ms >= 0).order_by(Operation.requested_at_ms.desc())
    return list(session.scalars(newest.limit(limit)))


def ended_between(session: Session, after_ms: int, until_ms: int) -> Sequence[Operation]:
    """Returns the operations of all jobs that ended in a time.

    The beginning of the time is excluded.
    """
    ended = Operation.ended_at_ms
    return session.scalars(select(Operation).where(ended > after_ms, ended <= until_ms).order_by(ended)).all()


def without_savepoint(session: Session, since_ms: int) -> Sequence[tuple[Operation, str]]:
    """Returns ended operations without a row of their savepoint.

    Their driver has ended or been replaced. It may have published the savepoint, and was not heard. Each comes with the
    URL of its job's store.

    Args:
        session: The transaction.
        since_ms: Operations that ended earlier are left out.
    """
    listed = exists().where(
        Checkpoint.job_id == Operation.job_id,
        Checkpoint.savepoint_id == Operation.id,
        Checkpoint.status.not_in([CheckpointStatus.IN_PROGRESS, CheckpointStatus.FAILED]),
    )
    took_one = Operation.kind != OperationKind.CHECKPOINT, Operation.rescale_mode.is_distinct_from(RescaleMode.LIVE)
    of_driver = (Attempt.job_id == Operation.job_id) & (Attempt.number == Operation.old_attempt)
    found = (
        select(Operation, Job.store_url)
        .join(Job, Job.id == Operation.job_id)
        .join(Attempt, of_driver)
        .where(Operation.command_status == CommandStatus.FAILED, *took_one, Operation.ended_at_ms >= since_ms)
        .where(Attempt.stage == AttemptStage.ENDED, not_(listed))
        .order_by(Operation.ended_at_ms.desc())
        .limit(100)
    )
    return [(operation, store_url) for operation, store_url in session.execute(found)]
