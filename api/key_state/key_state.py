"""Reads the state of a key in a process with limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from keyscale.db.repositories import checkpoints
from keyscale.installation import IMPORT_PATH
from keyscale.state.doors.paths import split_location

from ..errors import CheckpointNotFoundError, KeyStateError, KeyStateTimeoutError, StoreUnavailableError
from ..jobs.jobs import require_job
from .schemas import KeyHistoryAnswer, KeyStateAnswer

if TYPE_CHECKING:
    from ..access.principal import Principal
    from ..control_plane.context import Context

SECONDS_MAX = 60.0
_FETCHED_BYTES_MAX = 2 << 30
_PASSED_ON = frozenset(
    {"HOME", "HTTPS_PROXY", "KEYSCALE_S3_ENDPOINT", "LANG", "NO_PROXY", "PATH", "SSL_CERT_FILE", "TMPDIR"}
)
"""The settings that the process needs, besides those of the S3 client; it gets no secrets of the control plane."""


def show_key(
    context: Context,
    user: Principal,
    reference: str,
    operator: str,
    key: str,
    *,
    state: str | None = None,
    at: str = "latest",
    after_batch: int | None = None,
) -> KeyStateAnswer:
    """Shows the rows of a key after a committed batch.

    Args:
        context: The control plane.
        user: The user.
        reference: The id or name of the job.
        operator: The operator's uid.
        key: The key as text.
        state: The state's name; None: all states and timers of the operator.
        at: `latest`, `checkpoint` or `batch-N`.
        after_batch: The batch to wait for; None: no wait.

    Raises:
        JobNotFoundError: The job does not exist.
        CheckpointNotFoundError: The job has no completed checkpoint.
        KeyStateError: The operator, state, key or batch is unknown, or cannot be read.
        KeyStateTimeoutError: The read takes too long.
        StoreUnavailableError: The object store does not answer.
        TooManyInFlightError: Too many reads are in progress.
    """
    asked: dict[str, Any] = {"operator": operator, "key": key, "state": state, "after_batch": after_batch}
    with context.reads() as session:
        job = require_job(session, reference)
        if at == "checkpoint":
            latest = checkpoints.latest_completed(session, job.id)
            if latest is None or latest.external_path is None:
                raise CheckpointNotFoundError("the job has no completed checkpoint")
            asked["manifest_path"] = split_location(latest.external_path)[1]
        elif at != "latest":
            asked["batch_id"] = int(at.removeprefix("batch-"))
        asked |= {"store_url": job.store_url, "job_id": job.id}
    return KeyStateAnswer.model_validate(_read(context, user, asked, history=False))


def show_history(
    context: Context, user: Principal, reference: str, operator: str, key: str, *, state: str | None = None
) -> KeyHistoryAnswer:
    """Shows the changes of a key; raises as `show_key`."""
    with context.reads() as session:
        job = require_job(session, reference)
        asked = {"store_url": job.store_url, "job_id": job.id, "operator": operator, "key": key, "state": state}
    return KeyHistoryAnswer.model_validate(_read(context, user, asked, history=True))


def _read(context: Context, user: Principal, asked: dict[str, Any], *, history: bool) -> dict[str, Any]:
    """Returns the answer of a process that carries out the read."""
    request = json.dumps({**asked, "fetched_bytes_max": _FETCHED_BYTES_MAX, "history": history})
    environment = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("AWS_")}
    with context.key_reads.place(user.id):
        try:
            done = subprocess.run(
                [sys.executable, "-m", "keyscale.state_io.key_state_process"],
                input=request.encode(),
                capture_output=True,
                check=False,
                timeout=SECONDS_MAX,
                env={**environment, "PYTHONPATH": str(IMPORT_PATH)},
            )
        except subprocess.TimeoutExpired:
            raise KeyStateTimeoutError(f"the read takes longer than {SECONDS_MAX:g} seconds") from None
    if done.returncode:
        raise KeyStateError(f"the process that reads the state ended with exit code {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    if problem := result.get("problem"):
        text = f"{problem['code']}: {problem['message']}"
        raise (StoreUnavailableError if problem["domain"] == "external" else KeyStateError)(text)
    answer: dict[str, Any] = result["answer"]
    return answer
