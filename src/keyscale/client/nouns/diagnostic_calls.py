"""Diagnostics: looks into running jobs."""

from __future__ import annotations

import time

from keyscale.api.diagnostics.schemas import (
    DiagnosticAnswer,
    DiagnosticList,
    DiagnosticRequest,
    DiagnosticSummaryAnswer,
)
from keyscale.vocabulary import DiagnosticStatus

from ..call import Call, Pages, Pause, Steps
from ..errors import OperationFailedError, WaitTimeoutError
from ..method import ListMethod, Method, Noun, S, action

DIAGNOSTICS = "/v1/jobs/{job_id}/diagnostics"
DIAGNOSTIC = f"{DIAGNOSTICS}/{{diagnostic_id}}"
POLL_S = 0.2


class Diagnostics(Noun[S]):
    """Diagnostics of running jobs. Each method takes a job's id or name."""

    request = action(DIAGNOSTICS, DiagnosticRequest, DiagnosticAnswer)
    """Requests a diagnostic. `wait` returns what it shows."""

    @Method
    def get(self, job: str, diagnostic_id: str) -> Call[DiagnosticAnswer]:
        """Shows a diagnostic with its parts."""
        return show(job, diagnostic_id)

    @ListMethod
    def list(self, job: str) -> Pages[DiagnosticSummaryAnswer]:
        """Lists the latest diagnostics of a job, the newest first."""
        return Pages(Call("GET", DIAGNOSTICS, DiagnosticList, {"job_id": job}), "diagnostics")

    @Method
    def wait(self, job: str, diagnostic_id: str, timeout_s: float | None = None) -> Steps[DiagnosticAnswer]:
        """Waits until a diagnostic is COMPLETED, and returns it.

        Raises:
            OperationFailedError: The diagnostic has failed.
            WaitTimeoutError: The time is over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            answer: DiagnosticAnswer = yield show(job, diagnostic_id)
            if answer.status is DiagnosticStatus.COMPLETED:
                return answer
            if answer.failure is not None:
                why = f"{answer.failure.code} {answer.failure.message}"
                helps = f"\n{answer.failure.advice}" if answer.failure.advice else ""
                raise OperationFailedError(f"{answer.kind} failed: {why}{helps}")
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(f"after {timeout_s:g} s {answer.kind} is still {answer.status}")
            yield Pause(POLL_S)


def show(job: str, diagnostic_id: str) -> Call[DiagnosticAnswer]:
    """Returns the call that shows a diagnostic."""
    return Call("GET", DIAGNOSTIC, DiagnosticAnswer, {"job_id": job, "diagnostic_id": diagnostic_id})
