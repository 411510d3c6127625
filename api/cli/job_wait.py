"""Waiting for a job's status.

`jobs wait` and all commands that begin something share the rule.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from .client import job_path
from .errors import JobEndedError, JobFailedError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Collection

    from .client import ControlPlane

POLL_S: Final = 0.2

RUNNING: Final = "RUNNING"
FAILED: Final = "FAILED"
LASTING: Final = (RUNNING, "STOPPED", "FINISHED", FAILED)
"""The statuses that a job may keep; it passes through other statuses."""

SETTLED: Final = frozenset({"CREATED", "STOPPED", "FINISHED", FAILED})
"""The job does not run."""

STARTED: Final = frozenset({RUNNING, "FINISHED"})
"""A started job has one of these statuses: a short job may have finished when it is polled."""

ENDED: Final = frozenset({"STOPPED", "FINISHED"})


def has_reached(job: dict[str, Any], wanted: Collection[str]) -> bool:
    """Returns whether a job has one of the requested statuses.

    Args:
        job: The job, as the API shows it.
        wanted: The requested statuses.

    Raises:
        JobFailedError: The job has FAILED, which was not requested; the error shows its failure.
        JobEndedError: The job does not run until its user starts it: it cannot reach the statuses.
    """
    status: str = job["status"]
    if status in wanted:
        return True
    if status == FAILED:
        raise JobFailedError(f"the job {job['name']} has FAILED", job["failure"])
    if status in SETTLED and job["desired"] != RUNNING:
        raise JobEndedError(f"the job {job['name']} is {status} and nothing is under way that makes it {_any(wanted)}")
    return False


def wait_until(
    control_plane: ControlPlane, job: str, wanted: Collection[str], timeout_s: float | None = None
) -> dict[str, Any]:
    """Polls a job until it has a requested status, and returns it.

    Args:
        control_plane: The control plane that the job runs on.
        job: Id or name of the job.
        wanted: The statuses.
        timeout_s: Time limit; None for no limit.

    Raises:
        JobFailedError: The job has FAILED.
        JobEndedError: The job has ended in another way.
        WaitTimeoutError: The time is over. The job is unchanged.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        answer: dict[str, Any] = control_plane.get(job_path(job))
        if has_reached(answer, wanted):
            return answer
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"after {timeout_s:g} s the job {answer['name']} is {answer['status']}, not {_any(wanted)}"
            )
        time.sleep(POLL_S)


def _any(wanted: Collection[str]) -> str:
    return " or ".join(sorted(wanted))
