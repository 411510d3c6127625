"""Shows the state of a key, and its changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.state.doors.paths import split_location

from ..control_plane.state_process import read_latest_key, read_state
from ..errors import CheckpointNotFoundError
from ..jobs.jobs import require_job
from ..lifecycle.job_transaction import JobTransaction
from .schemas import KeyHistoryAnswer, KeyStateAnswer

if TYPE_CHECKING:
    from ..access.principal import Principal
    from ..control_plane.context import Context

_FETCHED_BYTES_MAX = 2 << 30


def show_key(
    context: Context,
    user: Principal,
    reference: str,
    operator: str,
    key: str,
    *,
    state: str | None = None,
    at: str = "latest",
    after: str | None = None,
) -> KeyStateAnswer:
    """Shows the rows of a key after a committed batch.

    Args:
        context: The control plane.
        user: The user.
        reference: The id or name of the job.
        operator: The operator's uid.
        key: The key as text.
        state: The state's name; None: all states and timers of the operator.
        at: `latest`, `checkpoint`, `batch-N`, or `time-MS`.
        after: The batch or record to wait for, as `KeyRequest.after`; None: no wait.

    Raises:
        JobNotFoundError: The job does not exist.
        CheckpointNotFoundError: The job has no completed checkpoint.
        StateReadError: The operator, state, key or batch is unknown, or cannot be read.
        StateReadTimeoutError: The read takes too long.
        StoreUnavailableError: The object store does not answer.
        TooManyInFlightError: Too many reads are in progress.
    """
    asked: dict[str, Any] = {
        "operator": operator,
        "key": key,
        "state": state,
        "after": after,
        "fetched_bytes_max": _FETCHED_BYTES_MAX,
    }
    with context.reads() as session:
        job = require_job(session, reference)
        asked |= {"store_url": job.store_url, "job_id": job.id}
    if at == "checkpoint":
        asked["manifest_path"] = _latest_checkpoint(context, asked["job_id"])
    elif at != "latest":
        kind, _, number = at.partition("-")
        asked["batch_id" if kind == "batch" else "at_ms"] = int(number)
    found = read_latest_key(context, user, asked) if at == "latest" else read_state(context, user, "key", asked)
    return KeyStateAnswer.model_validate(found)


def _latest_checkpoint(context: Context, job_id: str) -> str:
    """Returns the manifest's path of the job's latest checkpoint.

    A history that the job has given up does not count.
    """
    with context.sessions.begin() as session:
        latest = JobTransaction(session, require_job(session, job_id, lock=True)).latest_completed()
        if latest is None or latest.external_path is None:
            raise CheckpointNotFoundError("the job has no completed checkpoint, or none since it has gone back")
        return split_location(latest.external_path)[1]


def show_history(
    context: Context, user: Principal, reference: str, operator: str, key: str, *, state: str | None = None
) -> KeyHistoryAnswer:
    """Shows the changes of a key; raises as `show_key`."""
    with context.reads() as session:
        job = require_job(session, reference)
        asked = {"store_url": job.store_url, "job_id": job.id, "operator": operator, "key": key, "state": state}
    return KeyHistoryAnswer.model_validate(read_state(context, user, "history", asked))
