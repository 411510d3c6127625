"""The facts of many jobs from which Prometheus's metrics follow.

One statement reads them for all jobs of a scope.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, func, literal, select, true
from sqlalchemy.dialects.postgresql import JSONB

from keyscale.vocabulary import AttemptStage, AutoscalerMode, CheckpointStatus, DesiredState, JobStatus, ScalingVerdict

from ..models import Attempt, Checkpoint, Job, LastHeartbeat, Operation, Revision, ScalingDecision
from .attempts import was_opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.orm import Session
    from sqlalchemy.sql.selectable import LateralFromClause

    from ..job_scope import JobScope


class Snapshot(NamedTuple):
    """The newest checkpoint or savepoint of a status."""

    id: int
    ended_at_ms: int | None
    duration_ms: int
    checkpointed_size: int
    state_size: int


class ObservedJob(NamedTuple):
    """The facts of a job at one moment.

    Attributes:
        id: Its id.
        name: Its name.
        status: Its status.
        desired: Whether it is to run.
        restarts: Restarts after failures.
        checkpoints: The settings of its checkpoints.
        stage: The stage of the attempt that may run the job, or else of its newest attempt.
        driver_state: What the attempt's driver reported last.
        running_at_ms: When the driver began to run the job.
        totals_before: The job's counters before the attempt.
        heartbeat_at_ms: When the driver reported last.
        metrics: What it reported.
        completed: The latest completed checkpoint or savepoint.
        failed: The latest failed checkpoint or savepoint.
        downtime_ms: The downtime of the newest operation that has resumed the job.
        failure: The failure that has ended the job, or its last attempt.
        last_commit_at_ms: When the attempt committed last.
        scaling_verdict: The verdict of the autoscaler; None: it is disabled, or has not decided.
        scaling_target: The parallelism that the autoscaler wants.
        cause: Why the attempt was created.
        created_at_ms: When the attempt was created.
    """

    id: str
    name: str
    status: JobStatus
    desired: DesiredState
    restarts: int
    checkpoints: Mapping[str, Any] | None
    stage: AttemptStage | None
    driver_state: str | None
    running_at_ms: int | None
    totals_before: Mapping[str, Any] | None
    heartbeat_at_ms: int | None
    metrics: Mapping[str, Any] | None
    completed: Snapshot | None
    failed: Snapshot | None
    downtime_ms: int | None
    failure: Mapping[str, Any] | None
    last_commit_at_ms: int | None
    scaling_verdict: ScalingVerdict | None = None
    scaling_target: int | None = None
    cause: str | None = None
    created_at_ms: int | None = None


def of_scope(
    session: Session, scope: JobScope, *, limit: int, report: tuple[str, ...] | None = None
) -> Sequence[ObservedJob]:
    """Returns the facts of the newest jobs of a scope.

    It takes one statement.

    Args:
        session: The transaction.
        scope: The scope.
        limit: The greatest number of jobs.
        report: The parts of `metrics` to read; None: all. A whole report takes most of the time of a job.
    """
    facts = _facts(report).where(scope.criterion()).order_by(_JOB.created_at_ms.desc()).limit(limit)
    rows = session.execute(facts)
    return [ObservedJob._make((*row[:_BEFORE], *_snapshots(row[_BEFORE:-_AFTER]), *row[-_AFTER:])) for row in rows]


def _snapshots(columns: Sequence[Any]) -> tuple[Snapshot | None, Snapshot | None]:
    """Returns the newest completed and the newest failed snapshot.

    `columns` are of the newest checkpoint and savepoint, completed and failed.
    """
    width = len(Snapshot._fields)
    found = [columns[at : at + width] for at in range(0, len(columns), width)]
    known = [None if part[0] is None else Snapshot(*part) for part in found]
    completed = max((each for each in known[:2] if each is not None), default=None)
    return completed, max((each for each in known[2:] if each is not None), default=None)


def _fixed(value: Any) -> ColumnElement[Any]:
    return literal(value, literal_execute=True)


_JOB, _REVISION, _HEARTBEAT = Job.__table__.c, Revision.__table__.c, LastHeartbeat.__table__.c
_OTHER = Attempt.__table__.alias()
_OF_JOB = select(_OTHER.c.number).where(_OTHER.c.job_id == _JOB.id).correlate(Job.__table__)
_ACTIVE = _OF_JOB.where(_OTHER.c.stage == _fixed(AttemptStage.ACTIVE)).scalar_subquery()
_NEWEST = _OF_JOB.where(was_opened(_OTHER.c)).order_by(_OTHER.c.number.desc()).limit(_fixed(1)).scalar_subquery()
_ATTEMPT = (
    select(Attempt.__table__)
    .where(Attempt.__table__.c.job_id == _JOB.id, Attempt.__table__.c.number == func.coalesce(_ACTIVE, _NEWEST))
    .limit(_fixed(1))
    .correlate(Job.__table__)
    .lateral("attempt")
)
_OF_CHECKPOINT = Checkpoint.__table__.c


def _latest(status: CheckpointStatus, *, is_savepoint: bool) -> LateralFromClause:
    columns = (
        _OF_CHECKPOINT.checkpoint_id,
        _OF_CHECKPOINT.latest_ack_timestamp,
        _OF_CHECKPOINT.end_to_end_duration,
        _OF_CHECKPOINT.checkpointed_size,
        _OF_CHECKPOINT.state_size,
    )
    return (
        select(*columns)
        .where(
            _OF_CHECKPOINT.job_id == _JOB.id,
            _OF_CHECKPOINT.status == _fixed(status),
            _OF_CHECKPOINT.is_savepoint.is_(is_savepoint),
        )
        .order_by(_OF_CHECKPOINT.checkpoint_id.desc())
        .limit(_fixed(1))
        .correlate(Job.__table__)
        .lateral(f"{status.lower()}_{'savepoint' if is_savepoint else 'checkpoint'}")
    )


_SNAPSHOTS = tuple(
    _latest(status, is_savepoint=is_savepoint)
    for status in (CheckpointStatus.COMPLETED, CheckpointStatus.FAILED)
    for is_savepoint in (False, True)
)
_BEFORE = ObservedJob._fields.index("completed")
_AFTER = len(ObservedJob._fields) - ObservedJob._fields.index("downtime_ms")
_OF_OPERATION = Operation.__table__.c
_DOWNTIME = (
    select((_OF_OPERATION.resumed_at_ms - _OF_OPERATION.stopped_at_ms).label("downtime_ms"))
    .where(
        _OF_OPERATION.job_id == _JOB.id,
        _OF_OPERATION.resumed_at_ms.is_not(None),
        _OF_OPERATION.stopped_at_ms.is_not(None),
    )
    .order_by(_OF_OPERATION.requested_at_ms.desc())
    .limit(_fixed(1))
    .correlate(Job.__table__)
    .lateral("operation")
)
_OF_DECISION = ScalingDecision.__table__.c
_SCALING = (
    select(_OF_DECISION.verdict, _OF_DECISION.target)
    .where(
        _OF_DECISION.job_id == _JOB.id,
        _REVISION.spec["autoscaler"]["mode"].as_string() != _fixed(AutoscalerMode.DISABLED),
    )
    .order_by(_OF_DECISION.id.desc())
    .limit(_fixed(1))
    .correlate(Job.__table__, Revision.__table__)
    .lateral("scaling_decision")
)


@cache
def _facts(report: tuple[str, ...] | None) -> Select[Any]:
    reported: ColumnElement[Any] = _HEARTBEAT.metrics
    if report is not None:
        parts = chain.from_iterable((_fixed(name), _HEARTBEAT.metrics[name]) for name in report)
        reported = func.jsonb_build_object(*parts, type_=JSONB)
    facts = (
        select(_JOB.id, _JOB.name, _JOB.status, _JOB.desired, _JOB.restarts, _REVISION.spec["checkpoints"])
        .add_columns(_ATTEMPT.c.stage, _ATTEMPT.c.driver_state, _ATTEMPT.c.running_at_ms, _ATTEMPT.c.totals_before)
        .add_columns(_HEARTBEAT.at_ms, reported)
        .add_columns(*(column for each in _SNAPSHOTS for column in each.c), _DOWNTIME.c.downtime_ms)
        .add_columns(_JOB.failure, _HEARTBEAT.last_commit_at_ms, _SCALING.c.verdict, _SCALING.c.target)
        .add_columns(_ATTEMPT.c.cause, _ATTEMPT.c.created_at_ms)
        .select_from(Job.__table__)
        .join(Revision.__table__, and_(_REVISION.job_id == _JOB.id, _REVISION.number == _JOB.revision))
        .outerjoin(_ATTEMPT, true())
        .outerjoin(
            LastHeartbeat.__table__,
            and_(_HEARTBEAT.job_id == _ATTEMPT.c.job_id, _HEARTBEAT.attempt == _ATTEMPT.c.number),
        )
        .outerjoin(_DOWNTIME, true())
        .outerjoin(_SCALING, true())
    )
    for each in _SNAPSHOTS:
        facts = facts.outerjoin(each, true())
    return facts
