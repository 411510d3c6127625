"""Waits for what a job should bring about, and tells a job that ended too early from one that ended in time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from deploy.demo.problems import DemoError

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.1
ENDED = frozenset({"FAILED", "FINISHED", "STOPPED"})

Observed = TypeVar("Observed")


def wait_for(what: str, observe: Callable[[], Observed], job: Callable[[], Any], *, timeout_s: float) -> Observed:
    """The first thing that `observe` sees.

    Args:
        what: The thing, for the error.
        observe: Looks for it; its answer is falsy until it is there.
        job: Fetches the job.
        timeout_s: How long to wait.

    Raises:
        DemoError: The job has ended without it, or it did not come in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        facts = job()  # before the look, so that what the job did last is seen before its end is held against it
        seen = observe()
        if seen:
            return seen
        status = facts["status"]
        if status in ENDED:
            raise DemoError(f"waited for {what}, but the job is {status}: {facts['failure']}")
        if time.monotonic() > deadline:
            raise DemoError(f"waited {timeout_s:.0f} s for {what}; the job is {status}")
        time.sleep(POLL_S)
