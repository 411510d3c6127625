"""The phases of a change. Pure.

    REQUESTED   the new driver starts beside the running one, warms up, and tries its sinks
    SAVEPOINT   the old driver takes a savepoint, and commits nothing after it; a driver that sleeps takes none
    STOP        the savepoint is published; the old driver ends
    RESTORE     the new driver is given the savepoint
    VERIFY      the new driver runs; it has some time to commit its first batch, or to report that there is no input
    ROLL_BACK   the new driver could not run: back to the old revision, from the same savepoint

A live rescale begins with PREPARE (`live_phases.py`) instead of the phases from REQUESTED to RESTORE.

Until the savepoint is published, any failure leaves the job at its old revision. After that, the job continues with
the new revision: a new driver that dies, or fails for a reason that may pass, is replaced. Only a new driver that
fails for another reason, is replaced several times, or takes too long leads to ROLL_BACK. A driver that has committed
a batch never does, even if it could not report the batch. A user who cancels the change has the same effect
immediately in REQUESTED, and from RESTORE on until the new driver commits its first batch; the command to take a
savepoint and end cannot be taken back. Every phase has a time limit, except ROLL_BACK, in which the job is treated as
other jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.vocabulary import ChangePhase, CommandStatus, DriverState, OperationKind, UpgradeMode

from .live_phases import followed, next_prepare_step
from .outcomes import Outcome, failure, failure_of, may_pass, outcome_of
from .steps import (
    AbandonChange,
    AdvanceChange,
    BeginSavepoint,
    Cause,
    CheckSavepoint,
    CompleteChange,
    CreateAttempt,
    FallBack,
    ReserveAttempts,
    RetryRestore,
    RollBack,
    SendRescale,
    SwitchOver,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .facts import AttemptFacts, ChangeFacts, JobFacts, Timeouts
    from .steps import Step

RESTORE_TRIES_MAX = 3
BATCHES_TO_VERIFY = 10
WARM_TIMES_MAX = 3
"""A change waits this many times as long for its new driver as the slowest of the last changes did."""
CANCELLED = "CHANGE_CANCELLED"
"""The code of the failure of a change that its user has cancelled."""


def next_change_step(facts: JobFacts, change: ChangeFacts, timeouts: Timeouts) -> Step | None:
    """Returns the next step of a change.

    None means to wait, or (in ROLL_BACK) to treat the job as any job that should run.
    """
    match change.phase:
        case ChangePhase.PREPARE:
            step = next_prepare_step(facts, change, timeouts)
            is_unchanged = isinstance(step, (ReserveAttempts, SendRescale, FallBack))
            return AbandonChange(_cancelled(change)) if change.is_cancelled and is_unchanged else step
        case ChangePhase.REQUESTED:
            return AbandonChange(_cancelled(change)) if change.is_cancelled else _requested(facts, change, timeouts)
        case ChangePhase.SAVEPOINT:
            return _savepoint(facts, change, timeouts)
        case ChangePhase.STOP:
            ended = facts.active is None or outcome_of(facts.active, timeouts) is not None
            return SwitchOver() if ended or change.phase_age_ms > timeouts.stop_ms else None
        case ChangePhase.SWITCH | ChangePhase.RESTORE | ChangePhase.VERIFY:
            return followed(facts, change) or _restore_or_roll_back(facts, change, timeouts)
        case ChangePhase.ROLL_BACK:
            return _rolled_back(facts.active, change, timeouts)


def cause_of(kind: OperationKind) -> Cause:
    """Returns the cause of a change's attempts of the new revision."""
    if kind.traits.may_change_program:
        return Cause.UPGRADE
    return Cause.RESCALE if kind is OperationKind.RESCALE else Cause.RESTART


def _requested(facts: JobFacts, change: ChangeFacts, timeouts: Timeouts) -> Step | None:
    has_slept = facts.active is not None and facts.active.has_slept
    takes_savepoint = change.mode is not UpgradeMode.LAST_STATE and not has_slept
    if takes_savepoint and (why := _why_no_savepoint(facts.active, timeouts)) is not None:
        return AbandonChange(why)
    if facts.standby is None:
        return CreateAttempt(change.to_revision, cause_of(change.kind), standby=True)
    if (outcome := outcome_of(facts.standby, timeouts)) is not None:
        return AbandonChange(failure_of(facts.standby, outcome))
    if not facts.standby.is_attached:
        is_late = change.phase_age_ms > timeouts.request_ms
        late = _timed_out(change, "the new driver did not start", timeouts.request_ms)
        return AbandonChange(late) if is_late else None
    is_ready = facts.standby.driver_state is DriverState.STANDBY
    if not is_ready and facts.standby.attached_age_ms <= warm_limit_ms(change.earlier_warm_ms, timeouts):
        return None
    return BeginSavepoint() if takes_savepoint else SwitchOver()


def warm_limit_ms(earlier_ms: Sequence[int], timeouts: Timeouts) -> int:
    """Returns how long a change waits for its driver.

    The job runs meanwhile. An earlier savepoint would add the rest of that time to the downtime.

    Args:
        earlier_ms: How long the drivers of the job's last changes had to become ready.
        timeouts: The limits that apply.
    """
    if not earlier_ms:
        return timeouts.warm_ms
    return min(max(timeouts.warm_ms_min, WARM_TIMES_MAX * max(earlier_ms)), timeouts.warm_ms_max)


def _why_no_savepoint(active: AttemptFacts | None, timeouts: Timeouts) -> Mapping[str, Any] | None:
    if active is None:
        return failure("DRIVER_LOST", "the running driver ended before the savepoint")
    outcome = outcome_of(active, timeouts)
    return None if outcome is None else failure_of(active, outcome)


def _savepoint(facts: JobFacts, change: ChangeFacts, timeouts: Timeouts) -> Step | None:
    command = change.command
    if command is None or command.status is CommandStatus.FAILED:
        why = command.failure if command is not None else None
        return AbandonChange(why or failure("SAVEPOINT_FAILED", "the savepoint failed"))
    if command.status is CommandStatus.COMPLETED:
        return AdvanceChange(ChangePhase.STOP)
    if facts.active is not None and facts.active.has_slept:
        return SwitchOver()
    outcome = outcome_of(facts.active, timeouts) if facts.active is not None else Outcome.LOST
    if outcome is None:
        return _give_savepoint_up(facts.active, command.operation_id, change, timeouts)
    lost = failure("DRIVER_LOST", "the driver is gone")
    why = failure_of(facts.active, outcome) if facts.active is not None else lost
    return CheckSavepoint(command.operation_id, missing=AbandonChange(why))


def _give_savepoint_up(
    active: AttemptFacts | None, operation_id: str, change: ChangeFacts, timeouts: Timeouts
) -> Step | None:
    """Replaces an old driver that does not end its savepoint in time.

    The old driver commits nothing after its savepoint.
    """
    limit_ms = change.checkpoint_timeout_ms + timeouts.savepoint_ms
    if active is None or change.phase_age_ms <= limit_ms:
        return None
    why = _timed_out(change, "the old driver took no savepoint", limit_ms)
    return CheckSavepoint(operation_id, missing=AbandonChange(why, replaced=active.number))


def _restore_or_roll_back(facts: JobFacts, change: ChangeFacts, timeouts: Timeouts) -> Step | None:
    active = facts.active
    if active is None:
        return RollBack(None, failure("DRIVER_LOST", "the new driver is gone"))
    outcome = outcome_of(active, timeouts)
    if change.is_cancelled and active.first_commit_at_ms is None and outcome is not Outcome.FINISHED:
        return RollBack(active.number, _cancelled(change))
    match outcome:
        case None:
            return _verify(active, change, timeouts)
        case Outcome.FINISHED:
            return CompleteChange(False, _resumed_at_ms(active))
    is_of_host = outcome in {Outcome.LOST, Outcome.FENCED} or (outcome is Outcome.FAILED and may_pass(active.failure))
    if is_of_host and change.tries < RESTORE_TRIES_MAX:
        return RetryRestore(active.number)
    return RollBack(active.number, failure_of(active, outcome))


def _verify(active: AttemptFacts, change: ChangeFacts, timeouts: Timeouts) -> Step | None:
    if change.phase is ChangePhase.RESTORE:
        if _is_restored_and_running(active):
            return AdvanceChange(ChangePhase.VERIFY)
        why = "the new driver did not restore the state"
        return _roll_back_failed(active, change) or _roll_back_after(timeouts.restore_ms, why, active, change)
    has_run = active.has_run_input if _has_new_program(change) else active.first_commit_at_ms is not None
    if _is_restored_and_running(active) and (has_run or active.waits_for_input):
        return CompleteChange(False, _resumed_at_ms(active))
    limit_ms = max(timeouts.verify_ms, round(BATCHES_TO_VERIFY * change.batch_duration_ms))
    why = "the new driver committed no batch" + (" with input" if _has_new_program(change) else "")
    return _roll_back_failed(active, change) or _roll_back_after(limit_ms, why, active, change)


def _roll_back_failed(active: AttemptFacts, change: ChangeFacts) -> Step | None:
    """Rolls back a new program that fails before its first batch.

    The restart strategy applies only to failures that may pass.
    """
    if active.run_failure is None or may_pass(active.run_failure) or not _has_new_program(change):
        return None
    return RollBack(active.number, active.run_failure)


def _has_new_program(change: ChangeFacts) -> bool:
    """Returns whether the change may bring other functions.

    A batch of timers alone does not try functions with records.
    """
    return change.kind.traits.may_change_program


def _roll_back_after(limit_ms: int, why: str, active: AttemptFacts, change: ChangeFacts) -> Step | None:
    return RollBack(active.number, _timed_out(change, why, limit_ms)) if change.phase_age_ms > limit_ms else None


def _rolled_back(active: AttemptFacts | None, change: ChangeFacts, timeouts: Timeouts) -> Step | None:
    """Completes a rollback.

    Downtime ends when the old revision runs, fails or times out.
    """
    if active is None:
        return None
    goes_on = active.first_commit_at_ms is not None or active.waits_for_input
    has_ended = goes_on or change.phase_age_ms > timeouts.verify_ms
    if active.run_failure is not None or (has_ended and _is_restored_and_running(active)):
        return CompleteChange(True, _resumed_at_ms(active))
    return None


def _cancelled(change: ChangeFacts) -> Mapping[str, Any]:
    return failure(CANCELLED, f"a user has cancelled the {change.kind.lower()}")


def _timed_out(change: ChangeFacts, why: str, limit_ms: int) -> Mapping[str, Any]:
    return failure(f"{cause_of(change.kind).upper()}_TIMED_OUT", f"{why} within {limit_ms / 1000:.0f} s")


def _is_restored_and_running(attempt: AttemptFacts) -> bool:
    return attempt.driver_state is DriverState.RUNNING and attempt.restored_at_ms is not None


def _resumed_at_ms(attempt: AttemptFacts) -> int | None:
    return attempt.first_commit_at_ms or attempt.restored_at_ms
