"""Decides the one next step of a job from its facts.

Pure: reading happens before, effects come after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.vocabulary import SETTLED, ChangePhase, CommandStatus, DesiredState, DriverState, JobStatus

from ..launching.processes import ProcessState
from .change_phases import next_change_step
from .facts import AttemptFacts, CommandFacts, JobFacts, Timeouts
from .outcomes import Outcome, failure, is_hung, outcome_of, replace_or_fail
from .steps import (
    AnnounceWait,
    Cause,
    CheckSavepoint,
    CompleteStart,
    CreateAttempt,
    EndAttempt,
    ForgetFailure,
    Kill,
    Launch,
    MarkReaped,
    ReassignStop,
    ReplaceAttempt,
    ResumeJob,
    SettleJob,
    ShowStatus,
    StopSleeping,
    StopWithoutSavepoint,
    WakeJob,
)

if TYPE_CHECKING:
    from .steps import FailJob, Step

DEFAULT_TIMEOUTS = Timeouts()
_UP = frozenset({JobStatus.RUNNING, JobStatus.SLEEPING})
STOP_TRIES_MAX = 3
"""How many drivers a stop begins, one after the other, to take its savepoint."""


def next_step(facts: JobFacts, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> Step | None:
    """Returns the next step for a job; None means to wait.

    Args:
        facts: The job's current facts.
        timeouts: The limits that apply.
    """
    # The user's request comes first: cleaning up takes time, and a job that is down would wait for it.
    return _kill_hung(facts, timeouts) or _advance(facts, timeouts) or _show(facts) or _clean_up(facts, timeouts)


def waits_for_news(facts: JobFacts) -> bool:
    """Returns whether a job without a next step waits only for news.

    News is the end or the silence of its driver, or what its driver or its user writes into the database. No time that
    the job's status has lasted matters.
    """
    is_settled = facts.status in _UP and facts.desired is DesiredState.RUNNING
    has_only_its_driver = facts.active is not None and facts.standby is None and not facts.ended
    return is_settled and facts.change is None and has_only_its_driver


def status_of(facts: JobFacts) -> JobStatus:
    """Returns the status that the job's user should see."""
    if facts.desired is DesiredState.CANCELLED:
        return JobStatus.STOPPING
    if facts.change is not None:
        return facts.change.kind.traits.status
    if facts.desired is DesiredState.STOPPED:
        done = facts.stop is not None and facts.stop.status is CommandStatus.COMPLETED
        return JobStatus.STOPPING if done else JobStatus.SAVEPOINTING
    if facts.active is not None and facts.active.driver_state is DriverState.RUNNING:
        return JobStatus.RUNNING
    if facts.active is not None and facts.active.driver_state is DriverState.SLEEPING:
        return JobStatus.SLEEPING
    return JobStatus.SUBMITTING if facts.status is JobStatus.SUBMITTING and not facts.restarts else JobStatus.RESTARTING


def _show(facts: JobFacts) -> Step | None:
    if facts.status in SETTLED:
        return None
    status = status_of(facts)
    if status is not facts.status:
        return ShowStatus(status)
    if facts.is_starting and status in _UP and facts.active is not None and facts.active.has_begun:
        return CompleteStart()
    has_committed = facts.active is not None and facts.active.first_commit_at_ms is not None
    return ForgetFailure() if facts.has_failure and has_committed else None


def _kill_hung(facts: JobFacts, timeouts: Timeouts) -> Step | None:
    for attempt in (facts.active, facts.standby):
        if attempt is not None and is_hung(attempt, timeouts):
            return Kill(attempt.number)
    return None


def _clean_up(facts: JobFacts, timeouts: Timeouts) -> Step | None:
    """Kills the remaining processes of ended attempts."""
    for attempt in facts.ended:
        if attempt.process in {ProcessState.DEAD, ProcessState.UNLAUNCHED}:
            return MarkReaped(attempt.number)
        if attempt.process is ProcessState.SUSPENDED:
            return Kill(attempt.number)
        if attempt.state_age_ms > timeouts.exit_ms:
            return MarkReaped(attempt.number) if attempt.process is ProcessState.UNKNOWN else Kill(attempt.number)
    return None


def _advance(facts: JobFacts, timeouts: Timeouts) -> Step | None:
    if facts.desired is DesiredState.CANCELLED:
        return _cancel(facts)
    if facts.desired is DesiredState.STOPPED and (facts.stop is None or facts.status in SETTLED):
        return _end_strays(facts) or (SettleJob(JobStatus.STOPPED) if facts.status not in SETTLED else None)
    # A launch may fail again and again, which must not outlast the time limits and the cancellation of a change.
    return _continue(facts, timeouts) or _launch(facts)


def _continue(facts: JobFacts, timeouts: Timeouts) -> Step | None:
    """Decides for a job that runs or must run once more."""
    if facts.change is not None:
        step = next_change_step(facts, facts.change, timeouts)
        if step is not None or facts.change.phase is not ChangePhase.ROLL_BACK:
            return step
    elif facts.standby is not None:
        return EndAttempt(facts.standby.number)
    if facts.desired is DesiredState.STOPPED and facts.stop is not None:
        return _stop(facts, facts.stop, timeouts)
    return _run(facts, timeouts)


def _launch(facts: JobFacts) -> Step | None:
    """Launches an attempt in its turn; announces once that an attempt waits."""
    for attempt in (facts.active, facts.standby):
        if attempt is None or attempt.process is not ProcessState.UNLAUNCHED:
            continue
        if not attempt.waits_for_turn:
            return Launch(attempt.number)
        if not attempt.turn.is_announced:
            return AnnounceWait(attempt.number, attempt.turn.place)
    return None


def _end_strays(facts: JobFacts) -> Step | None:
    for attempt in (facts.active, facts.standby):
        if attempt is not None:
            return EndAttempt(attempt.number)
    return None


def _cancel(facts: JobFacts) -> Step | None:
    """Stops a cancelled job once all its processes are gone."""
    if step := _end_strays(facts):
        return step
    return None if facts.ended else SettleJob(JobStatus.STOPPED)


def _run(facts: JobFacts, timeouts: Timeouts) -> Step | None:
    if facts.active is None:
        if facts.start_in_ms > 0:
            return None
        return CreateAttempt(facts.revision, Cause.RECOVER if facts.restarts else Cause.START)
    outcome = outcome_of(facts.active, timeouts)
    if outcome is None:
        return None
    if outcome is Outcome.FINISHED:
        return SettleJob(JobStatus.FINISHED)
    if outcome is Outcome.WOKEN:
        return WakeJob(facts.active.number, facts.revision)
    return replace_or_fail(facts, facts.active, outcome, timeouts)


def _stop(facts: JobFacts, stop: CommandFacts, timeouts: Timeouts) -> Step | None:
    if stop.status is CommandStatus.FAILED:
        return ResumeJob(stop.failure or failure("SAVEPOINT_FAILED", "the savepoint failed"))
    outcome = outcome_of(facts.active, timeouts) if facts.active is not None else None
    if stop.status is CommandStatus.COMPLETED:
        if facts.active is None or outcome is not None or stop.status_age_ms > timeouts.stop_ms:
            return SettleJob(JobStatus.FINISHED if stop.drain else JobStatus.STOPPED)
        return None
    if _has_no_driver(facts, stop):
        return _without_savepoint("no driver ran that could take a savepoint")
    if facts.active is None or outcome in {Outcome.FINISHED, Outcome.WOKEN}:
        return _run(facts, timeouts)
    return _advance_stop(facts, facts.active, outcome, stop, timeouts)


def _without_savepoint(why: str) -> StopWithoutSavepoint:
    message = f"{why}; the job is stopped, and the next start continues from its last checkpoint"
    return StopWithoutSavepoint(failure("STOPPED_WITHOUT_SAVEPOINT", message))


def _has_no_driver(facts: JobFacts, stop: CommandFacts) -> bool:
    """Returns whether a stop has no driver to wait for.

    A driver that dies during the stop is replaced: the stop was requested of an attempt.
    """
    if facts.active is not None and facts.active.process is not ProcessState.UNLAUNCHED:
        return False
    was_requested_in_a_pause = facts.active is None and stop.attempt == 0 and facts.start_in_ms > 0
    return facts.start_fails or was_requested_in_a_pause


def _advance_stop(
    facts: JobFacts, active: AttemptFacts, outcome: Outcome | None, stop: CommandFacts, timeouts: Timeouts
) -> Step | None:
    """Decides for a stop command without a result."""
    if active.driver_state is DriverState.SLEEPING and outcome is None and not stop.drain:
        return StopSleeping(active.number)
    if outcome is not None:
        missing: ReplaceAttempt | FailJob | StopWithoutSavepoint = replace_or_fail(facts, active, outcome, timeouts)
        if stop.tries >= STOP_TRIES_MAX and isinstance(missing, ReplaceAttempt):
            ended = f"{stop.tries + 1} drivers in a row ended before the savepoint, the last one with"
            missing = _without_savepoint(f"{ended} {missing.failure['code']}: {missing.failure['message']}")
        silence = f"the object store did not say within {timeouts.store_ms // 1000} s whether the savepoint is complete"
        unanswered = _without_savepoint(f"the driver ended during the stop, and {silence}")
        return CheckSavepoint(stop.operation_id, missing=missing, unanswered=unanswered)
    if stop.attempt != active.number:
        return ReassignStop(stop.operation_id, active.number)
    return None
