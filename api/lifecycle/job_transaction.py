"""One transaction on one locked job: the building blocks of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.clock import now_ms
from keyscale.db.models import Attempt, Revision
from keyscale.db.repositories import attempts, checkpoints, events, exceptions, operations, replicas, series
from keyscale.jobs.protocol.messages import DriverMetrics
from keyscale.vocabulary import (
    AttemptStage,
    ChangePhase,
    CommandStatus,
    DesiredState,
    JobStatus,
    OperationStatus,
    RescaleMode,
    RestoreMode,
)

from ..access.tokens import reserved_token, token_sha256
from .change_phases import CANCELLED
from .downtime_breakdown import usual_waiting
from .job_totals import added_totals, known_before, with_log_counters
from .operation_results import described, end, end_with_job, ended, settle_command
from .outcomes import failure
from .restoring import Restore
from .transitions import enter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.orm import Session

    from keyscale.db.models import Checkpoint, Job, Operation
    from keyscale.state.doors.catalogue import JobCounters

    from .steps import Cause

_BEGUN = {
    ChangePhase.PREPARE: "the running driver prepares the new subtasks",
    ChangePhase.SWITCH: "the running driver opens the next attempt",
    ChangePhase.REQUESTED: "the new driver is started",
    ChangePhase.SAVEPOINT: "a savepoint is taken",
    ChangePhase.STOP: "the old driver is stopped",
    ChangePhase.RESTORE: "the new driver restores the state",
    ChangePhase.VERIFY: "the first batch is run",
    ChangePhase.ROLL_BACK: "the job goes back",
}
"""The work of each phase of a change, in words."""


class JobTransaction:
    """The changes that steps make to a job, within one transaction."""

    def __init__(self, session: Session, job: Job) -> None:
        self.session = session
        self.job = job

    def create_attempt(
        self,
        revision: int,
        cause: Cause,
        *,
        stage: AttemptStage = AttemptStage.ACTIVE,
        after: int = 0,
    ) -> Attempt:
        """Stores a new attempt of a revision, before its start.

        The attempt gets its restore now, but a standby gets it later, when it is activated.
        """
        parallelism = self.revision(revision).spec["parallelism"]
        running = operations.running(self.session, self.job.id)
        next_number = attempts.next_number(self.session, self.job.id)
        number = max(next_number, after + 1)
        if self.job.time_reset_after == next_number - 1:  # no attempt since the request; the log may know later ones
            self.job.time_reset_after = number - 1
        attempt = Attempt(
            job_id=self.job.id,
            number=number,
            stage=stage,
            cause=cause,
            revision=revision,
            parallelism=parallelism,
            created_at_ms=now_ms(),
            lag_before=None if running is None else usual_waiting(running.metrics_before or {}),
            reaped=False,
        )
        if stage is AttemptStage.ACTIVE:
            self.tell_restore(attempt)
        attempt.totals_before = known_before(self.session, self.job.id, attempt.number)
        self.session.add(attempt)
        self.session.flush()
        if stage is not AttemptStage.RESERVED:
            self._record_created(attempt)
        return attempt

    def reserve_attempt(self, revision: int, cause: Cause, operation: Operation, *, after: int = 0) -> Attempt:
        """Stores an attempt that the active attempt's driver may open."""
        active = self.attempt(operation.old_attempt or 0)
        reserved = self.create_attempt(revision, cause, stage=AttemptStage.RESERVED, after=after)
        key = replicas.shared_key(self.session)
        token = reserved_token(key, f"{self.job.id}:{reserved.number}", operation.id)
        reserved.token_sha256 = token_sha256(token)
        reserved.run, reserved.reaped = active.run_number, True  # the processes are of the active attempt
        for name in ("launched_at_ms", "launched_on", "attached_at_ms", "pid", "host", "spark_ui_url", "slots"):
            setattr(reserved, name, getattr(active, name))
        return reserved

    def open_reserved(self, attempt: Attempt) -> None:
        """Makes a reserved attempt active; earlier attempts end.

        Its driver has opened it.
        """
        for stage in (AttemptStage.ACTIVE, AttemptStage.RESERVED):
            for earlier in attempts.all_of_stage(self.session, self.job.id, stage):
                if earlier.number < attempt.number:
                    self.end_attempt(earlier.number)
                    earlier.reaped = True  # its driver goes on
        self.session.flush()  # first, as two attempts are never active
        attempt.stage, attempt.reaped, attempt.assigned_at_ms = AttemptStage.ACTIVE, False, now_ms()
        attempt.totals_before = known_before(self.session, self.job.id, attempt.number)
        self._record_created(attempt)

    def last_opened(self) -> Attempt:
        """Returns the last reserved attempt that its driver has opened."""
        found = attempts.all_of_stage(self.session, self.job.id, AttemptStage.RESERVED)
        return [attempt for attempt in found if attempt.driver_state is not None][-1]

    def end_reserved(self, operation: Operation) -> None:
        """Ends the reserved attempts of an operation."""
        if operation.rescale_mode is not RescaleMode.LIVE:
            return
        for reserved in attempts.all_of_stage(self.session, self.job.id, AttemptStage.RESERVED):
            self.end_attempt(reserved.number)

    def _record_created(self, attempt: Attempt) -> None:
        of = f"of revision {attempt.revision} at parallelism {attempt.parallelism}"
        self.record(
            "ATTEMPT_CREATED",
            f"attempt {attempt.number} ({attempt.cause}) {of}",
            attempt=attempt.number,
            restore_from=attempt.restore_from,
        )

    def note_counters(self, counters: JobCounters | None) -> None:
        """Stores the counters of the commit log with the newest report.

        Its driver may have committed batches after its last report. None: the log could not be read.
        """
        counted = attempts.newest_counted(self.session, self.job.id)
        if counters is None or counted is None:
            return
        counted.metrics = with_log_counters(counted.metrics, counters)
        self.session.flush()  # first, as a report stores its metrics before the day
        totals = added_totals(counted.totals_before, DriverMetrics.model_validate(counted.metrics))
        series.store(self.session, self.job.id, now_ms(), totals)

    def tell_restore(self, attempt: Attempt) -> None:
        """Stores in an attempt how it restores.

        It follows the pending restore, or else takes the job's own latest checkpoint.
        """
        restore = self.pending_restore() or Restore()
        latest = self.latest_location() if restore.mode is RestoreMode.CONTINUE else None
        attempt.restore_mode, attempt.restore_id = restore.mode, restore.id
        attempt.restore_from = restore.location or latest
        attempt.claim_mode = restore.claim_mode
        attempt.allow_non_restored_state = restore.allow_non_restored_state

    def pending_restore(self) -> Restore | None:
        """Returns the pending restore; clears a restore that was carried out."""
        if self.job.restore is None:
            return None
        restore = Restore.load(self.job.restore)
        done = attempts.find_restored(self.session, self.job.id, restore.id) if restore.id else None
        if done is None:
            return restore
        if restore.mode is not RestoreMode.CONTINUE:
            self.job.rewound_by, self.job.rewound_to = done.number, restore.location
        self.job.restore = None
        return None

    def set_pending_restore(self, restore: Restore) -> None:
        """Stores the pending restore for the next attempt.

        An earlier pending restore is withdrawn.
        """
        self.pending_restore()
        self.job.restore = restore.dump()

    def latest_completed(self) -> Checkpoint | None:
        """Returns the newest snapshot of the history that the job continues.

        It is a checkpoint or savepoint.
        """
        self.pending_restore()
        return checkpoints.latest_completed(self.session, self.job.id, since_attempt=self.job.rewound_by)

    def latest_location(self) -> str | None:
        """Returns the location of the job's own history.

        It is its latest checkpoint, or else the snapshot that it began with.
        """
        latest = self.latest_completed()
        return latest.external_path if latest is not None else self.job.rewound_to

    def revision(self, number: int) -> Revision:
        """Returns the job's revision of this number; it must exist."""
        return self.session.get_one(Revision, (self.job.id, number))

    def end_attempt(self, number: int, why: Mapping[str, Any] | None = None) -> None:
        """Ends an attempt.

        Its driver is refused from now on, and its unfinished checkpoints and commands fail.
        """
        attempt, now = self.attempt(number), now_ms()
        if attempt.stage is AttemptStage.ENDED:
            return
        attempt.stage, attempt.ended_at_ms = AttemptStage.ENDED, now
        if why is not None and attempt.failure is None:
            attempt.failure = dict(why)
            if why["code"] != CANCELLED:  # which is no failure
                exceptions.record(self.session, self.job.id, number, now, why)
        self.session.flush()
        failed = checkpoints.fail_unfinished(
            self.session,
            self.job.id,
            number,
            at_ms=now,
            message=f"attempt {number} ended before the checkpoint was complete",
        )
        if failed:  # no driver reports them any more
            attempts.lock_unended(self.session, self.job.id)  # first, as a heartbeat locks its attempt before the day
            series.store(self.session, self.job.id, now, {"checkpoints_failed": failed})
        cause = failure("DRIVER_LOST", f"attempt {number} ended before the command was done")
        for operation in operations.pending(self.session, self.job.id, number):
            if operation.kind.is_snapshot:
                settle_command(self.session, operation, status=CommandStatus.FAILED, failed=cause)

    def settle(self, status: JobStatus, why: Mapping[str, Any] | None) -> None:
        """Ends the job, and everything of it that is still in progress."""
        job = self.job
        for stage in (AttemptStage.ACTIVE, AttemptStage.STANDBY):
            if (attempt := attempts.of_stage(self.session, job.id, stage)) is not None:
                self.end_attempt(attempt.number, why)
        for operation in operations.in_progress(self.session, job.id):
            self.end_reserved(operation)
            end_with_job(self.session, operation, why, job_status=status)
        job.desired = DesiredState.STOPPED
        job.failure = dict(why) if why is not None else None
        job.ended_at_ms = now_ms()
        enter(job, status)
        self.record(f"JOB_{status}", f"the job is {status.lower()}" + (f": {why['code']}" if why else ""))

    def running(self) -> Operation:
        """Returns the operation in progress that moves the job."""
        found = operations.running(self.session, self.job.id)
        if found is None:
            raise LookupError(self.job.id)
        return found

    def begin_phase(self, change: Operation, phase: ChangePhase, at_ms: int | None = None) -> None:
        """Ends the present phase of a change, and begins another one.

        It begins now, or at an earlier time that a driver has reported.
        """
        now = now_ms()
        if at_ms is not None and change.phases:
            now = min(now, max(at_ms, change.phases[-1]["started_at_ms"]))
        change.phases = [*ended(change.phases, now), {"phase": phase, "started_at_ms": now, "ended_at_ms": None}]
        change.phase = phase
        message = f"{described(change)}: {_BEGUN[phase]}"
        self.record(f"{change.kind}_PHASE", message, operation_id=change.id, phase=phase)

    def end(self, status: OperationStatus, why: Mapping[str, Any] | None = None) -> None:
        """Ends the operation in progress."""
        self.end_reserved(self.running())
        is_cancelled = status is OperationStatus.ROLLED_BACK and why is not None and why["code"] == CANCELLED
        end(self.session, self.running(), OperationStatus.CANCELLED if is_cancelled else status, why)

    def attempt(self, number: int) -> Attempt:
        """Returns the job's attempt of this number; it must exist."""
        found = attempts.find(self.session, self.job.id, number)
        if found is None:
            raise LookupError(number)
        return found

    def record(self, kind: str, message: str, **details: Any) -> None:
        """Adds an event to the audit trail."""
        events.record(self.session, job_id=self.job.id, at_ms=now_ms(), kind=kind, message=message, **details)
