"""Reads state for requests in a process with limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Literal

from keyscale.installation import IMPORT_PATH

from ..errors import StateChangeError, StateReadError, StateReadTimeoutError, StoreUnavailableError

if TYPE_CHECKING:
    from ..access.principal import Principal
    from .context import Context

SECONDS_MAX = 60.0
_PASSED_ON = frozenset({"HOME", "HTTPS_PROXY", "KEYSCALE_S3_ENDPOINT", "LANG", "NO_PROXY", "PATH", "SSL_CERT_FILE"})
"""The settings that the process gets besides the settings of the S3 client. Secrets of the control plane stay out."""


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
    environment = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("AWS_")}
    # The files of a killed process are removed, too.
    with context.state_reads.place(user.id), tempfile.TemporaryDirectory(prefix="keyscale-state-") as scratch:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "keyscale.state_io.reading_process"],
                input=json.dumps({**asked, "read": read}).encode(),
                capture_output=True,
                check=False,
                timeout=SECONDS_MAX,
                env={**environment, "PYTHONPATH": str(IMPORT_PATH), "TMPDIR": scratch},
            )
        except subprocess.TimeoutExpired:
            raise StateReadTimeoutError(f"the read takes longer than {SECONDS_MAX:g} seconds") from None
    if done.returncode:
        raise refusal(f"the process that reads the state ended with exit code {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    if problem := result.get("problem"):
        text = f"{problem['code']}: {problem['message']}"
        raise (StoreUnavailableError if problem["domain"] == "external" else refusal)(text)
    answer: dict[str, Any] = result["answer"]
    return answer
