"""Does what has been decided, as far as it is in the database. Each step is one transaction, with the job locked."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from api.clock import now_ms
from api.lifecycle import steps
from api.lifecycle.intents import enter
from api.lifecycle.job_transaction import JobTransaction, rescale_order_id
from api.lifecycle.orders import order_stop
from db.repositories import attempts, commands
from db.statuses import AttemptStage, DesiredState, JobStatus, RescalePhase, RescaleStatus

_BUSY_WITHIN_MS = 10_000  # a job without a batch for so long had no input, which is no downtime


@singledispatch
def carry_out(step: object, transaction: JobTransaction) -> None:  # noqa: ARG001 - the signature of all of them
    """Does a step.

    Raises:
        TypeError: It is not one of the database's.
    """
    raise TypeError(type(step).__name__)


@carry_out.register
def _(step: steps.CreateAttempt, transaction: JobTransaction) -> None:
    stage = AttemptStage.STANDBY if step.standby else AttemptStage.ACTIVE
    attempt = transaction.create_attempt(step.parallelism, step.cause, stage=stage)
    if step.standby:
        transaction.rescale().new_attempt = attempt.number


@carry_out.register
def _(step: steps.MarkReaped, transaction: JobTransaction) -> None:
    transaction.attempt(step.attempt).reaped = True


@carry_out.register
def _(step: steps.EndAttempt, transaction: JobTransaction) -> None:
    transaction.end_attempt(step.attempt)


@carry_out.register
def _(step: steps.ReplaceAttempt, transaction: JobTransaction) -> None:
    transaction.end_attempt(step.attempt, step.failure)
    job = transaction.job
    job.failure = dict(step.failure)
    job.consecutive_failures = step.consecutive_failures
    if step.failures is not None:
        job.failures = step.failures.model_dump()
    job.restarts += 1
    if job.desired is DesiredState.RUNNING and job.status is JobStatus.RUNNING:
        enter(job, JobStatus.RESTARTING)
    job.next_start_at_ms = now_ms() + step.backoff_ms if step.backoff_ms else 0
    when = f"in {step.backoff_ms} ms" if step.backoff_ms else "now"
    transaction.record(
        "ATTEMPT_REPLACED",
        f"attempt {step.attempt} has ended: {step.failure['message']}; the next one starts {when}",
        attempt=step.attempt,
        failure_code=step.failure["code"],
    )


@carry_out.register
def _(step: steps.FailJob, transaction: JobTransaction) -> None:
    transaction.settle(JobStatus.FAILED, step.failure)


@carry_out.register
def _(step: steps.SettleJob, transaction: JobTransaction) -> None:
    transaction.settle(step.status, None)


@carry_out.register
def _(step: steps.ShowStatus, transaction: JobTransaction) -> None:
    enter(transaction.job, step.status)
    if step.status is JobStatus.RUNNING:
        transaction.job.failure = None
        active = attempts.of_stage(transaction.session, transaction.job.id, AttemptStage.ACTIVE)
        number = active.number if active else 0
        transaction.record("JOB_RUNNING", f"attempt {number} runs the job", attempt=number)


@carry_out.register
def _(step: steps.ReassignStop, transaction: JobTransaction) -> None:
    if (command := commands.find(transaction.session, step.order)) is not None:
        command.attempt = step.attempt


@carry_out.register
def _(step: steps.ResumeJob, transaction: JobTransaction) -> None:
    transaction.job.desired = DesiredState.RUNNING
    transaction.record("STOP_FAILED", f"the savepoint has failed, the job runs on: {step.failure['message']}")


@carry_out.register
def _(step: steps.AdvanceRescale, transaction: JobTransaction) -> None:
    rescale = transaction.rescale()
    if step.phase is RescalePhase.STOP:
        order = commands.find(transaction.session, rescale_order_id(rescale.id))
        if order is not None:
            rescale.savepoint_location, rescale.savepoint_checkpoint_id = order.location, order.checkpoint_id
    transaction.begin_phase(rescale, step.phase)


@carry_out.register
def _(step: steps.OrderRescaleSavepoint, transaction: JobTransaction) -> None:  # noqa: ARG001 - it has no attributes
    rescale = transaction.rescale()
    order_id = rescale_order_id(rescale.id)
    if commands.find(transaction.session, order_id) is None:
        order_stop(transaction.session, transaction.job.id, rescale.old_attempt, order_id, rescale.id)
    transaction.begin_phase(rescale, RescalePhase.SAVEPOINT)


@carry_out.register
def _(step: steps.SwitchOver, transaction: JobTransaction) -> None:  # noqa: ARG001 - it has no attributes
    rescale, session, job = transaction.rescale(), transaction.session, transaction.job
    old = transaction.attempt(rescale.old_attempt)
    rescale.stopped_at_ms = _stopped_at_ms(old.last_commit_at_ms, rescale.phases)
    transaction.end_attempt(old.number)
    standby = attempts.of_stage(session, job.id, AttemptStage.STANDBY)
    if standby is not None:
        session.flush()  # the old one is ENDED before the new one is ACTIVE: there is never a second one
        standby.stage, standby.restore_from = AttemptStage.ACTIVE, rescale.savepoint_location
    else:
        made = transaction.create_attempt(
            rescale.to_parallelism, steps.Cause.RESCALE, restore_from=rescale.savepoint_location
        )
        rescale.new_attempt = made.number
    job.parallelism = rescale.to_parallelism
    transaction.begin_phase(rescale, RescalePhase.RESTORE)


@carry_out.register
def _(step: steps.RetryRestore, transaction: JobTransaction) -> None:
    rescale = transaction.rescale()
    transaction.end_attempt(step.attempt)
    made = transaction.create_attempt(
        rescale.to_parallelism, steps.Cause.RESCALE, restore_from=rescale.savepoint_location
    )
    rescale.new_attempt = made.number
    if rescale.phase is not RescalePhase.RESTORE:
        transaction.begin_phase(rescale, RescalePhase.RESTORE)


@carry_out.register
def _(step: steps.AbandonRescale, transaction: JobTransaction) -> None:
    rescale = transaction.rescale()
    standby = attempts.of_stage(transaction.session, transaction.job.id, AttemptStage.STANDBY)
    if standby is not None:
        transaction.end_attempt(standby.number)
    transaction.end_rescale(rescale, RescaleStatus.ROLLED_BACK, step.failure)


@carry_out.register
def _(step: steps.RollBack, transaction: JobTransaction) -> None:
    rescale = transaction.rescale()
    if step.attempt is not None:
        transaction.end_attempt(step.attempt, step.failure)
    rescale.failure = dict(step.failure)
    transaction.job.parallelism = rescale.from_parallelism
    transaction.begin_phase(rescale, RescalePhase.ROLL_BACK)
    transaction.create_attempt(rescale.from_parallelism, steps.Cause.ROLL_BACK, restore_from=rescale.savepoint_location)


@carry_out.register
def _(step: steps.CompleteRescale, transaction: JobTransaction) -> None:
    rescale = transaction.rescale()
    rescale.resumed_at_ms = step.resumed_at_ms
    status = RescaleStatus.ROLLED_BACK if step.rolled_back else RescaleStatus.COMPLETED
    transaction.end_rescale(rescale, status, rescale.failure if step.rolled_back else None)


def _stopped_at_ms(last_commit_at_ms: int | None, phases: list[dict[str, Any]]) -> int | None:
    """Returns when the job stood still: at the old attempt's last commit, or when one without input was told to stop."""
    ordered_at_ms: int | None = next(
        (phase["started_at_ms"] for phase in phases if phase["phase"] == RescalePhase.SAVEPOINT), None
    )
    if last_commit_at_ms is None or ordered_at_ms is None:
        return ordered_at_ms
    return last_commit_at_ms if last_commit_at_ms > ordered_at_ms - _BUSY_WITHIN_MS else ordered_at_ms
