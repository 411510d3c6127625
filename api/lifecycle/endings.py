"""How an attempt has ended, what its failure was, and when the next one may start. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from api.lifecycle.facts import AttemptFacts, JobFacts, ProcessState, Timeouts
from api.lifecycle.steps import FailJob, ReplaceAttempt
from jobs.restart import FATAL_CODES, GiveUp, next_restart, with_failure
from jobs.wire import DriverState

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILURES_MAX = 8
"""So many attempts in a row without any progress, and the job is given up."""

_BACKOFF_MS = 1000


class Ending(StrEnum):
    """How an attempt has ended."""

    STOPPED = "STOPPED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    FENCED = "FENCED"
    LOST = "LOST"  # it died, or has not been heard of for too long, without a word


_BY_STATE = {
    DriverState.STOPPED: Ending.STOPPED,
    DriverState.FINISHED: Ending.FINISHED,
    DriverState.FAILED: Ending.FAILED,
    DriverState.FENCED: Ending.FENCED,
}


def ending_of(attempt: AttemptFacts, timeouts: Timeouts) -> Ending | None:
    """Returns how the attempt has ended, None while it has not."""
    if attempt.driver_state in _BY_STATE:
        return _BY_STATE[attempt.driver_state]
    if attempt.process is ProcessState.DEAD:
        return Ending.LOST
    if attempt.process is ProcessState.UNKNOWN and attempt.silent_ms > timeouts.silence_ms:
        return Ending.LOST
    return None


def is_hung(attempt: AttemptFacts, timeouts: Timeouts) -> bool:
    """Whether the attempt's process is there but must be given up, and killed."""
    if attempt.driver_state in _BY_STATE:
        return False
    if attempt.process is ProcessState.SUSPENDED:
        return attempt.silent_ms > timeouts.suspended_ms
    if attempt.process is not ProcessState.ALIVE:
        return False
    if not attempt.is_attached:
        return attempt.state_age_ms > timeouts.attach_ms
    return attempt.silent_ms > timeouts.silence_ms


def failure_of(attempt: AttemptFacts, ending: Ending) -> Mapping[str, Any]:
    """Returns why the attempt has ended, fit to be shown."""
    if attempt.failure is not None:
        return attempt.failure
    if ending is Ending.FENCED:
        return failure("DRIVER_FENCED", f"attempt {attempt.number} was fenced by another one")
    if ending is Ending.LOST:
        code = "" if attempt.exit_code is None else f" with exit code {attempt.exit_code}"
        return failure("DRIVER_LOST", f"the driver of attempt {attempt.number} has died{code}; its log may say why")
    return failure("DRIVER_ENDED", f"the driver of attempt {attempt.number} has ended by itself: {ending}")


def failure(code: str, message: str) -> Mapping[str, Any]:
    """Returns a failure of the control plane's own, in the form of `jobs.wire.Failure`."""
    return {"code": code, "message": message, "traceback": None, "operator_uid": None, "subtask": None}


def replace_or_fail(
    facts: JobFacts, attempt: AttemptFacts, ending: Ending, timeouts: Timeouts
) -> ReplaceAttempt | FailJob:
    """Decides between another attempt and giving the job up, as its restart strategy says.

    Without one the first replacement starts at once, each further one without progress in between twice as late.
    """
    why = failure_of(attempt, ending)
    if ending is Ending.FAILED and (why.get("code") in FATAL_CODES or why.get("final")):
        return FailJob(why)
    if facts.restart is not None:
        history = with_failure(facts.failures, facts.now_ms)
        restart = next_restart(facts.restart, history, facts.jitter)
        if isinstance(restart, GiveUp):
            return FailJob({**why, "message": f"{why['message']} ({restart.reason})"})
        return ReplaceAttempt(attempt.number, why, facts.consecutive_failures + 1, restart.delay_ms, history)
    failures = 1 if attempt.has_progressed else facts.consecutive_failures + 1
    if failures >= FAILURES_MAX:
        return FailJob(why)
    backoff_ms = 0 if failures == 1 else min(_BACKOFF_MS << (failures - 2), timeouts.backoff_ms_max)
    return ReplaceAttempt(attempt.number, why, failures, backoff_ms)
