"""The phases of a rescale. Pure.

    REQUESTED   the new driver starts beside the running one, and warms up
    SAVEPOINT   the old driver takes a savepoint, and commits nothing after it
    STOP        the savepoint is published; the old driver ends
    RESTORE     the new driver is given the savepoint
    VERIFY      the new driver runs; it has some time to commit its first batch, or to report that there is no input
    ROLL_BACK   the new driver could not run: back to the old parallelism, from the same savepoint

Until the savepoint is published, any failure leaves the job at its old parallelism. After that, the job goes on at the
new one: a new driver that dies is replaced. Only a new driver that fails by itself, dies several times, or takes too
long leads to ROLL_BACK. Every phase has a limit of time, except ROLL_BACK, in which the job is treated as any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.api.lifecycle.outcomes import Outcome, failure, failure_of, outcome_of
from keyscale.api.lifecycle.steps import (
    AbandonRescale,
    AdvanceRescale,
    BeginRescaleSavepoint,
    Cause,
    CheckSavepoint,
    CompleteRescale,
    CreateAttempt,
    RetryRestore,
    RollBack,
    SwitchOver,
)
from keyscale.db.statuses import CommandStatus, RescalePhase
from keyscale.jobs.protocol.messages import DriverState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyscale.api.lifecycle.facts import AttemptFacts, JobFacts, RescaleFacts, Timeouts
    from keyscale.api.lifecycle.steps import Step

RESTORE_TRIES_MAX = 3
BATCHES_TO_VERIFY = 10


def next_rescale_step(facts: JobFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    """Returns the next step of a rescale; None: wait, or (in ROLL_BACK) treat the job like any job that should run."""
    match rescale.phase:
        case RescalePhase.REQUESTED:
            return _requested(facts, rescale, timeouts)
        case RescalePhase.SAVEPOINT:
            return _savepoint(facts, rescale, timeouts)
        case RescalePhase.STOP:
            ended = facts.active is None or outcome_of(facts.active, timeouts) is not None
            return SwitchOver() if ended or rescale.phase_age_ms > timeouts.stop_ms else None
        case RescalePhase.RESTORE | RescalePhase.VERIFY:
            return _restore_or_roll_back(facts, rescale, timeouts)
        case RescalePhase.ROLL_BACK:
            active = facts.active
            return (
                CompleteRescale(True, _resumed_at_ms(active))
                if active is not None and _is_restored_and_running(active)
                else None
            )


def _requested(facts: JobFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    if facts.active is None:
        return AbandonRescale(failure("DRIVER_LOST", "the running driver ended before the savepoint"))
    if (outcome := outcome_of(facts.active, timeouts)) is not None:
        return AbandonRescale(failure_of(facts.active, outcome))
    if facts.standby is None:
        return CreateAttempt(rescale.to_parallelism, Cause.RESCALE, standby=True)
    if (outcome := outcome_of(facts.standby, timeouts)) is not None:
        return AbandonRescale(failure_of(facts.standby, outcome))
    if rescale.phase_age_ms > timeouts.request_ms:
        return AbandonRescale(_timed_out("the new driver did not start", timeouts.request_ms))
    is_warm = facts.standby.driver_state is DriverState.STANDBY or (
        facts.standby.is_attached and facts.standby.attached_age_ms > timeouts.warm_ms
    )
    return BeginRescaleSavepoint() if is_warm else None


def _savepoint(facts: JobFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    command = rescale.command
    if command is None or command.status is CommandStatus.FAILED:
        why = command.failure if command is not None else None
        return AbandonRescale(why or failure("SAVEPOINT_FAILED", "the savepoint failed"))
    if command.status is CommandStatus.COMPLETED:
        return AdvanceRescale(RescalePhase.STOP)
    outcome = outcome_of(facts.active, timeouts) if facts.active is not None else Outcome.LOST
    if outcome is None:
        return _give_savepoint_up(facts.active, command.id, rescale, timeouts)
    lost = failure("DRIVER_LOST", "the driver is gone")
    why = failure_of(facts.active, outcome) if facts.active is not None else lost
    return CheckSavepoint(command.id, missing=AbandonRescale(why))


def _give_savepoint_up(
    active: AttemptFacts | None, command_id: str, rescale: RescaleFacts, timeouts: Timeouts
) -> Step | None:
    """The old driver is told to commit nothing after its savepoint: one that never ends it is replaced."""
    limit_ms = rescale.checkpoint_timeout_ms + timeouts.savepoint_ms
    if active is None or rescale.phase_age_ms <= limit_ms:
        return None
    why = _timed_out("the old driver took no savepoint", limit_ms)
    return CheckSavepoint(command_id, missing=AbandonRescale(why, replaced=active.number))


def _restore_or_roll_back(facts: JobFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    active = facts.active
    if active is None:
        return RollBack(None, failure("DRIVER_LOST", "the new driver is gone"))
    match outcome_of(active, timeouts):
        case None:
            return _verify(active, rescale, timeouts)
        case Outcome.FINISHED:
            return CompleteRescale(False, _resumed_at_ms(active))
        case Outcome.LOST | Outcome.FENCED if rescale.tries < RESTORE_TRIES_MAX:
            return RetryRestore(active.number)
        case outcome:
            return RollBack(active.number, failure_of(active, outcome))


def _verify(active: AttemptFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    if rescale.phase is RescalePhase.RESTORE:
        if _is_restored_and_running(active):
            return AdvanceRescale(RescalePhase.VERIFY)
        why = "the new driver did not restore the savepoint"
        return _roll_back_after(timeouts.restore_ms, why, active, rescale)
    if _is_restored_and_running(active) and (active.first_commit_at_ms is not None or active.waits_for_input):
        return CompleteRescale(False, _resumed_at_ms(active))
    limit_ms = max(timeouts.verify_ms, round(BATCHES_TO_VERIFY * rescale.batch_duration_ms))
    return _roll_back_after(limit_ms, "the new driver committed no batch", active, rescale)


def _roll_back_after(limit_ms: int, why: str, active: AttemptFacts, rescale: RescaleFacts) -> Step | None:
    return RollBack(active.number, _timed_out(why, limit_ms)) if rescale.phase_age_ms > limit_ms else None


def _timed_out(why: str, limit_ms: int) -> Mapping[str, Any]:
    return failure("RESCALE_TIMED_OUT", f"{why} within {limit_ms / 1000:.0f} s")


def _is_restored_and_running(attempt: AttemptFacts) -> bool:
    return attempt.driver_state is DriverState.RUNNING and attempt.restored_at_ms is not None


def _resumed_at_ms(attempt: AttemptFacts) -> int | None:
    return attempt.first_commit_at_ms or attempt.restored_at_ms
