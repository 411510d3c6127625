"""One transaction on one locked job: the building blocks of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.api.lifecycle.intents import settle_command
from keyscale.api.lifecycle.outcomes import failure
from keyscale.api.lifecycle.transitions import enter
from keyscale.clock import now_ms
from keyscale.db.models import Attempt
from keyscale.db.repositories import attempts, checkpoints, commands, events, rescales
from keyscale.db.statuses import (
    AttemptStage,
    CommandKind,
    CommandStatus,
    DesiredState,
    JobStatus,
    RescalePhase,
    RescaleStatus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from keyscale.api.lifecycle.steps import Cause
    from keyscale.db.models import Job, Rescale


class JobTransaction:
    """The changes that steps make to a job, within one transaction."""

    def __init__(self, session: Session, job: Job) -> None:
        self.session = session
        self.job = job

    def create_attempt(
        self,
        parallelism: int,
        cause: Cause,
        *,
        stage: AttemptStage = AttemptStage.ACTIVE,
        restore_from: str | None = None,
    ) -> Attempt:
        """Stores a new attempt, before anything is started.

        Without `restore_from` it restores the latest checkpoint. A standby gets its checkpoint later, when it is
        activated.
        """
        if restore_from is None and stage is AttemptStage.ACTIVE:
            source = checkpoints.latest_completed(self.session, self.job.id)
            restore_from = source.external_path if source else None
        attempt = Attempt(
            job_id=self.job.id,
            number=attempts.next_number(self.session, self.job.id),
            stage=stage,
            cause=cause,
            parallelism=parallelism,
            restore_from=restore_from,
            created_at_ms=now_ms(),
            reaped=False,
        )
        self.session.add(attempt)
        self.session.flush()
        self.record(
            "ATTEMPT_CREATED",
            f"attempt {attempt.number} ({cause}) at parallelism {parallelism}",
            attempt=attempt.number,
            restore_from=restore_from,
        )
        return attempt

    def end_attempt(self, number: int, why: Mapping[str, Any] | None = None) -> None:
        """Ends an attempt: its driver is refused from now on, and its unfinished checkpoints and commands fail."""
        attempt, now = self.attempt(number), now_ms()
        if attempt.stage is AttemptStage.ENDED:
            return
        attempt.stage, attempt.ended_at_ms = AttemptStage.ENDED, now
        if why is not None and attempt.failure is None:
            attempt.failure = dict(why)
        self.session.flush()
        checkpoints.fail_unfinished(
            self.session,
            self.job.id,
            number,
            at_ms=now,
            message=f"attempt {number} ended before the checkpoint was complete",
        )
        cause = failure("DRIVER_LOST", f"attempt {number} ended before the command was done")
        for command in commands.pending(self.session, self.job.id, number):
            if command.kind is not CommandKind.STOP_WITH_SAVEPOINT:
                settle_command(self.session, command, status=CommandStatus.FAILED, failure=cause)

    def settle(self, status: JobStatus, why: Mapping[str, Any] | None) -> None:
        """Ends the job, and everything of it that is still in progress."""
        job = self.job
        for stage in (AttemptStage.ACTIVE, AttemptStage.STANDBY):
            if (attempt := attempts.of_stage(self.session, job.id, stage)) is not None:
                self.end_attempt(attempt.number, why)
        cause = why or failure("JOB_ENDED", f"the job is {status}")
        if (rescale := rescales.running(self.session, job.id)) is not None:
            self.end_rescale(rescale, RescaleStatus.FAILED, cause)
        if job.stop_operation_id and (command := commands.find(self.session, job.stop_operation_id)) is not None:
            settle_command(self.session, command, status=CommandStatus.FAILED, failure=cause)
        job.desired = DesiredState.STOPPED
        job.failure = dict(why) if why is not None else None
        job.ended_at_ms = now_ms()
        enter(job, status)
        self.record(f"JOB_{status}", f"the job is {status.lower()}" + (f": {why['code']}" if why else ""))

    def rescale(self) -> Rescale:
        """Returns the rescale in progress; there must be one."""
        found = rescales.running(self.session, self.job.id)
        if found is None:
            raise LookupError(self.job.id)
        return found

    def begin_phase(self, rescale: Rescale, phase: RescalePhase) -> None:
        """Ends the present phase of a rescale, and begins another one."""
        now = now_ms()
        rescale.phases = [*_ended(rescale.phases, now), {"phase": phase, "started_at_ms": now, "ended_at_ms": None}]
        rescale.phase = phase
        self.record("RESCALE_PHASE", f"rescale: {phase}", rescale_id=rescale.id, phase=phase)

    def end_rescale(self, rescale: Rescale, status: RescaleStatus, why: Mapping[str, Any] | None) -> None:
        """Ends a rescale."""
        now = now_ms()
        rescale.phases = _ended(rescale.phases, now)
        rescale.status, rescale.ended_at_ms = status, now
        if why is not None and rescale.failure is None:
            rescale.failure = dict(why)
        if (command := commands.find(self.session, rescale_command_id(rescale.id))) is not None:
            cause = why or failure("RESCALE_ENDED", "the rescale has ended")
            settle_command(self.session, command, status=CommandStatus.FAILED, failure=cause)
        self.record(
            f"RESCALE_{status}",
            f"rescale from {rescale.from_parallelism} to {rescale.to_parallelism}: {status.replace('_', ' ').lower()}"
            + (f": {why['code']}" if why else ""),
            rescale_id=rescale.id,
        )

    def attempt(self, number: int) -> Attempt:
        """Returns the job's attempt of this number; it must exist."""
        found = attempts.find(self.session, self.job.id, number)
        if found is None:
            raise LookupError(number)
        return found

    def record(self, kind: str, message: str, **details: Any) -> None:
        """Adds an event to the audit trail."""
        events.record(self.session, job_id=self.job.id, at_ms=now_ms(), kind=kind, message=message, **details)


def rescale_command_id(rescale_id: str) -> str:
    """Returns the id of the command by which a rescale stops the old attempt; its savepoint has the rescale's id."""
    return f"rescale:{rescale_id}"


def _ended(phases: list[dict[str, Any]], at_ms: int) -> list[dict[str, Any]]:
    return [
        {**phase, "ended_at_ms": at_ms if phase["ended_at_ms"] is None else phase["ended_at_ms"]} for phase in phases
    ]
