"""Reads state for requests in a process with limits."""

from __future__ import annotations

import json
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Literal

from ..errors import StateChangeError, StateReadError, StateReadTimeoutError, StoreUnavailableError
from .reading_command import COMMAND, SECONDS_MAX, environment_of

if TYPE_CHECKING:
    from ..access.principal import Principal
    from .context import Context


def read_state(
    context: Context,
    user: Principal,
    read: Literal["key", "history", "sql", "change", "repeated-change"],
    asked: dict[str, Any],
) -> dict[str, Any]:
    """Returns the answer of a process that reads or changes state.

    Args:
        context: The control plane.
        user: The user, who may have one read in progress.
        read: What is read, as `keyscale.state_io.reading_process` names it.
        asked: The fields of the request.

    Raises:
        StateReadError: The read is refused, or the state cannot be read.
        StateChangeError: The change is refused.
        StateReadTimeoutError: The read takes too long.
        StoreUnavailableError: The object store does not answer.
        TooManyInFlightError: Too many reads are in progress.
    """
    refusal = StateChangeError if read == "change" else StateReadError
    # The files of a killed process are removed, too.
    with context.state_reads.place(user.id), tempfile.TemporaryDirectory(prefix="keyscale-state-") as scratch:
        try:
            done = subprocess.run(  # noqa: S603 - our module
                COMMAND,
                input=json.dumps({**asked, "read": read}).encode(),
                capture_output=True,
                check=False,
                timeout=SECONDS_MAX,
                env=environment_of(scratch),
            )
        except subprocess.TimeoutExpired:
            raise StateReadTimeoutError(f"the read takes longer than {SECONDS_MAX:g} seconds") from None
    if done.returncode:
        raise refusal(f"the process that reads the state ended with exit code {done.returncode}")
    return _answer(json.loads(done.stdout), refusal)


def read_latest_key(context: Context, user: Principal, asked: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows of a key after the job's latest batch.

    Raises as `read_state`. The job's process for such reads answers at once, unless it would have to wait for a batch.
    """
    with context.state_reads.place(user.id):
        answer = context.key_readers.ask(asked["job_id"], {**asked, "wait_s_max": 0.0})
    if asked["after"] is not None and answer.get("problem", {}).get("code") == "STATE_BATCH_NOT_STORED":
        return read_state(context, user, "key", asked)
    return _answer(answer, StateReadError)


def _answer(result: dict[str, Any], refusal: type[StateReadError | StateChangeError]) -> dict[str, Any]:
    if problem := result.get("problem"):
        text = f"{problem['code']}: {problem['message']}"
        raise (StoreUnavailableError if problem["domain"] == "external" else refusal)(text)
    answer: dict[str, Any] = result["answer"]
    return answer
