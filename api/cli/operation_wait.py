from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from keyscale.client.errors import OperationFailedError, WaitTimeoutError

if TYPE_CHECKING:
    from keyscale.client.keyscale import Keyscale

POLL_S = 0.2
IN_PROGRESS = "IN_PROGRESS"
COMPLETED = "COMPLETED"


def wait_for(control_plane: Keyscale, accepted: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
    """Polls an accepted operation until it has ended, and returns it.

    Raises:
        OperationFailedError: The operation ended without success.
        WaitTimeoutError: The time is over; the operation continues.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        operation: dict[str, Any] = control_plane.get(f"/v1/operations/{quote(accepted['operation_id'], safe='')}")
        if operation["status"] == COMPLETED:
            return operation
        if operation["status"] != IN_PROGRESS:
            cause = operation["failure_cause"] or {}
            raise OperationFailedError(
                f"{operation['kind']} failed: {cause.get('code', '')} {cause.get('message', 'no reason was given')}"
            )
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeoutError(f"after {timeout_s:g} s {operation['kind']} is still {IN_PROGRESS}")
        time.sleep(POLL_S)
