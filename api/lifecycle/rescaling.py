"""The phases of a rescale. Pure.

    REQUESTED   the new driver starts beside the running one, and warms up
    SAVEPOINT   the old driver takes a savepoint, and commits nothing after it
    STOP        the savepoint is published; the old driver ends
    RESTORE     the new driver is given the savepoint
    VERIFY      it runs; its first batch is waited for, or its word that there is no input
    ROLL_BACK   it could not: the old parallelism, from the same savepoint

Until the savepoint is published, whatever goes wrong leaves the job at its old parallelism. From then on the new one is
meant: a new driver that dies is replaced, and only one that fails by itself, or dies again and again, leads back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.lifecycle.endings import Ending, ending_of, failure, failure_of
from api.lifecycle.steps import (
    AbandonRescale,
    AdvanceRescale,
    Cause,
    CheckSavepoint,
    CompleteRescale,
    CreateAttempt,
    OrderRescaleSavepoint,
    RetryRestore,
    RollBack,
    SwitchOver,
)
from db.statuses import CommandStatus, RescalePhase
from jobs.wire import DriverState

if TYPE_CHECKING:
    from api.lifecycle.facts import AttemptFacts, JobFacts, RescaleFacts, Timeouts
    from api.lifecycle.steps import Step

RESTORE_TRIES_MAX = 3


def next_rescale_step(facts: JobFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    """Returns the next step of a rescale; None: wait, or (in ROLL_BACK) do as with any job that is to run."""
    match rescale.phase:
        case RescalePhase.REQUESTED:
            return _requested(facts, rescale, timeouts)
        case RescalePhase.SAVEPOINT:
            return _savepoint(facts, rescale, timeouts)
        case RescalePhase.STOP:
            ended = facts.active is None or ending_of(facts.active, timeouts) is not None
            return SwitchOver() if ended or rescale.phase_age_ms > timeouts.stop_ms else None
        case RescalePhase.RESTORE | RescalePhase.VERIFY:
            return _restore(facts, rescale, timeouts)
        case RescalePhase.ROLL_BACK:
            active = facts.active
            return CompleteRescale(True, _resumed_at_ms(active)) if active is not None and _runs(active) else None


def _requested(facts: JobFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    if facts.active is None:
        return AbandonRescale(failure("DRIVER_LOST", "the running driver ended before the savepoint"))
    if (ending := ending_of(facts.active, timeouts)) is not None:
        return AbandonRescale(failure_of(facts.active, ending))
    if facts.standby is None:
        return CreateAttempt(rescale.to_parallelism, Cause.RESCALE, standby=True)
    if (ending := ending_of(facts.standby, timeouts)) is not None:
        return AbandonRescale(failure_of(facts.standby, ending))
    is_warm = facts.standby.driver_state is DriverState.STANDBY or (
        facts.standby.is_attached and facts.standby.attached_age_ms > timeouts.warm_ms
    )
    return OrderRescaleSavepoint() if is_warm else None


def _savepoint(facts: JobFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    order = rescale.order
    if order is None or order.status is CommandStatus.FAILED:
        why = order.failure if order is not None else None
        return AbandonRescale(why or failure("SAVEPOINT_FAILED", "the savepoint has failed"))
    if order.status is CommandStatus.COMPLETED:
        return AdvanceRescale(RescalePhase.STOP)
    ending = ending_of(facts.active, timeouts) if facts.active is not None else Ending.LOST
    if ending is None:
        return None
    why = failure_of(facts.active, ending) if facts.active is not None else failure("DRIVER_LOST", "the driver is gone")
    return CheckSavepoint(order.id, missing=AbandonRescale(why))


def _restore(facts: JobFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    active = facts.active
    if active is None:
        return RollBack(None, failure("DRIVER_LOST", "the new driver is gone"))
    match ending_of(active, timeouts):
        case None:
            return _running(active, rescale, timeouts)
        case Ending.FINISHED:
            return CompleteRescale(False, _resumed_at_ms(active))
        case Ending.LOST | Ending.FENCED if rescale.tries < RESTORE_TRIES_MAX:
            return RetryRestore(active.number)
        case ending:
            return RollBack(active.number, failure_of(active, ending))


def _running(active: AttemptFacts, rescale: RescaleFacts, timeouts: Timeouts) -> Step | None:
    if not _runs(active):
        return None
    if rescale.phase is RescalePhase.RESTORE:
        return AdvanceRescale(RescalePhase.VERIFY)
    is_verified = active.first_commit_at_ms is not None or active.waits_for_input
    if is_verified or rescale.phase_age_ms > timeouts.verify_ms:
        return CompleteRescale(False, _resumed_at_ms(active))
    return None


def _runs(attempt: AttemptFacts) -> bool:
    return attempt.driver_state is DriverState.RUNNING and attempt.restored_at_ms is not None


def _resumed_at_ms(attempt: AttemptFacts) -> int | None:
    return attempt.first_commit_at_ms or attempt.restored_at_ms
