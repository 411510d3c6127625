"""Waits for a result of a job.

The wait fails if the job ends without the result or takes too long.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import DemoError

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.1
ENDED = frozenset({"FAILED", "FINISHED", "STOPPED"})

Observed = TypeVar("Observed")


def wait_for(what: str, observe: Callable[[], Observed], job: Callable[[], Any], *, timeout_s: float) -> Observed:
    """Waits until `observe` returns a result, and returns it.

    Args:
        what: The description of the result, for the error.
        observe: Polls for the result; returns a false value until then.
        job: Requests the job.
        timeout_s: The longest time to wait.

    Raises:
        DemoError: The job ended without the result, or took too long.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = job()  # requested first, so that the last result of a job that has just ended is still found
        seen = observe()
        if seen:
            return seen
        status = answer["status"]["state"]
        if status in ENDED:
            raise DemoError(f"waited for {what}, but the job is {status}: {answer['status']['failure']}")
        if time.monotonic() > deadline:
            raise DemoError(f"waited {timeout_s:.0f} s for {what}; the job is {status}")
        time.sleep(POLL_S)
