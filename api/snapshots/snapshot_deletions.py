"""Deletions of checkpoints and savepoints by users.

They show what a deletion frees, and what still needs the snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.db.repositories import checkpoints, events, operations, snapshot_needs
from keyscale.identifiers import JobId
from keyscale.state.doors.catalogue import RetentionError, SnapshotObjects, claimant_of, snapshot_objects
from keyscale.state.doors.paths import split_location
from keyscale.units import bytes_text
from keyscale.vocabulary import CheckpointStatus

from ..errors import CheckpointNotFoundError, SavepointNotFoundError, SnapshotNeededError
from ..jobs.jobs import require_job, require_job_id
from ..jobs.restore_sources import named_to
from ..lifecycle.snapshot_uses import uses_of
from ..store_check import open_to_read, read_within
from .schemas.snapshot_maintenance import DeletionAnswer

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.models import Checkpoint, Job

    from ..access.principal import Principal
    from ..control_plane.context import Context


def delete_checkpoint(
    context: Context, user: Principal, reference: str, checkpoint_id: int, *, dry_run: bool
) -> DeletionAnswer:
    """Requests the deletion of a checkpoint or savepoint, or shows its effect.

    Raises:
        JobNotFoundError: The job does not exist.
        CheckpointNotFoundError: The job has no such checkpoint.
        SnapshotNeededError: Something still needs it.
        StoreUnavailableError: The store does not answer.
        PlanTimeoutError: The snapshot was not read in time.
    """
    with context.sessions() as session:
        job = require_job(session, reference)
        found = checkpoints.find(session, job.id, checkpoint_id)
        if found is None:
            raise CheckpointNotFoundError(f"the job has no checkpoint {checkpoint_id}")
        reasons, consequences = _needs(session, user, job, found)
    objects, blocked = _objects(context, user, job, found)
    reasons += blocked
    answer = DeletionAnswer(
        job_id=job.id,
        checkpoint_id=found.checkpoint_id,
        savepoint_id=found.savepoint_id,
        location=found.external_path,
        allowed=not reasons,
        reasons=reasons,
        consequences=consequences,
        freed_objects=len(objects.own),
        freed_bytes=sum(objects.own.values()),
        shared_bytes=sum(objects.shared.values()),
    )
    if not dry_run:
        _discard(context, user, answer)
    return answer


def delete_savepoint(
    context: Context, user: Principal, reference: str, savepoint_id: str, *, dry_run: bool
) -> DeletionAnswer:
    """Requests the deletion of a savepoint, or shows its effect.

    Raises as `delete_checkpoint`.

    Raises:
        SavepointNotFoundError: The job has no such savepoint.
    """
    with context.sessions() as session:
        job_id = require_job_id(session, reference)
        found = checkpoints.find_savepoint(session, job_id, savepoint_id)
    if found is None:
        raise SavepointNotFoundError("the job has no completed savepoint of this id")
    return delete_checkpoint(context, user, reference, found.checkpoint_id, dry_run=dry_run)


def _discard(context: Context, user: Principal, answer: DeletionAnswer) -> None:
    if not answer.allowed:
        raise SnapshotNeededError("; ".join(answer.reasons))
    with context.sessions.begin() as session:
        job = require_job(session, answer.job_id, lock=True)
        operations.reserve_id(session, answer.location or "")  # a start that restores from it waits
        checkpoint = checkpoints.find(session, job.id, answer.checkpoint_id)
        if checkpoint is None:
            raise CheckpointNotFoundError(f"the job has no checkpoint {answer.checkpoint_id}")
        reasons, _ = _needs(session, user, job, checkpoint)
        if reasons:
            raise SnapshotNeededError("; ".join(reasons))
        checkpoint.status, checkpoint.discard_requested_at_ms = CheckpointStatus.DISCARDED, now_ms()
        noun = "savepoint" if checkpoint.is_savepoint else "checkpoint"
        events.record(
            session,
            job_id=job.id,
            at_ms=checkpoint.discard_requested_at_ms,
            kind=f"{noun.upper()}_DISCARDED",
            actor=user.name,
            message=f"{noun} {checkpoint.checkpoint_id} is deleted, which frees {bytes_text(answer.freed_bytes)}",
            checkpoint_id=checkpoint.checkpoint_id,
            location=checkpoint.external_path,
        )


def _needs(session: Session, user: Principal, job: Job, found: Checkpoint) -> tuple[list[str], list[str]]:
    """Returns what still needs a snapshot, and what it enables."""
    reasons = uses_of(session, job, found, lambda each: _shown_to(user, each))
    if found.status is not CheckpointStatus.COMPLETED or found.external_path is None:
        return reasons, []
    consequences = [
        f"A rollback to revision {number} with its state is no longer possible."
        for number in snapshot_needs.revisions_kept_by(session, job.id, found.external_path)
    ]
    return reasons, consequences


def _shown_to(user: Principal, job: Job) -> str:
    is_visible = user.scope.covers(job_id=job.id, name=job.name, labels=job.labels)
    return f"the job {job.name}" if is_visible else "a job that you may not see"


def _objects(context: Context, user: Principal, job: Job, found: Checkpoint) -> tuple[SnapshotObjects, list[str]]:
    """Reads a snapshot's objects, and what forbids to delete it.

    The time limit is the limit of a plan.
    """
    if found.external_path is None or found.status is not CheckpointStatus.COMPLETED:
        return SnapshotObjects({}, {}), []
    path = split_location(found.external_path)[1]

    def read() -> tuple[SnapshotObjects, list[str], str | None]:
        store = open_to_read(job.store_url)
        if (owner := claimant_of(store, path)) is not None:
            return SnapshotObjects({}, {}), [], owner
        try:
            return snapshot_objects(store, JobId(job.id), path), [], None
        except RetentionError as error:
            return SnapshotObjects({}, {}), [str(error)], None

    objects, blocked, claimed_by = read_within(
        context.settings.plan_timeout_ms, read, what="the snapshot's objects in the store"
    )
    if claimed_by is not None:
        with context.reads() as session:
            blocked = [f"{named_to(session, user, claimed_by)} has claimed it, and deletes it once it needs it no more"]
    return objects, blocked
