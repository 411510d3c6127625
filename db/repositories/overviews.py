"""Overviews of jobs: the facts beside a job's own row.

One statement reads them for any number of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Text, and_, any_, bindparam, func, literal, or_, select, true
from sqlalchemy.dialects.postgresql import ARRAY

from keyscale.vocabulary import BESIDE, AttemptStage, CheckpointStatus, OperationStatus

from ..models import Artifact, Attempt, Checkpoint, Job, LastHeartbeat, Operation, Revision
from .attempts import was_opened

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.orm import Session
    from sqlalchemy.sql.selectable import LateralFromClause

    from keyscale.vocabulary import OperationKind


@dataclass(frozen=True, slots=True)
class LatestSnapshot:
    """The latest completed checkpoint or savepoint of a job."""

    id: int
    completed_at_ms: int | None
    end_to_end_duration: int
    checkpointed_size: int
    state_size: int


@dataclass(frozen=True, slots=True)
class JobOverview:
    """The facts that the pages show of a job.

    Attributes:
        job: The columns of its own row.
        revision: The columns of its present revision.
        attempt: The columns of the attempt that may run the job, or else its newest attempt, and of its last heartbeat.
        artifact_name: The name of the revision's program.
        artifact_version: The version of the revision's program.
        operation_id: The operation in progress that moves the job.
        operation_kind: The kind of that operation.
        operation_phases: The phases of that operation, as stored; None without an operation.
        checkpoint: The latest completed checkpoint.
        savepoint: The latest completed savepoint.
    """

    job: Mapping[str, Any]
    revision: Mapping[str, Any]
    attempt: Mapping[str, Any] | None
    artifact_name: str
    artifact_version: int
    operation_id: str | None
    operation_kind: OperationKind | None
    operation_phases: Sequence[Mapping[str, Any]] | None
    checkpoint: LatestSnapshot | None
    savepoint: LatestSnapshot | None


def find(session: Session, reference: str) -> JobOverview | None:
    """Returns the overview of the job with an id or name."""
    row = session.execute(_OF_ONE, {"reference": reference}).first()
    return None if row is None else _overview(row)


def of_jobs(session: Session, job_ids: Collection[str]) -> dict[str, JobOverview]:
    """Returns the overviews of jobs, by job; a deleted job is missing."""
    found = map(_overview, session.execute(_OF_MANY, {"job_ids": sorted(job_ids)}))
    return {overview.job["id"]: overview for overview in found}


def _overview(row: Sequence[Any]) -> JobOverview:
    values = iter(row)
    job, revision, attempt = ({name: next(values) for name in table} for table in (_JOB, _REVISION, _ATTEMPT))
    name, version, operation_id, operation_kind, phases, *latest = values
    return JobOverview(
        job,
        revision,
        None if attempt["number"] is None else attempt,
        name,
        version,
        operation_id,
        operation_kind,
        phases,
        _snapshot(latest[:5]),
        _snapshot(latest[5:]),
    )


def _snapshot(columns: Sequence[Any]) -> LatestSnapshot | None:
    return None if columns[0] is None else LatestSnapshot(*columns)


def _fixed(value: Any) -> ColumnElement[Any]:
    """Returns a value that is part of the statement.

    PostgreSQL plans the statement once, and needs the value to choose an index.
    """
    return literal(value, literal_execute=True)


def _attempt() -> LateralFromClause:
    """Returns the attempt that may run the job, or else its newest.

    Reads only that attempt.
    """
    other = _ATTEMPTS.alias()
    of_job = select(other.c.number).where(other.c.job_id == _JOBS.c.id).correlate(_JOBS)
    active = of_job.where(other.c.stage == _fixed(AttemptStage.ACTIVE)).scalar_subquery()
    newest = of_job.where(was_opened(other.c)).order_by(other.c.number.desc()).limit(_fixed(1)).scalar_subquery()
    return (
        select(_ATTEMPTS)
        .where(_ATTEMPTS.c.job_id == _JOBS.c.id, _ATTEMPTS.c.number == func.coalesce(active, newest))
        .limit(_fixed(1))
        .correlate(_JOBS)
        .lateral("attempt")
    )


def _latest(*, is_savepoint: bool) -> LateralFromClause:
    of = Checkpoint.__table__.c
    return (
        select(of.checkpoint_id, of.latest_ack_timestamp, of.end_to_end_duration, of.checkpointed_size, of.state_size)
        .where(
            of.job_id == _JOBS.c.id,
            of.status == _fixed(CheckpointStatus.COMPLETED),
            of.is_savepoint.is_(is_savepoint),
        )
        .order_by(of.checkpoint_id.desc())
        .limit(_fixed(1))
        .correlate(_JOBS)
        .lateral("savepoint" if is_savepoint else "checkpoint")
    )


def _overviews() -> Select[Any]:
    checkpoint, savepoint = _latest(is_savepoint=False), _latest(is_savepoint=True)
    job, revision, artifact, operation = _JOBS.c, Revision.__table__.c, Artifact.__table__.c, Operation.__table__.c
    heartbeat = LastHeartbeat.__table__.c
    return (
        select(*_JOB.values(), *_REVISION.values(), *_ATTEMPT.values())
        .add_columns(artifact.name, artifact.version, operation.id, operation.kind, operation.phases)
        .add_columns(*checkpoint.c, *savepoint.c)
        .select_from(_JOBS)
        .join(Revision.__table__, and_(revision.job_id == job.id, revision.number == job.revision))
        .join(Artifact.__table__, artifact.id == revision.artifact_id)
        .outerjoin(_SHOWN_ATTEMPT, true())
        .outerjoin(
            LastHeartbeat.__table__,
            and_(heartbeat.job_id == _SHOWN_ATTEMPT.c.job_id, heartbeat.attempt == _SHOWN_ATTEMPT.c.number),
        )
        .outerjoin(
            Operation.__table__,
            and_(
                operation.job_id == job.id,
                operation.status == _fixed(OperationStatus.IN_PROGRESS),
                *(operation.kind != _fixed(kind) for kind in BESIDE),
            ),
        )
        .outerjoin(checkpoint, true())
        .outerjoin(savepoint, true())
    )


# Tables, not classes: SQLAlchemy would make objects of the rows, which costs more than reading them.
_JOBS, _ATTEMPTS = Job.__table__, Attempt.__table__
_SHOWN_ATTEMPT = _attempt()
_JOB = {column.name: column for column in _JOBS.c}
_REVISION = {column.name: column for column in Revision.__table__.c}
_ATTEMPT = {column.name: column for column in _SHOWN_ATTEMPT.c} | {
    "heartbeat_at_ms": LastHeartbeat.__table__.c.at_ms,
    "last_commit_batch_id": LastHeartbeat.__table__.c.last_commit_batch_id,
    "last_commit_at_ms": LastHeartbeat.__table__.c.last_commit_at_ms,
    "metrics": LastHeartbeat.__table__.c.metrics,
}
# Built once: building costs more than sending. The ids are one array, so that PostgreSQL prepares it once.
_OF_ONE = _overviews().where(or_(_JOBS.c.id == bindparam("reference"), _JOBS.c.name == bindparam("reference")))
_OF_MANY = _overviews().where(_JOBS.c.id == any_(bindparam("job_ids", type_=ARRAY(Text))))
