"""Queries on attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, bindparam, exists, func, not_, or_, select, text
from sqlalchemy.orm import aliased, lazyload

from keyscale.vocabulary import AttemptStage, DriverState, JobStatus

from ..models import Attempt, Job, LastHeartbeat, Operation
from .pages import Page, PageRequest, read_page

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import ColumnElement
    from sqlalchemy.orm import Session
    from sqlalchemy.sql.base import ReadOnlyColumnCollection

    from keyscale.vocabulary import ClaimMode


def was_opened(columns: ReadOnlyColumnCollection[str, Any]) -> ColumnElement[bool]:
    """Returns the condition that a driver has had an attempt.

    A live rescale reserves attempts that may never be opened.
    """
    return or_(columns.run.is_(None), columns.driver_state.is_not(None))


_UNOPENED = not_(was_opened(Attempt.__table__.c))
_STARTABLE = (AttemptStage.STANDBY, AttemptStage.ACTIVE)
_GOES_ON = (
    JobStatus.RUNNING,
    JobStatus.SLEEPING,
    JobStatus.SAVEPOINTING,
    JobStatus.RESCALING,
    JobStatus.UPGRADING,
    JobStatus.RESTARTING,
)


@dataclass(frozen=True, slots=True)
class Restores:
    """A job's finished restores: their number, and the newest's time and origin."""

    count: int
    newest_at_ms: int
    newest_from: str


def list_page(session: Session, job_id: str, page: PageRequest) -> Page[Attempt]:
    """Returns a job's attempts, the newest first.

    An attempt that was only reserved does not count.
    """
    return read_page(session, select(Attempt).where(Attempt.job_id == job_id, not_(_UNOPENED)), (Attempt.number,), page)


def numbers_of(session: Session, job_ids: Collection[str]) -> dict[str, set[int]]:
    """Returns the numbers of attempts and runs, by job."""
    found: dict[str, set[int]] = {}
    columns = (Attempt.job_id, Attempt.number, func.coalesce(Attempt.run, Attempt.number))
    for job_id, number, run in session.execute(select(*columns).where(Attempt.job_id.in_(job_ids))):
        found.setdefault(job_id, set()).update((number, run))
    return found


def count_after(session: Session, job_id: str, number: int, causes: Collection[str]) -> int:
    """Counts a job's later attempts with the given causes."""
    counted = select(func.count()).where(Attempt.job_id == job_id, Attempt.number > number, Attempt.cause.in_(causes))
    return session.scalar(counted) or 0


def count_since(session: Session, job_id: str, at_ms: int) -> int:
    """Counts a job's attempts that were created since a time."""
    counted = select(func.count()).where(Attempt.job_id == job_id, Attempt.created_at_ms >= at_ms)
    return session.scalar(counted) or 0


_RESTORES = (
    select(func.count().over(), Attempt.restored_at_ms, Attempt.restore_from)
    .where(
        Attempt.job_id == bindparam("job_id"), Attempt.restored_at_ms.is_not(None), Attempt.restore_from.is_not(None)
    )
    .order_by(Attempt.number.desc())
    .limit(1)
)


def restores(session: Session, job_id: str) -> Restores | None:
    """Returns the finished restores of a job's attempts, or None."""
    for count, at_ms, location in session.execute(_RESTORES, {"job_id": job_id}):
        if at_ms is not None and location is not None:
            return Restores(count, at_ms, location)
    return None


def restored_from(session: Session, job_id: str) -> list[tuple[str, ClaimMode]]:
    """Returns the distinct locations and modes of a job's restores.

    Pending restores count.
    """
    rows = session.execute(
        select(Attempt.restore_from, Attempt.claim_mode)
        .where(Attempt.job_id == job_id, Attempt.restore_from.is_not(None))
        .distinct()
    )
    return [(location, claim_mode) for location, claim_mode in rows if location is not None]


_COUNTED = (
    select(Attempt)
    .join(LastHeartbeat, Attempt.heartbeat)
    .where(Attempt.job_id == bindparam("job_id"), LastHeartbeat.metrics.is_not(None))
    .order_by(Attempt.number.desc())
    .limit(1)
)


def counted_before(session: Session, job_id: str, number: int) -> Attempt | None:
    """Returns the newest earlier attempt with reported counters."""
    return session.scalars(_COUNTED.where(Attempt.number < number), {"job_id": job_id}).first()


def newest_counted(session: Session, job_id: str) -> Attempt | None:
    """Returns the newest attempt with reported counters."""
    return session.scalars(_COUNTED, {"job_id": job_id}).first()


def find_restored(session: Session, job_id: str, restore_id: str) -> Attempt | None:
    """Returns the first attempt that has carried out a restore request."""
    done = (Attempt.job_id == job_id, Attempt.restore_id == restore_id, Attempt.restored_at_ms.is_not(None))
    return session.scalars(select(Attempt).where(*done).order_by(Attempt.number).limit(1)).first()


def newest_restored(session: Session, job_id: str, *, before: int) -> int:
    """Returns the newest earlier attempt that has restored state, or 0."""
    restored = (Attempt.job_id == job_id, Attempt.number < before, Attempt.restored_at_ms.is_not(None))
    return session.scalar(select(func.max(Attempt.number)).where(*restored)) or 0


def find(session: Session, job_id: str, number: int, *, lock: bool = False) -> Attempt | None:
    """Returns a job's attempt with this number.

    `lock` keeps other transactions from changing it and its heartbeat.
    """
    if not lock:
        return session.get(Attempt, (job_id, number))
    # The heartbeat is read while the lock is held: in one statement it could be older than the attempt.
    later = lazyload(Attempt.heartbeat)
    return session.get(Attempt, (job_id, number), options=[later], with_for_update=True, populate_existing=True)


class Repeated(NamedTuple):
    """An attempt that has reported the same once more.

    Attributes:
        heartbeat_at_ms: The time of its heartbeat before.
        totals_before: The job's counters before the attempt.
    """

    heartbeat_at_ms: int | None
    totals_before: dict[str, Any] | None


_REPEAT = text(
    """
UPDATE heartbeats h SET at_ms = :at_ms
FROM attempts a, (SELECT at_ms FROM heartbeats WHERE job_id = :job_id AND attempt = :attempt FOR UPDATE) AS earlier
WHERE h.job_id = :job_id AND h.attempt = :attempt AND a.job_id = :job_id AND a.number = :attempt
    AND h.metrics = CAST(:metrics AS jsonb) AND h.last_commit_batch_id IS NOT DISTINCT FROM :last_batch_id
    AND a.stage = 'ACTIVE' AND a.driver_state = 'RUNNING' AND a.revision = :revision
    AND a.sleep_requested_at_ms IS NULL
    AND a.restored_at_ms IS NOT DISTINCT FROM :restored_at_ms
    AND a.caught_up_at_ms IS NOT NULL AND a.settled_at_ms IS NOT NULL
    AND NOT EXISTS (
        SELECT FROM operations
        WHERE job_id = :job_id AND old_attempt = :attempt AND command_status = 'IN_PROGRESS'
    ) AND NOT EXISTS (
        SELECT FROM diagnostics
        WHERE job_id = :job_id AND attempt = :attempt AND ended_at_ms IS NULL AND until_ms > :at_ms
    )
RETURNING earlier.at_ms, a.totals_before
"""
)


def repeat_heartbeat(
    session: Session,
    job_id: str,
    number: int,
    *,
    metrics_json: str,
    last_batch_id: int | None,
    revision: int | None,
    restored_at_ms: int | None,
    at_ms: int,
) -> Repeated | None:
    """Stores the time of a heartbeat that repeats the last one.

    Returns None, and stores nothing, unless the attempt runs its job, has caught up, and has no command to carry out.
    """
    given = {
        "job_id": job_id,
        "attempt": number,
        "metrics": metrics_json,
        "last_batch_id": last_batch_id,
        "revision": revision,
        "restored_at_ms": restored_at_ms,
        "at_ms": at_ms,
    }
    row = session.connection().execute(_REPEAT, given).first()
    return None if row is None else Repeated._make(row)


def lock_unended(session: Session, job_id: str) -> None:
    """Locks the attempts of a job that have not ended."""
    unended = (Attempt.job_id == job_id, Attempt.stage != AttemptStage.ENDED)
    session.execute(select(Attempt.number).where(*unended).order_by(Attempt.number).with_for_update())


class TokenHolder(NamedTuple):
    """The attempt whose driver has a token."""

    job_id: str
    number: int
    stage: AttemptStage
    token_sha256: str | None


_TOKEN_HOLDER = select(Attempt.job_id, Attempt.number, Attempt.stage, Attempt.token_sha256).where(
    Attempt.token_sha256 == bindparam("token_sha256")
)


def find_by_token(session: Session, token_sha256: str) -> TokenHolder | None:
    """Returns the attempt with a driver's token, given by its hash."""
    row = session.connection().execute(_TOKEN_HOLDER, {"token_sha256": token_sha256}).first()
    return None if row is None else TokenHolder._make(row)


def of_stage(session: Session, job_id: str, stage: AttemptStage) -> Attempt | None:
    """Returns the job's ACTIVE or STANDBY attempt.

    There is at most one of each.
    """
    return session.scalars(
        select(Attempt)
        .where(Attempt.job_id == job_id, Attempt.stage == stage)
        .execution_options(populate_existing=True)
    ).first()


def all_of_stage(session: Session, job_id: str, stage: AttemptStage) -> Sequence[Attempt]:
    """Returns a job's attempts of a stage, in order."""
    return session.scalars(
        select(Attempt)
        .where(Attempt.job_id == job_id, Attempt.stage == stage)
        .order_by(Attempt.number)
        .execution_options(populate_existing=True)
    ).all()


def list_unstarted(session: Session, states: Collection[str]) -> Sequence[tuple[Attempt, int]]:
    """Returns the attempts that have not ended and do not run yet.

    Each comes with the time at which its job was created.

    Args:
        session: The transaction.
        states: What a driver reports before it runs the job; a driver that has reported nothing counts, too.
    """
    unstarted = or_(Attempt.driver_state.is_(None), Attempt.driver_state.in_(states))
    return session.execute(
        select(Attempt, Job.created_at_ms)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.stage.in_(_STARTABLE), unstarted)
        .options(lazyload(Attempt.heartbeat))
    ).all()


def count_uncommitted(session: Session, since_ms: int) -> int:
    """Counts the attempts that run since a time, without a commit."""
    uncommitted = (Attempt.running_at_ms >= since_ms, Attempt.first_commit_at_ms.is_(None))
    counted = select(func.count()).where(Attempt.stage == AttemptStage.ACTIVE, *uncommitted)
    return session.scalar(counted) or 0


def list_running(session: Session, place: str, limit: int) -> Sequence[Attempt]:
    """Returns the attempts that a place's drivers run, the newest start first.

    A job that restarts or is being changed has the attempt that ran last.
    """
    running = and_(Attempt.stage == AttemptStage.ACTIVE, Attempt.driver_state == DriverState.RUNNING)
    ran = aliased(Attempt)
    last = select(func.max(ran.number)).where(ran.job_id == Job.id, ran.running_at_ms.is_not(None)).scalar_subquery()
    return session.scalars(
        select(Attempt)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.launched_on == place, or_(running, and_(Job.status.in_(_GOES_ON), Attempt.number == last)))
        .order_by(Attempt.launched_at_ms.desc())
        .limit(limit)
        .options(lazyload(Attempt.heartbeat))
    ).all()


def list_unlaunched(session: Session) -> Sequence[tuple[str, int, AttemptStage, int, int]]:
    """Returns the attempts that have not ended and were never launched.

    Each with its job, number, stage, and the times at which it and its job were created.
    """
    columns = (Attempt.job_id, Attempt.number, Attempt.stage, Attempt.created_at_ms, Job.created_at_ms)
    unlaunched = (Attempt.launched_at_ms.is_(None), Attempt.driver_state.is_(None))
    return session.execute(
        select(*columns).join(Job, Job.id == Attempt.job_id).where(Attempt.stage.in_(_STARTABLE), *unlaunched)
    ).all()


def unreaped(session: Session, job_id: str) -> Sequence[Attempt]:
    """Returns ended attempts that may still have processes."""
    return session.scalars(
        select(Attempt)
        .where(Attempt.job_id == job_id, Attempt.stage == AttemptStage.ENDED, Attempt.reaped.is_(False))
        .order_by(Attempt.number)
    ).all()


def ran_before(session: Session, job_id: str, number: int, *, since_ms: int, limit: int) -> Sequence[Attempt]:
    """Returns the newest earlier attempts that ran the job.

    They were created since a time and were given the job to run.
    """
    ran = (Attempt.number < number, Attempt.created_at_ms >= since_ms, Attempt.assigned_at_ms.is_not(None))
    return session.scalars(
        select(Attempt).where(Attempt.job_id == job_id, *ran).order_by(Attempt.number.desc()).limit(limit)
    ).all()


def latest(session: Session, job_id: str) -> Attempt | None:
    """Returns the attempt that runs a job, or else the newest.

    An attempt that only warmed up, or was only reserved, does not count.
    """
    only_warmed_up = exists().where(
        Operation.job_id == job_id,
        Operation.new_attempt == Attempt.number,
        Operation.stopped_at_ms.is_(None),
    )
    preference = (Attempt.stage != AttemptStage.ACTIVE, _UNOPENED, only_warmed_up, Attempt.number.desc())
    return session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(*preference).limit(1)).first()


def next_number(session: Session, job_id: str) -> int:
    """Returns a fencing number above all earlier ones of the job."""
    return (session.scalar(select(func.max(Attempt.number)).where(Attempt.job_id == job_id)) or 0) + 1


def first_since(session: Session, job_id: str, since_ms: int, until_ms: int) -> Attempt | None:
    """Returns a job's first attempt of an inclusive interval of time."""
    of_job = (Attempt.job_id == job_id, Attempt.created_at_ms.between(since_ms, until_ms))
    return session.scalars(select(Attempt).where(*of_job).order_by(Attempt.number).limit(1)).first()
