"""Runs SQL over the state in a job's checkpoint or savepoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.db.repositories import checkpoints
from keyscale.state.doors.paths import split_location
from keyscale.vocabulary import CheckpointStatus

from ..control_plane.state_process import read_state
from ..errors import CheckpointNotFoundError
from ..jobs.jobs import require_job
from .schemas.snapshot_sql import SqlAnswer, SqlRequest

if TYPE_CHECKING:
    from ..access.principal import Principal
    from ..control_plane.context import Context


def run(context: Context, user: Principal, reference: str, checkpoint_id: int, request: SqlRequest) -> SqlAnswer:
    """Runs a statement.

    Raises:
        JobNotFoundError: The job does not exist.
        CheckpointNotFoundError: The job has no such checkpoint, or the store has none of its objects.
        StateReadError: The statement is refused, or the state cannot be read.
        StateReadTimeoutError: The statement takes too long.
        StoreUnavailableError: The object store does not answer.
        TooManyInFlightError: Too many reads are in progress.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        found = checkpoints.find(session, job.id, checkpoint_id)
        if found is None or found.status is not CheckpointStatus.COMPLETED or found.external_path is None:
            raise CheckpointNotFoundError(f"the job has no completed checkpoint {checkpoint_id} in its store")
        asked = {
            "store_url": job.store_url,
            "job_id": job.id,
            "manifest_path": split_location(found.external_path)[1],
            "statement": request.statement,
            "rows_max": request.rows_max,
        }
    return SqlAnswer.model_validate(read_state(context, user, "sql", asked))
