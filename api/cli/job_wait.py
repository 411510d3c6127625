"""Waiting for a job's status.

`jobs wait` and all commands that begin something share the rule.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from keyscale.client.errors import WaitTimeoutError
from keyscale.client.request_paths import job_path
from keyscale.vocabulary import SETTLED

from .errors import JobEndedError, JobFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from keyscale.client.keyscale import Keyscale

POLL_S: Final = 0.2

RUNNING: Final = "RUNNING"
FAILED: Final = "FAILED"
LASTING: Final = (RUNNING, "SLEEPING", "STOPPED", "FINISHED", FAILED)
"""The statuses that a job may keep; it passes through other statuses."""

STARTED: Final = frozenset({RUNNING, "SLEEPING", "FINISHED"})
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
    status: str = job["status"]["state"]
    if status in wanted:
        return True
    if status == FAILED:
        raise JobFailedError(f"the job {job['name']} has FAILED", job["status"]["failure"])
    if status in SETTLED and job["status"]["desired"] != RUNNING:
        raise JobEndedError(f"the job {job['name']} is {status} and nothing is under way that makes it {_any(wanted)}")
    return False


def has_processed(job: dict[str, Any]) -> bool:
    """Returns whether a running job has processed input, or found none."""
    metrics = (job["status"]["attempt"] or {}).get("metrics")
    if job["status"]["state"] != RUNNING:
        return True
    if metrics is None:
        return False
    return bool(metrics["waits_for_input"] or metrics["input_batches"] != 0)  # an old driver reports None


def wait_until_started(control_plane: Keyscale, job: str, timeout_s: float | None = None) -> dict[str, Any]:
    """Polls a started job until it has processed its first input.

    A job without input is not waited for. Returns the job.

    Arguments and errors as for `wait_until`.
    """
    return wait_until(control_plane, job, STARTED, timeout_s, has_processed)


def wait_until(
    control_plane: Keyscale,
    job: str,
    wanted: Collection[str],
    timeout_s: float | None = None,
    is_done: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> dict[str, Any]:
    """Polls a job until it has a requested status, and returns it.

    Args:
        control_plane: The control plane that the job runs on.
        job: Id or name of the job.
        wanted: The statuses.
        timeout_s: Time limit; None for no limit.
        is_done: What must hold besides the status.

    Raises:
        JobFailedError: The job has FAILED.
        JobEndedError: The job has ended in another way.
        WaitTimeoutError: The time is over. The job is unchanged.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        answer: dict[str, Any] = control_plane.get(job_path(job))
        is_reached = has_reached(answer, wanted)
        if is_reached and is_done(answer):
            return answer
        if deadline is not None and time.monotonic() >= deadline:
            lacks = "and has committed no batch" if is_reached else f"not {_any(wanted)}"
            raise WaitTimeoutError(
                f"after {timeout_s:g} s the job {answer['name']} is {answer['status']['state']}, {lacks}"
            )
        time.sleep(POLL_S)


def _any(wanted: Collection[str]) -> str:
    return " or ".join(sorted(wanted))
