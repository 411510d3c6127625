"""Verifications of checkpoints and savepoints: asked for, and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.clock import now_ms
from keyscale.db.repositories import checkpoints, events
from keyscale.vocabulary import CheckpointStatus, CommandStatus

from ..database_clock import shared_now_ms
from ..errors import CheckpointNotFoundError, VerificationNotFoundError
from ..jobs.jobs import require_job, require_job_id
from .schemas.snapshot_maintenance import VerificationAnswer

if TYPE_CHECKING:
    from ..access.principal import Principal
    from ..control_plane.context import Context

LOST_MS = 60_000
"""A verification without progress for this long has lost its control plane."""


def begin(context: Context, user: Principal, reference: str, checkpoint_id: int, *, hashes: bool) -> VerificationAnswer:
    """Begins to verify a checkpoint or savepoint.

    While a verification is in progress, shows that verification.

    Raises:
        JobNotFoundError: The job does not exist.
        CheckpointNotFoundError: The job has no such checkpoint, or the store has none of its objects.
        TooManyInFlightError: Too many other verifications are in progress.
    """
    with context.sessions.begin() as session:
        job = require_job(session, reference, lock=True)
        found = checkpoints.find(session, job.id, checkpoint_id)
        if found is None or found.status is not CheckpointStatus.COMPLETED or found.external_path is None:
            raise CheckpointNotFoundError(f"the job has no completed checkpoint {checkpoint_id} in its store")
        if found.verification is not None and (running := _answer(found.verification)).ended_at_ms is None:
            return running
        at_ms = now_ms()
        begun = {
            "status": CommandStatus.IN_PROGRESS,
            "hashes": hashes,
            "started_at_ms": at_ms,
            "beat_at_ms": shared_now_ms(),
        }
        found.verification = begun
        events.record(
            session,
            job_id=job.id,
            at_ms=at_ms,
            kind="VERIFICATION_REQUESTED",
            actor=user.name,
            message=f"verification of checkpoint {checkpoint_id} was requested",
            checkpoint_id=checkpoint_id,
        )
        session.flush()
        session.expunge_all()
        context.verifier.submit(job, found, begun)
    return _answer(begun)


def show(context: Context, reference: str, checkpoint_id: int) -> VerificationAnswer:
    """Shows the last verification of a checkpoint or savepoint.

    Raises:
        JobNotFoundError: The job does not exist.
        CheckpointNotFoundError: The job has no such checkpoint.
        VerificationNotFoundError: The checkpoint was never verified.
    """
    with context.sessions() as session:
        job_id = require_job_id(session, reference)
        found = checkpoints.find(session, job_id, checkpoint_id)
    if found is None:
        raise CheckpointNotFoundError(f"the job has no checkpoint {checkpoint_id}")
    if found.verification is None:
        raise VerificationNotFoundError(f"checkpoint {checkpoint_id} was never verified")
    return _answer(found.verification)


def _answer(verification: dict[str, Any]) -> VerificationAnswer:
    answer = VerificationAnswer.model_validate(verification)
    beat_at_ms = verification.get("beat_at_ms", answer.started_at_ms)
    if answer.status is CommandStatus.IN_PROGRESS and shared_now_ms() - beat_at_ms > LOST_MS:
        lost = {"status": CommandStatus.FAILED, "ended_at_ms": beat_at_ms, "problem_count": 1}
        return answer.model_copy(update={**lost, "problems": ["the control plane that verified it has ended"]})
    return answer
