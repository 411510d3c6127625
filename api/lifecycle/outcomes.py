"""The outcome of an attempt, its failure and the next start.

Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from keyscale.jobs.protocol.restart import FATAL_CODES, PASSING_FAULTS, GiveUp, next_restart, with_failure
from keyscale.vocabulary import DriverState

from ..launching.processes import ProcessState
from ..launching.supervisor import EXIT_DISK_FULL
from .repeated_faults import REPETITIONS_MAX, is_repeated
from .steps import FailJob, ReplaceAttempt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .facts import AttemptFacts, JobFacts, Timeouts

FAILURES_MAX = 8
"""The job is given up after this many attempts in a row without any progress."""

_BACKOFF_MS = 1000


class Outcome(StrEnum):
    """How an attempt ended."""

    STOPPED = "STOPPED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    FENCED = "FENCED"
    WOKEN = "WOKEN"  # it has slept, and there is work
    LOST = "LOST"  # it died without a message, or has been silent for too long


_BY_STATE = {
    DriverState.STOPPED: Outcome.STOPPED,
    DriverState.FINISHED: Outcome.FINISHED,
    DriverState.FAILED: Outcome.FAILED,
    DriverState.FENCED: Outcome.FENCED,
    DriverState.WOKEN: Outcome.WOKEN,
}


def outcome_of(attempt: AttemptFacts, timeouts: Timeouts) -> Outcome | None:
    """Returns how the attempt ended; None while it runs."""
    if attempt.driver_state in _BY_STATE:
        return _BY_STATE[attempt.driver_state]
    if attempt.process is ProcessState.DEAD:
        # A sleeping driver ends well only when it wakes: the control plane did not answer its last report.
        has_woken = attempt.driver_state is DriverState.SLEEPING and attempt.exit_code == 0
        return Outcome.WOKEN if has_woken else Outcome.LOST
    if attempt.process is ProcessState.UNKNOWN and attempt.silent_ms > timeouts.silence_ms:
        return Outcome.LOST
    return None


def is_hung(attempt: AttemptFacts, timeouts: Timeouts) -> bool:
    """Returns whether the attempt's process exists but must be killed."""
    if attempt.driver_state in _BY_STATE:
        return False
    if attempt.process is ProcessState.SUSPENDED:
        return attempt.silent_ms > timeouts.suspended_ms
    if attempt.process is not ProcessState.ALIVE:
        return False
    if not attempt.is_attached:
        return attempt.starting_ms > timeouts.attach_ms
    return attempt.silent_ms > timeouts.silence_ms


def failure_of(attempt: AttemptFacts, outcome: Outcome) -> Mapping[str, Any]:
    """Returns why the attempt ended, as users see it."""
    if attempt.failure is not None:
        return attempt.failure
    if outcome is Outcome.FENCED:
        return failure("DRIVER_FENCED", f"attempt {attempt.number} was fenced by another attempt")
    if outcome is Outcome.LOST and attempt.exit_code == EXIT_DISK_FULL:
        why = "the files of the job on its host take more space than KEYSCALE_JOB_QUOTA_DISK allows"
        return failure("JOB_DISK_FULL", f"{why}: expire state with a TTL, or have an administrator raise the quota")
    if outcome is Outcome.LOST:
        code = "" if attempt.exit_code is None else f" with exit code {attempt.exit_code}"
        ended = f"died{code}" if attempt.is_attached else f"died{code} before it asked for work, or did not ask in time"
        log = f"`./keyscale logs JOB --attempt {attempt.number}` may say why"
        return failure("DRIVER_LOST", f"the driver of attempt {attempt.number} {ended}; {log}")
    return failure("DRIVER_ENDED", f"the driver of attempt {attempt.number} ended by itself: {outcome}")


def may_pass(failed: Mapping[str, Any] | None) -> bool:
    """Returns whether a failure is the host's, not the job's.

    The restart strategy must not have given the job up.
    """
    return failed is not None and failed["code"] in PASSING_FAULTS and not failed.get("final")


def failure(code: str, message: str) -> Mapping[str, Any]:
    """Returns a failure of the control plane's own.

    Its form is `keyscale.jobs.protocol.messages.Failure`.
    """
    return {"code": code, "message": message, "traceback": None, "operator_uid": None, "subtask": None}


def replace_or_fail(
    facts: JobFacts, attempt: AttemptFacts, outcome: Outcome, timeouts: Timeouts
) -> ReplaceAttempt | FailJob:
    """Decides between another attempt and giving the job up.

    The job's restart strategy applies.

    Without a strategy the first replacement starts immediately. The pause before each further replacement without
    progress in between is twice as long as the last pause. A job whose code keeps failing on the same batch is given
    up.
    """
    why = failure_of(attempt, outcome)
    if outcome is Outcome.FAILED and (why.get("code") in FATAL_CODES or why.get("final")):
        return FailJob(why)
    if facts.restart is not None and outcome is not Outcome.FENCED:
        history = with_failure(facts.failures, facts.now_ms)
        restart = next_restart(facts.restart, history, facts.jitter)
        if isinstance(restart, GiveUp):
            return FailJob({**why, "message": f"{why['message']} ({restart.reason})"})
        return ReplaceAttempt(attempt.number, why, facts.consecutive_failures + 1, restart.delay_ms, history)
    has_committed = attempt.first_commit_at_ms is not None
    if outcome is Outcome.FAILED and is_repeated(why, has_committed=has_committed, earlier=facts.earlier):
        reason = f"{REPETITIONS_MAX} times in a row on the same batch, so the job is not started again"
        return FailJob({**why, "message": f"{why['message']} ({reason})"})
    failures = 1 if attempt.has_progressed else facts.consecutive_failures + 1
    if outcome is Outcome.FENCED:  # a newer attempt ran, perhaps unknown to the database: the job has not failed
        failures = min(failures, FAILURES_MAX - 1)
    if failures >= FAILURES_MAX:
        return FailJob(why)
    backoff_ms = 0 if failures == 1 else min(_BACKOFF_MS << (failures - 2), timeouts.backoff_ms_max)
    return ReplaceAttempt(attempt.number, why, failures, backoff_ms)
