"""Queries of the autoscaler, on its decisions and on their facts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, delete, func, or_, select, update

from keyscale.vocabulary import (
    AttemptStage,
    AutoscalerMode,
    JobStatus,
    OperationStatus,
    ScalingOutcome,
    ScalingVerdict,
)

from ..models import Attempt, Job, LastHeartbeat, Operation, Revision, ScalingDecision, SeriesPoint
from .pages import Page, PageRequest, read_page
from .series import RETENTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Select
    from sqlalchemy.orm import Session

KEPT = 500
"""The number of decisions per job; adding a decision removes older ones."""
_MODE = Revision.spec["autoscaler"]["mode"].as_string()


class ScaledJob(NamedTuple):
    """A running job with an autoscaler.

    Attributes:
        id: Its id.
        name: Its name.
        status: Its status.
        revision: Its present revision.
        max_parallelism: The number of its key groups.
        spec: Its settings.
        failure: The failure that it has not recovered from.
        stage: The stage of its active attempt; None: it has none.
        parallelism: The attempt's parallelism.
        slots: The largest parallelism that the attempt's Spark can run.
        driver_state: What its driver reported last.
        heartbeat_at_ms: When the driver reported last.
        last_commit_at_ms: When the attempt committed last.
        metrics: What the driver reported.
        restored_at_ms: When the attempt had restored its state.
    """

    id: str
    name: str
    status: JobStatus
    revision: int
    max_parallelism: int
    spec: Mapping[str, Any]
    failure: Mapping[str, Any] | None
    stage: AttemptStage | None
    parallelism: int | None
    slots: int | None
    driver_state: str | None
    heartbeat_at_ms: int | None
    last_commit_at_ms: int | None
    metrics: Mapping[str, Any] | None
    restored_at_ms: int | None = None


class Load(NamedTuple):
    """The records that a job has read, and that wait."""

    at_ms: int
    input_records: int
    lag_records: int | None


class Run(NamedTuple):
    """A time in which a driver ran a job.

    Without an end the driver still runs it.
    """

    begin_ms: int
    end_ms: int | None
    parallelism: int


class PastDecision(NamedTuple):
    """A recent decision.

    Attributes:
        id: Its id.
        verdict: Its verdict.
        parallelism: The parallelism at the time.
        target: The parallelism that it wanted.
        confirmed_at_ms: When it was last confirmed.
        batch_limit: The records that the sources gave a batch at most.
        work_ms_before: The time of a thousand records' work at the time.
        work_ms_expected: The time that a move promised.
        outcome: What has become of a move.
        operation_id: The operation of a move.
        operation_status: Its status.
        operation_ended_at_ms: When it ended.
    """

    id: int
    verdict: ScalingVerdict
    parallelism: int
    target: int
    confirmed_at_ms: int
    batch_limit: int | None
    work_ms_before: float | None
    work_ms_expected: float | None
    outcome: ScalingOutcome | None
    operation_id: str | None
    operation_status: OperationStatus | None
    operation_ended_at_ms: int | None


def _jobs() -> Select[Any]:
    """Returns the query of all jobs, with the columns of `ScaledJob`."""
    active = and_(Attempt.job_id == Job.id, Attempt.stage == AttemptStage.ACTIVE)
    heartbeat = and_(LastHeartbeat.job_id == Attempt.job_id, LastHeartbeat.attempt == Attempt.number)
    return (
        select(Job.id, Job.name, Job.status, Job.revision, Job.max_parallelism, Revision.spec, Job.failure)
        .add_columns(Attempt.stage, Attempt.parallelism, Attempt.slots, Attempt.driver_state)
        .add_columns(LastHeartbeat.at_ms, LastHeartbeat.last_commit_at_ms, LastHeartbeat.metrics)
        .add_columns(Attempt.restored_at_ms)
        .join(Revision, and_(Revision.job_id == Job.id, Revision.number == Job.revision))
        .outerjoin(Attempt, active)
        .outerjoin(LastHeartbeat, heartbeat)
    )


def scaled_jobs(session: Session) -> Sequence[ScaledJob]:
    """Returns the jobs that run and have an autoscaler.

    A job that is being changed is left out.
    """
    rows = session.execute(
        _jobs().where(
            Job.status.in_((JobStatus.RUNNING, JobStatus.RESTARTING)),
            _MODE.in_((AutoscalerMode.MONITORING, AutoscalerMode.ACTIVE)),
        )
    )
    return [ScaledJob(*row) for row in rows]


def find_job(session: Session, job_id: str) -> ScaledJob:
    """Returns a job in any mode of its autoscaler."""
    return ScaledJob(*session.execute(_jobs().where(Job.id == job_id)).one())


def runs(session: Session, job_id: str, since_ms: int) -> Sequence[Run]:
    """Returns when drivers ran a job, in the order of time."""
    rows = session.execute(
        select(Attempt.running_at_ms, Attempt.ended_at_ms, Attempt.parallelism)
        .where(
            Attempt.job_id == job_id,
            Attempt.running_at_ms.is_not(None),
            or_(Attempt.ended_at_ms.is_(None), Attempt.ended_at_ms >= since_ms),
        )
        .order_by(Attempt.running_at_ms)
    )
    return [Run(begin_ms, end_ms, parallelism) for begin_ms, end_ms, parallelism in rows if begin_ms is not None]


def loads(
    session: Session, job_ids: Sequence[str], since_ms: int, step_ms: int = RETENTIONS[0].step_ms
) -> Mapping[str, Sequence[Load]]:
    """Returns the loads of jobs, in the order of time."""
    points = SeriesPoint.__table__.c
    rows = session.execute(
        select(points.job_id, points.at_ms, points.input_records, points.lag_records)
        .where(
            points.job_id.in_(job_ids),
            points.step_ms == step_ms,
            points.at_ms >= since_ms,
            points.input_records.is_not(None),
        )
        .order_by(points.at_ms)
    )
    found = defaultdict(list)
    for job_id, *load in rows:
        found[job_id].append(Load(*load))
    return found


def recent(session: Session, job_ids: Sequence[str], since_ms: int) -> Mapping[str, Sequence[PastDecision]]:
    """Returns the decisions since a time, the newest first.

    Each job's latest decision is among them, and so are the moves that are not measured yet.
    """
    latest = select(func.max(ScalingDecision.id)).where(ScalingDecision.job_id.in_(job_ids))
    operation = and_(Operation.id == ScalingDecision.operation_id, Operation.job_id == ScalingDecision.job_id)
    rows = session.execute(
        select(ScalingDecision.job_id, ScalingDecision.id, ScalingDecision.verdict)
        .add_columns(ScalingDecision.parallelism, ScalingDecision.target, ScalingDecision.confirmed_at_ms)
        .add_columns(
            ScalingDecision.facts["batch_limit"].as_integer(),
            ScalingDecision.present["work_ms"].as_float(),
            ScalingDecision.expected["work_ms"].as_float(),
        )
        .add_columns(ScalingDecision.outcome, ScalingDecision.operation_id, Operation.status, Operation.ended_at_ms)
        .outerjoin(Operation, operation)
        .where(
            ScalingDecision.job_id.in_(job_ids),
            or_(
                ScalingDecision.confirmed_at_ms >= since_ms,
                ScalingDecision.outcome == ScalingOutcome.PENDING,
                ScalingDecision.id.in_(latest.group_by(ScalingDecision.job_id)),
            ),
        )
        .order_by(ScalingDecision.id.desc())
    )
    found = defaultdict(list)
    for job_id, *decision in rows:
        found[job_id].append(PastDecision(*decision))
    return found


def core_ms(session: Session, job_ids: Sequence[str], since_ms: int, at_ms: int) -> Mapping[str, int]:
    """Returns the parallelism of jobs by time, since a time.

    A sleeping driver holds no cores.
    """
    begin = func.greatest(Attempt.running_at_ms, since_ms)
    end = func.least(func.coalesce(Attempt.ended_at_ms, at_ms), Attempt.fell_asleep_at_ms, at_ms)
    rows = session.execute(
        select(Attempt.job_id, func.sum(Attempt.parallelism * func.greatest(end - begin, 0)))
        .where(
            Attempt.job_id.in_(job_ids),
            Attempt.running_at_ms.is_not(None),
            or_(Attempt.ended_at_ms.is_(None), Attempt.ended_at_ms >= since_ms),
        )
        .group_by(Attempt.job_id)
    )
    return {job_id: int(used_ms) for job_id, used_ms in rows}


def record(session: Session, decision: ScalingDecision) -> None:
    """Adds a decision, and removes outdated ones of its job."""
    session.add(decision)
    session.flush()
    of_job = select(ScalingDecision.id).where(ScalingDecision.job_id == decision.job_id)
    oldest = of_job.order_by(ScalingDecision.id.desc()).offset(KEPT).limit(1).scalar_subquery()
    session.execute(
        delete(ScalingDecision).where(ScalingDecision.job_id == decision.job_id, ScalingDecision.id <= oldest)
    )


def confirm(session: Session, decision_id: int, confirmed_at_ms: int, **columns: Any) -> None:
    """Stores that a decision is still the same, with its present facts."""
    session.execute(
        update(ScalingDecision)
        .where(ScalingDecision.id == decision_id)
        .values(confirmed_at_ms=confirmed_at_ms, **columns)
    )


def settle(
    session: Session, decision_id: int, outcome: ScalingOutcome, measured: Mapping[str, Any] | None = None
) -> None:
    """Stores what has become of a move."""
    session.execute(
        update(ScalingDecision).where(ScalingDecision.id == decision_id).values(outcome=outcome, measured=measured)
    )


def list_page(session: Session, job_id: str, page: PageRequest, *, moves_only: bool = False) -> Page[ScalingDecision]:
    """Returns a job's decisions, the newest first."""
    statement = select(ScalingDecision).where(ScalingDecision.job_id == job_id)
    if moves_only:
        statement = statement.where(ScalingDecision.operation_id.is_not(None))
    return read_page(session, statement, (ScalingDecision.id,), page)
