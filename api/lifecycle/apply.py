"""Applies steps to the database.

Each step is one transaction, with the job locked.
"""

from __future__ import annotations

from functools import singledispatch

from keyscale.clock import now_ms
from keyscale.db.repositories import attempts, operations, series
from keyscale.units import duration_text
from keyscale.vocabulary import (
    AttemptStage,
    ChangePhase,
    CommandStatus,
    DesiredState,
    JobStatus,
    OperationStatus,
    RescaleMode,
    UpgradeMode,
)

from . import steps
from .change_phases import cause_of
from .downtime_breakdown import stopped_at_ms, times_of
from .job_totals import known_before
from .job_transaction import JobTransaction
from .outcomes import failure
from .restoring import restore_of_change, restore_of_roll_back
from .transitions import enter


@singledispatch
def apply(step: object, transaction: JobTransaction) -> None:  # noqa: ARG001 - the signature of all registered functions
    """Applies a step.

    Args:
        step: One of the steps that only change the database.
        transaction: The transaction of its job.

    Raises:
        TypeError: The step has effects outside the database.
    """
    raise TypeError(type(step).__name__)


@apply.register
def _(step: steps.CreateAttempt, transaction: JobTransaction) -> None:
    stage = AttemptStage.STANDBY if step.standby else AttemptStage.ACTIVE
    transaction.note_counters(step.counters)
    attempt = transaction.create_attempt(step.revision, step.cause, stage=stage, after=step.after)
    if step.standby:
        transaction.running().new_attempt = attempt.number


@apply.register
def _(step: steps.AnnounceWait, transaction: JobTransaction) -> None:
    message = f"attempt {step.attempt} waits for its turn to start, in place {step.place}: other drivers start first"
    transaction.record("START_WAITS", message, attempt=step.attempt, place=step.place)


@apply.register
def _(step: steps.MarkReaped, transaction: JobTransaction) -> None:
    transaction.attempt(step.attempt).reaped = True
    transaction.note_counters(step.counters)


@apply.register
def _(step: steps.EndAttempt, transaction: JobTransaction) -> None:
    transaction.end_attempt(step.attempt)


@apply.register
def _(step: steps.WakeJob, transaction: JobTransaction) -> None:
    session, job = transaction.session, transaction.job
    snapshots = [each for each in operations.pending(session, job.id, step.attempt) if each.kind.is_snapshot]
    for each in snapshots:
        each.old_attempt = None  # otherwise they would end with the attempt
    transaction.end_attempt(step.attempt)
    number = transaction.create_attempt(step.revision, steps.Cause.WAKE).number
    for each in snapshots:
        each.old_attempt = number


@apply.register
def _(step: steps.StopSleeping, transaction: JobTransaction) -> None:  # noqa: ARG001 - the job's attempts end with it
    transaction.running().command_status = None  # the sleeping driver gets no command, so no command fails
    transaction.end(OperationStatus.COMPLETED)
    transaction.settle(JobStatus.STOPPED, None)


@apply.register
def _(step: steps.ReplaceAttempt, transaction: JobTransaction) -> None:
    transaction.end_attempt(step.attempt, step.failure)
    job = transaction.job
    job.failure = dict(step.failure)
    job.consecutive_failures = step.consecutive_failures
    if step.failures is not None:
        job.failures = step.failures.model_dump()
    job.restarts += 1
    if job.desired is DesiredState.RUNNING and job.status in {JobStatus.RUNNING, JobStatus.SLEEPING}:
        enter(job, JobStatus.RESTARTING)
    job.next_start_at_ms = now_ms() + step.backoff_ms if step.backoff_ms else 0
    when = f"in {duration_text(step.backoff_ms)}" if step.backoff_ms else "now"
    transaction.record(
        "ATTEMPT_REPLACED",
        f"attempt {step.attempt} ended: {step.failure['code']}; the next attempt starts {when}",
        attempt=step.attempt,
        failure_code=step.failure["code"],
    )
    _count_restart(transaction)


@apply.register
def _(step: steps.FailJob, transaction: JobTransaction) -> None:
    transaction.settle(JobStatus.FAILED, step.failure)


@apply.register
def _(step: steps.SettleJob, transaction: JobTransaction) -> None:
    transaction.settle(step.status, None)


@apply.register
def _(step: steps.StopWithoutSavepoint, transaction: JobTransaction) -> None:
    transaction.end(OperationStatus.FAILED, step.failure)
    transaction.settle(JobStatus.STOPPED, None)


@apply.register
def _(step: steps.ShowStatus, transaction: JobTransaction) -> None:
    enter(transaction.job, step.status)
    told = {JobStatus.RUNNING: "runs the job", JobStatus.SLEEPING: "sleeps until there is work"}
    if step.status in told:
        active = attempts.of_stage(transaction.session, transaction.job.id, AttemptStage.ACTIVE)
        number = active.number if active else 0
        transaction.record(f"JOB_{step.status}", f"attempt {number} {told[step.status]}", attempt=number)


@apply.register
def _(step: steps.CompleteStart, transaction: JobTransaction) -> None:  # noqa: ARG001 - it has no attributes
    transaction.end(OperationStatus.COMPLETED)


@apply.register
def _(step: steps.ForgetFailure, transaction: JobTransaction) -> None:  # noqa: ARG001 - it has no attributes
    failed = transaction.job.failure or {}
    transaction.job.failure = None
    transaction.record("JOB_RECOVERED", f"a batch was committed after the failure {failed.get('code')}")


@apply.register
def _(step: steps.ReassignStop, transaction: JobTransaction) -> None:
    transaction.running().old_attempt = step.attempt


@apply.register
def _(step: steps.ResumeJob, transaction: JobTransaction) -> None:
    transaction.job.desired = DesiredState.RUNNING
    transaction.end(OperationStatus.FAILED, step.failure)


@apply.register
def _(step: steps.AdvanceChange, transaction: JobTransaction) -> None:
    transaction.begin_phase(transaction.running(), step.phase)


@apply.register
def _(step: steps.BeginSavepoint, transaction: JobTransaction) -> None:  # noqa: ARG001 - it has no attributes
    change = transaction.running()
    change.command_status = change.command_status or CommandStatus.IN_PROGRESS
    transaction.begin_phase(change, ChangePhase.SAVEPOINT)


@apply.register
def _(step: steps.SwitchOver, transaction: JobTransaction) -> None:  # noqa: ARG001 - it has no attributes
    change, session, job = transaction.running(), transaction.session, transaction.job
    assert change.to_revision is not None  # noqa: S101 - a change has revisions
    old = transaction.attempt(change.old_attempt or 0)
    change.stopped_at_ms = stopped_at_ms(old, change.phases, now_ms())
    transaction.end_attempt(old.number)
    pending = transaction.pending_restore()
    if change.upgrade_mode is UpgradeMode.LAST_STATE or change.location is None:  # a sleeping driver took no savepoint
        change.location = transaction.latest_location()
    if change.command_status is CommandStatus.IN_PROGRESS:
        change.command_status = None
    job.restore = restore_of_change(change, pending).dump()
    job.revision = change.to_revision
    standby = attempts.of_stage(session, job.id, AttemptStage.STANDBY)
    if standby is not None:
        session.flush()  # the old attempt is ENDED before the new attempt is ACTIVE: two attempts are never active
        standby.stage = AttemptStage.ACTIVE
        standby.totals_before = known_before(session, job.id, standby.number)  # the old attempt has counted on
        transaction.tell_restore(standby)
    else:
        change.new_attempt = transaction.create_attempt(change.to_revision, cause_of(change.kind)).number
    transaction.begin_phase(change, ChangePhase.RESTORE)


@apply.register
def _(step: steps.ReserveAttempts, transaction: JobTransaction) -> None:
    change = transaction.running()
    opened = transaction.reserve_attempt(change.to_revision or 0, steps.Cause.LIVE_RESCALE, change, after=step.after)
    transaction.reserve_attempt(change.from_revision or 0, steps.Cause.ROLL_BACK, change)
    change.new_attempt = opened.number


@apply.register
def _(step: steps.SendRescale, transaction: JobTransaction) -> None:  # noqa: ARG001 - it has no attributes
    change = transaction.running()
    change.command_status = change.command_status or CommandStatus.IN_PROGRESS


@apply.register
def _(step: steps.FallBack, transaction: JobTransaction) -> None:
    change = transaction.running()
    transaction.end_reserved(change)
    change.rescale_mode, change.not_live = RescaleMode.STANDBY, dict(step.failure)
    change.command_status = change.failure = change.new_attempt = None
    transaction.begin_phase(change, ChangePhase.REQUESTED)


@apply.register
def _(step: steps.FollowSwitch, transaction: JobTransaction) -> None:  # noqa: ARG001 - it has no attributes
    change = transaction.running()
    old, opened = transaction.attempt(change.old_attempt or 0), transaction.attempt(change.new_attempt or 0)
    change.live = opened.rescale
    switched_at_ms = int((change.live or {}).get("switched_at_ms") or now_ms())
    change.stopped_at_ms = stopped_at_ms(old, change.phases, switched_at_ms)
    transaction.open_reserved(opened)
    transaction.job.revision = opened.revision
    change.command_status = CommandStatus.COMPLETED
    transaction.begin_phase(change, ChangePhase.SWITCH, (change.live or {}).get("prepared_at_ms"))
    transaction.begin_phase(change, ChangePhase.VERIFY, switched_at_ms)


@apply.register
def _(step: steps.FollowReturn, transaction: JobTransaction) -> None:  # noqa: ARG001 - it has no attributes
    change = transaction.running()
    opened = transaction.last_opened()
    change.live = opened.rescale
    why = (change.live or {}).get("failure") or failure("RESCALE_FAILED", "the first batch failed")
    change.stopped_at_ms = change.stopped_at_ms or now_ms()
    transaction.open_reserved(opened)
    transaction.job.revision = opened.revision
    change.command_status, change.failure = CommandStatus.COMPLETED, dict(why)
    transaction.begin_phase(change, ChangePhase.ROLL_BACK)


@apply.register
def _(step: steps.RetryRestore, transaction: JobTransaction) -> None:
    change = transaction.running()
    transaction.end_attempt(step.attempt)
    transaction.end_reserved(change)
    change.new_attempt = transaction.create_attempt(change.to_revision or 0, cause_of(change.kind)).number
    if change.phase is not ChangePhase.RESTORE:
        transaction.begin_phase(change, ChangePhase.RESTORE)


@apply.register
def _(step: steps.AbandonChange, transaction: JobTransaction) -> None:
    standby = attempts.of_stage(transaction.session, transaction.job.id, AttemptStage.STANDBY)
    if standby is not None:
        transaction.end_attempt(standby.number)
    transaction.end(OperationStatus.ROLLED_BACK, step.failure)
    if step.replaced is not None:
        transaction.end_attempt(step.replaced, step.failure)
        transaction.job.restarts += 1
        _count_restart(transaction)


@apply.register
def _(step: steps.NoteWait, transaction: JobTransaction) -> None:
    change = transaction.running()
    if change.phases and change.phases[-1].get("waits_for") != step.why:
        change.phases = [*change.phases[:-1], {**change.phases[-1], "waits_for": dict(step.why)}]


@apply.register
def _(step: steps.RollBack, transaction: JobTransaction) -> None:
    change = transaction.running()
    if step.attempt is not None:
        transaction.end_attempt(step.attempt, step.failure)
    transaction.end_reserved(change)
    assert change.from_revision is not None  # noqa: S101 - a change has revisions
    change.failure = dict(step.failure)
    has_rewound = transaction.pending_restore() is None
    transaction.job.restore = restore_of_roll_back(change, has_rewound=has_rewound).dump()
    transaction.job.revision = change.from_revision
    transaction.begin_phase(change, ChangePhase.ROLL_BACK)
    transaction.create_attempt(change.from_revision, steps.Cause.ROLL_BACK)


@apply.register
def _(step: steps.CompleteChange, transaction: JobTransaction) -> None:
    change = transaction.running()
    change.resumed_at_ms = step.resumed_at_ms
    active = attempts.of_stage(transaction.session, transaction.job.id, AttemptStage.ACTIVE)
    change.times = times_of(active)
    if change.live is not None and active is not None and active.run is not None:
        change.live = active.rescale
    status = OperationStatus.ROLLED_BACK if step.rolled_back else OperationStatus.COMPLETED
    transaction.end(status, change.failure if step.rolled_back else None)


def _count_restart(transaction: JobTransaction) -> None:
    """Counts a restart on its day.

    It must be last in its transaction, as a heartbeat locks the attempt before the day.
    """
    transaction.session.flush()
    series.store(transaction.session, transaction.job.id, now_ms(), {"restarts": 1})
