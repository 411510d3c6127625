"""Waiting for what the control plane has accepted and carries out by itself: savepoints, checkpoints, stops."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from api.cli.problems import OperationFailedError

if TYPE_CHECKING:
    from api.cli.client import ControlPlane

POLL_S = 0.2
IN_PROGRESS = "IN_PROGRESS"
COMPLETED = "COMPLETED"

no_wait_option = click.option("--no-wait", is_flag=True, help="Return when it has been accepted.")


def wait_for(control_plane: ControlPlane, accepted: dict[str, Any]) -> dict[str, Any]:
    """Polls an accepted operation until it has ended, and returns it.

    Raises:
        OperationFailedError: It has ended without success.
    """
    while True:
        operation: dict[str, Any] = control_plane.get(f"/operations/{quote(accepted['operation_id'], safe='')}")
        if operation["status"] == COMPLETED:
            return operation
        if operation["status"] != IN_PROGRESS:
            cause = operation["failure_cause"] or {}
            message = (
                f"{operation['kind']} has failed: {cause.get('code', '')} {cause.get('message', 'no reason was given')}"
            )
            raise OperationFailedError(message)
        time.sleep(POLL_S)
