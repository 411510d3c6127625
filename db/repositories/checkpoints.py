"""Queries on checkpoints and savepoints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, bindparam, delete, exists, func, or_, select, text, true, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from keyscale.vocabulary import CheckpointStatus, SnapshotOwner

from ..models import Checkpoint, CheckpointSubtask, Job
from .pages import Page, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Select
    from sqlalchemy.orm import Session

    from ..models import Operation

_COUNTS = """
SELECT status, count(*) FROM checkpoints WHERE job_id = :job_id GROUP BY status
UNION ALL SELECT 'SUBSUMED', sum(completed)::bigint FROM checkpoint_days WHERE job_id = :job_id
UNION ALL SELECT 'FAILED', sum(failed)::bigint FROM checkpoint_days WHERE job_id = :job_id
"""
_SIZES = """
SELECT array_agg(checkpointed_size), array_agg(state_size), array_agg(end_to_end_duration), array_agg(processed_records)
FROM (
    SELECT * FROM checkpoints WHERE job_id = :job_id AND status = ANY(:statuses)
    ORDER BY checkpoint_id DESC LIMIT :limit
) newest
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The metrics of completed checkpoints, as lists in the same order."""

    checkpointed_size: Sequence[int]
    state_size: Sequence[int]
    end_to_end_duration: Sequence[int]
    processed_records: Sequence[int]


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest of each kind of a job's checkpoints and savepoints."""

    completed: Checkpoint | None
    savepoint: Checkpoint | None
    failed: Checkpoint | None


def list_page(
    session: Session, job_id: str, page: PageRequest, *, statuses: Collection[CheckpointStatus] = ()
) -> Page[Checkpoint]:
    """Returns the checkpoints and savepoints of a job, the newest first.

    Without statuses, every status is in the list.
    """
    wanted = select(Checkpoint).where(Checkpoint.job_id == job_id)
    if statuses:
        wanted = wanted.where(Checkpoint.status.in_(statuses))
    return read_page(session, wanted, (Checkpoint.checkpoint_id,), page)


def list_savepoints(
    session: Session, job_id: str, page: PageRequest, *, owner: SnapshotOwner | None = None
) -> Page[Checkpoint]:
    """Returns the completed savepoints of a job, the newest first.

    Without an owner, the savepoints of both owners are in the list.
    """
    wanted = select(Checkpoint).where(
        Checkpoint.job_id == job_id, Checkpoint.is_savepoint, Checkpoint.status == CheckpointStatus.COMPLETED
    )
    if owner is not None:
        wanted = wanted.where(Checkpoint.owner == owner)
    return read_page(session, wanted, (Checkpoint.checkpoint_id,), page)


def counts(session: Session, job_id: str) -> Counter[CheckpointStatus]:
    """Counts a job's checkpoints and savepoints, also removed ones, per status."""
    found = Counter[CheckpointStatus]()
    for status, number in session.execute(text(_COUNTS), {"job_id": job_id}):
        found[CheckpointStatus(status)] += number or 0
    return found


def sizes(session: Session, job_id: str, statuses: Collection[CheckpointStatus], limit: int) -> Sizes:
    """Returns the metrics of the newest checkpoints with some statuses."""
    parameters = {"job_id": job_id, "statuses": sorted(statuses), "limit": limit}
    return Sizes(*(values or () for values in session.execute(text(_SIZES), parameters).one()))


def latest(session: Session, job_id: str) -> Latest:
    """Returns a job's newest checkpoint, savepoint and failure."""
    found = {(one.status, one.is_savepoint): one for one in session.scalars(_LATEST, {"job_id": job_id})}
    completed, failed = CheckpointStatus.COMPLETED, CheckpointStatus.FAILED
    failures = [one for one in (found.get((failed, False)), found.get((failed, True))) if one is not None]
    return Latest(
        found.get((completed, False)),
        found.get((completed, True)),
        max(failures, key=attrgetter("checkpoint_id"), default=None),
    )


def _latest() -> Select[Checkpoint]:
    of_job = Checkpoint.job_id == bindparam("job_id")
    newest = [
        select(func.max(Checkpoint.checkpoint_id))
        .where(of_job, Checkpoint.status == status, Checkpoint.is_savepoint.is_(is_savepoint))
        .scalar_subquery()
        for status in (CheckpointStatus.COMPLETED, CheckpointStatus.FAILED)
        for is_savepoint in (False, True)
    ]
    return select(Checkpoint).where(of_job, Checkpoint.checkpoint_id.in_(newest))


# Built once: building costs as much as sending.
_LATEST = _latest()
_ENDED_WELL = frozenset({CheckpointStatus.COMPLETED, CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED})
_OF_CHANGES = (
    Checkpoint.is_savepoint,
    Checkpoint.owner == SnapshotOwner.PLATFORM,
    Checkpoint.status == CheckpointStatus.COMPLETED,
)
_FIND = select(Checkpoint).where(
    Checkpoint.job_id == bindparam("job_id"), Checkpoint.checkpoint_id == bindparam("checkpoint_id")
)
_FIND_BY_PATH = (
    select(Checkpoint)
    .where(Checkpoint.job_id == bindparam("job_id"), Checkpoint.external_path == bindparam("external_path"))
    .order_by(Checkpoint.checkpoint_id.desc())
    .limit(1)
)
_SUBTASKS = (
    select(CheckpointSubtask)
    .where(
        CheckpointSubtask.job_id == bindparam("job_id"), CheckpointSubtask.checkpoint_id == bindparam("checkpoint_id")
    )
    .order_by(CheckpointSubtask.operator_uid, CheckpointSubtask.subtask)
)


def failed_between(session: Session, job_id: str, from_ms: int, to_ms: int, *, limit: int) -> Sequence[Checkpoint]:
    """Returns the newest failed checkpoints that began within an interval.

    Savepoints count.
    """
    newest = (
        select(Checkpoint)
        .where(Checkpoint.job_id == job_id, Checkpoint.status == CheckpointStatus.FAILED)
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(limit)
    )
    return [found for found in session.scalars(newest) if from_ms <= found.trigger_timestamp <= to_ms]


def find(session: Session, job_id: str, checkpoint_id: int) -> Checkpoint | None:
    """Returns a job's checkpoint or savepoint with this number."""
    return session.scalars(_FIND, {"job_id": job_id, "checkpoint_id": checkpoint_id}).first()


def latest_completed(
    session: Session, job_id: str, *, since_attempt: int = 0, before_ms: int | None = None
) -> Checkpoint | None:
    """Returns a job's newest completed checkpoint or savepoint.

    It may be limited to newer attempts, and to the time before a time. A savepoint that no attempt has taken is derived
    from another one, and is not part of the job's history.
    """
    statement = select(Checkpoint).where(
        Checkpoint.job_id == job_id,
        Checkpoint.status == CheckpointStatus.COMPLETED,
        Checkpoint.attempt >= max(since_attempt, 1),
    )
    if before_ms is not None:
        statement = statement.where(Checkpoint.latest_ack_timestamp < before_ms)
    return session.scalars(statement.order_by(Checkpoint.checkpoint_id.desc()).limit(1)).first()


def next_id(session: Session, job_id: str) -> int:
    """Returns a number above all reported checkpoints of a job.

    A number is never used again.
    """
    return (session.scalar(select(func.max(Checkpoint.checkpoint_id)).where(Checkpoint.job_id == job_id)) or 0) + 1


def subtasks(session: Session, job_id: str, checkpoint_id: int) -> Sequence[CheckpointSubtask]:
    """Returns a checkpoint's subtasks by operator and index."""
    return session.scalars(_SUBTASKS, {"job_id": job_id, "checkpoint_id": checkpoint_id}).all()


def latest_with_parts(session: Session, job_id: str, limit: int) -> Sequence[Checkpoint]:
    """Returns a job's newest snapshots that completed and have parts."""
    return session.scalars(
        select(Checkpoint)
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.status.not_in((CheckpointStatus.IN_PROGRESS, CheckpointStatus.FAILED)),
            exists().where(
                CheckpointSubtask.job_id == Checkpoint.job_id,
                CheckpointSubtask.checkpoint_id == Checkpoint.checkpoint_id,
            ),
        )
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(limit)
    ).all()


def parts_of(
    session: Session, job_id: str, checkpoint_ids: Collection[int], operator_uid: str | None
) -> Sequence[CheckpointSubtask]:
    """Returns the parts of some checkpoints by index.

    They are of one operator, or of all operators.
    """
    statement = select(CheckpointSubtask).where(
        CheckpointSubtask.job_id == job_id, CheckpointSubtask.checkpoint_id.in_(checkpoint_ids)
    )
    if operator_uid is not None:
        statement = statement.where(CheckpointSubtask.operator_uid == operator_uid)
    return session.scalars(statement.order_by(CheckpointSubtask.subtask)).all()


def store_subtasks(session: Session, checkpoint: Checkpoint, rows: Sequence[dict[str, Any]]) -> None:
    """Stores the subtasks of a report.

    It writes the changed ones, and deletes those missing in the report.
    """
    highest: dict[str, int] = {}
    for row in rows:
        highest[row["operator_uid"]] = max(row["subtask"], highest.get(row["operator_uid"], 0))
    mine = CheckpointSubtask
    session.execute(
        delete(mine).where(
            mine.job_id == checkpoint.job_id,
            mine.checkpoint_id == checkpoint.checkpoint_id,
            or_(
                mine.operator_uid.not_in(highest),
                *(and_(mine.operator_uid == uid, mine.subtask > index) for uid, index in highest.items()),
            ),
        )
    )
    if not rows:
        return
    statement = insert(CheckpointSubtask)
    facts = [column.name for column in CheckpointSubtask.__table__.columns if not column.primary_key]
    statement = statement.on_conflict_do_update(
        index_elements=["job_id", "checkpoint_id", "operator_uid", "subtask"],
        set_={name: statement.excluded[name] for name in facts},
        where=or_(*(getattr(mine, name).is_distinct_from(statement.excluded[name]) for name in facts)),
    )
    keys = {"job_id": checkpoint.job_id, "checkpoint_id": checkpoint.checkpoint_id}
    session.execute(statement, [{**keys, **row} for row in rows])


def delete_some(session: Session, job_id: str, limit: int) -> int:
    """Deletes some of a deleted job's checkpoints; returns their number.

    Their subtasks are deleted, too.
    """
    some = select(Checkpoint.checkpoint_id).where(Checkpoint.job_id == job_id).limit(limit)
    gone = session.scalars(
        delete(Checkpoint)
        .where(Checkpoint.job_id == job_id, Checkpoint.checkpoint_id.in_(some))
        .returning(Checkpoint.checkpoint_id)
        .execution_options(synchronize_session=False)
    )
    return len(gone.all())


def mark_subsumed(session: Session, job_id: str, checkpoint_ids: Sequence[int]) -> None:
    """Marks checkpoints as subsumed; savepoints are never subsumed."""
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


def fail_unfinished(session: Session, job_id: str, attempt: int, *, at_ms: int, message: str) -> int:
    """Marks an attempt's unfinished checkpoints as failed; returns their number."""
    failed = session.scalars(
        update(Checkpoint)
        .where(
            Checkpoint.job_id == job_id,
            Checkpoint.attempt == attempt,
            Checkpoint.status == CheckpointStatus.IN_PROGRESS,
        )
        .values(status=CheckpointStatus.FAILED, failure_timestamp=at_ms, failure_message=message)
        .returning(Checkpoint.checkpoint_id)
    )
    return len(failed.all())


def find_savepoint(session: Session, job_id: str, savepoint_id: str) -> Checkpoint | None:
    """Returns a job's newest savepoint with an id."""
    return session.scalars(
        select(Checkpoint)
        .where(Checkpoint.job_id == job_id, Checkpoint.savepoint_id == savepoint_id)
        .order_by(Checkpoint.checkpoint_id.desc())
        .limit(1)
    ).first()


def store_published(
    session: Session,
    operation: Operation,
    *,
    checkpoint_id: int,
    location: str,
    batch_id: int,
    state_size: int,
    created_at_ms: int,
) -> None:
    """Stores a savepoint that its driver has published but not reported.

    Args:
        session: The transaction.
        operation: The operation that took the savepoint.
        checkpoint_id: Its number.
        location: Its manifest's location.
        batch_id: The batch that it was taken after.
        state_size: The size of its files, in bytes.
        created_at_ms: When its manifest was written.
    """
    savepoint = find(session, operation.job_id, checkpoint_id)
    if savepoint is not None and (savepoint.savepoint_id != operation.savepoint_id or savepoint.status in _ENDED_WELL):
        return
    if savepoint is None:
        savepoint = Checkpoint(
            job_id=operation.job_id,
            checkpoint_id=checkpoint_id,
            attempt=operation.old_attempt or 0,
            is_savepoint=True,
            savepoint_id=operation.savepoint_id,
            owner=operation.savepoint_owner,
            trigger_timestamp=created_at_ms,
            end_to_end_duration=0,
            checkpointed_size=state_size,
            processed_records=0,
            num_subtasks=0,
            num_acknowledged_subtasks=0,
        )
        session.add(savepoint)
    savepoint.status, savepoint.external_path, savepoint.batch_id = CheckpointStatus.COMPLETED, location, batch_id
    savepoint.state_size, savepoint.latest_ack_timestamp = state_size, created_at_ms
    savepoint.failure_timestamp = savepoint.failure_message = None


def store_changed(
    session: Session,
    job_id: str,
    savepoint_id: str,
    *,
    checkpoint_id: int,
    location: str,
    batch_id: int,
    state_size: int,
    created_at_ms: int,
) -> None:
    """Stores a savepoint with changed state, which belongs to its user.

    No attempt has taken it, so it is outside the job's history.

    Args:
        session: The transaction.
        job_id: The job.
        savepoint_id: The savepoint's id.
        checkpoint_id: Its number.
        location: Its manifest's location.
        batch_id: The batch of the snapshot that it is derived from.
        state_size: The size of its files, in bytes.
        created_at_ms: When its manifest was written.
    """
    session.add(
        Checkpoint(
            job_id=job_id,
            checkpoint_id=checkpoint_id,
            attempt=0,
            status=CheckpointStatus.COMPLETED,
            is_savepoint=True,
            savepoint_id=savepoint_id,
            owner=SnapshotOwner.USER,
            trigger_timestamp=created_at_ms,
            latest_ack_timestamp=created_at_ms,
            end_to_end_duration=0,
            checkpointed_size=state_size,
            state_size=state_size,
            processed_records=0,
            num_subtasks=0,
            num_acknowledged_subtasks=0,
            external_path=location,
            batch_id=batch_id,
        )
    )


def of_changes(session: Session, job_id: str) -> Sequence[Checkpoint]:
    """Returns a job's completed savepoints that changes took.

    A savepoint that its user keeps is left out.
    """
    return session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id, *_OF_CHANGES)).all()


def first_discarded(session: Session, except_for: Collection[tuple[str, int]]) -> tuple[Checkpoint, str] | None:
    """Returns the longest waiting checkpoint with a requested deletion.

    Its objects still exist.

    Args:
        session: The transaction.
        except_for: Checkpoints that are left for later, by job and number.

    Returns:
        The checkpoint and the URL of its job's store, or None.
    """
    row = session.execute(
        select(Checkpoint, Job.store_url)
        .join(Job, Job.id == Checkpoint.job_id)
        .where(
            Checkpoint.discard_requested_at_ms.is_not(None),
            Checkpoint.objects_deleted_at_ms.is_(None),
            tuple_(Checkpoint.job_id, Checkpoint.checkpoint_id).not_in(except_for) if except_for else true(),
        )
        .order_by(Checkpoint.discard_requested_at_ms)
        .limit(1)
    ).first()
    return None if row is None else (row[0], row[1])


def waiting_discarded(session: Session, job_id: str) -> list[str]:
    """Returns the locations of a job's savepoints that await deletion.

    Their objects still exist.
    """
    waiting = session.scalars(
        select(Checkpoint.external_path).where(
            Checkpoint.job_id == job_id,
            Checkpoint.is_savepoint,
            Checkpoint.discard_requested_at_ms.is_not(None),
            Checkpoint.objects_deleted_at_ms.is_(None),
        )
    )
    return [location for location in waiting if location is not None]


def discarded_among(session: Session, keys: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
    """Returns which of some checkpoints a user has discarded.

    Checkpoints are given by job and number.
    """
    rows = session.execute(
        select(Checkpoint.job_id, Checkpoint.checkpoint_id).where(
            tuple_(Checkpoint.job_id, Checkpoint.checkpoint_id).in_(keys),
            Checkpoint.discard_requested_at_ms.is_not(None),
        )
    )
    return {(job_id, checkpoint_id) for job_id, checkpoint_id in rows}


def is_discarded(session: Session, external_path: str) -> bool:
    """Returns whether a user has discarded the snapshot at a location."""
    is_gone = (Checkpoint.external_path == external_path, Checkpoint.discard_requested_at_ms.is_not(None))
    return session.scalar(select(Checkpoint.checkpoint_id).where(*is_gone).limit(1)) is not None


def note_verification(session: Session, job_id: str, checkpoint_id: int, verification: dict[str, Any]) -> None:
    """Stores the progress of a verification."""
    session.execute(
        update(Checkpoint)
        .where(Checkpoint.job_id == job_id, Checkpoint.checkpoint_id == checkpoint_id)
        .values(verification=verification)
    )


def find_by_path(session: Session, job_id: str, external_path: str) -> Checkpoint | None:
    """Returns the job's checkpoint or savepoint with a manifest's location."""
    return session.scalars(_FIND_BY_PATH, {"job_id": job_id, "external_path": external_path}).first()
