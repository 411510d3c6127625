"""The uses of a checkpoint or savepoint that forbid its deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import checkpoints, operations, snapshot_needs
from keyscale.vocabulary import SETTLED, CheckpointStatus, CommandStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from keyscale.db.models import Checkpoint, Job


def uses_of(session: Session, job: Job, found: Checkpoint, shown: Callable[[Job], str]) -> list[str]:
    """Returns what still needs a snapshot, in words.

    Args:
        session: The transaction.
        job: The job that took it.
        found: The snapshot.
        shown: Names a job to the reader.
    """
    if found.status is not CheckpointStatus.COMPLETED or found.external_path is None:
        return [f"it is {found.status}: nothing of it is there to delete"]
    reasons = []
    newest = checkpoints.latest_completed(session, job.id)
    in_use = snapshot_needs.newest_checkpoints(session, job.id, 1 if job.status in SETTLED else 2)
    if newest is not None and newest.checkpoint_id == found.checkpoint_id:
        reasons.append(f"it is the newest snapshot of the job {job.name}, which would start from it")
    elif found.checkpoint_id == next(iter(in_use), None):
        reasons.append(
            f"it is the newest checkpoint of the job {job.name}, and the next checkpoint shares files with it"
        )
    elif found.checkpoint_id in in_use:
        reasons.append(f"the job {job.name} runs and may still use it; not once another checkpoint is complete")
    if found.is_savepoint and job.status not in SETTLED and _is_pending(session, job, found):
        reasons.append(f"the operation {found.savepoint_id}, which takes it, has not ended")
    location = found.external_path
    reasons += [f"{shown(each)} restores from it" for each in snapshot_needs.restoring_jobs(session, location, SETTLED)]
    reasons += [
        f"the change {each} goes back to it" for each in snapshot_needs.running_changes(session, job.id, location)
    ]
    return reasons


def _is_pending(session: Session, job: Job, found: Checkpoint) -> bool:
    taking = operations.find(session, found.savepoint_id or "")
    return taking is not None and taking.job_id == job.id and taking.command_status is CommandStatus.IN_PROGRESS
