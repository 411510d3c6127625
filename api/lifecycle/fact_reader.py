"""Reads the facts of a job from the database and the launcher."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from keyscale.clock import now_ms
from keyscale.db.repositories import attempts, operations, revisions
from keyscale.jobs.protocol.messages import FailureHistory
from keyscale.jobs.protocol.restart import delay_ms_max
from keyscale.jobs.protocol.specification import CheckpointSettings, RestartStrategy
from keyscale.vocabulary import STOPS, AttemptStage, ChangePhase, DriverState, OperationKind, RescaleMode, UpgradeMode

from ..job_spec import spec_of
from ..launching.processes import ProcessState
from .facts import AttemptFacts, ChangeFacts, CommandFacts, JobFacts, Timeouts
from .repeated_faults import REPETITIONS_MAX, EarlierRun
from .steps import Cause

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from keyscale.db.models import Attempt, Job, Operation, Revision
    from keyscale.db.repositories.job_signs import JobSign

    from ..launching.launcher import Launcher
    from .start_queue import StartQueue
    from .stopwatch import Stopwatch

_WARM_UPS_MAX = 5  # of the job's last changes

_OF_CHANGES = (Cause.RESCALE, Cause.RESTART, Cause.UPGRADE)
_STRATEGY: TypeAdapter[Any] = TypeAdapter(RestartStrategy)


class FactReader:
    """Reads a job's facts, in a transaction that locks the job.

    Args:
        launcher: Inspects the processes of attempts.
        stopwatch: Measures how long facts stay unchanged.
        timeouts: The limits that apply.
        starts: The turns of drivers to start; None: all drivers start at once.
    """

    def __init__(
        self, launcher: Launcher, stopwatch: Stopwatch, timeouts: Timeouts, starts: StartQueue | None = None
    ) -> None:
        self._launcher = launcher
        self._stopwatch = stopwatch
        self._timeouts = timeouts
        self._starts = starts

    def read(self, session: Session, job: Job) -> JobFacts:
        """Returns the current facts of a job."""
        running, revision = operations.running(session, job.id), revisions.current(session, job)
        active = attempts.of_stage(session, job.id, AttemptStage.ACTIVE)
        standby = attempts.of_stage(session, job.id, AttemptStage.STANDBY)
        now = now_ms()
        restart = restart_of(revision, active)
        longest_ms = self._timeouts.backoff_ms_max if restart is None else delay_ms_max(restart)
        facts = JobFacts(
            status=job.status,
            desired=job.desired,
            revision=job.revision,
            consecutive_failures=job.consecutive_failures,
            restarts=job.restarts,
            start_in_ms=start_in_ms(job.next_start_at_ms, now, longest_ms),
            restart=restart,
            failures=failures_of(job, active),
            now_ms=now,
            jitter=random.uniform(-1, 1),  # noqa: S311 - spreads the starts of jobs
            active=self._in_turn(session, active) if active else None,
            standby=self._in_turn(session, standby) if standby else None,
            earlier=_earlier(session, job, active) if active is not None and active.failure is not None else (),
            has_failure=job.failure is not None,
            ended=tuple(self.of_attempt(attempt) for attempt in attempts.unreaped(session, job.id)),
            stop=self._stop(session, running) if running is not None and running.kind in STOPS else None,
            is_starting=running is not None and running.kind is OperationKind.START,
        )
        if running is None or not running.kind.is_change:
            return facts
        is_live = running.rescale_mode is RescaleMode.LIVE
        reserved = attempts.all_of_stage(session, job.id, AttemptStage.RESERVED) if is_live else ()
        return replace(
            facts,
            change=self._change(session, running, waits_for_turn=facts.waits_for_turn),
            reserved=tuple(map(self.of_attempt, reserved)),
        )

    def silent_ms(self, sign: JobSign) -> int:
        """Returns how long a job's active driver has been silent.

        Called more often than `read`, so that each silence is measured from its begin.
        """
        if sign.attempt is None:
            return 0
        return self._silent_ms(sign.id, sign.attempt, sign.heartbeat_at_ms, sign.attached_at_ms)

    def of_attempt(self, attempt: Attempt) -> AttemptFacts:
        """Returns the facts of an attempt and its process."""
        key = (attempt.job_id, attempt.number)
        seen = self._launcher.inspect(attempt)
        running_ms = self._stopwatch.elapsed_ms((*key, "running"), attempt.running_at_ms)
        return AttemptFacts(
            number=attempt.number,
            process=seen.state,
            driver_state=_driver_state(attempt.driver_state),
            is_attached=attempt.attached_at_ms is not None,
            silent_ms=self._silent_ms(*key, attempt.heartbeat_at_ms, attempt.attached_at_ms),
            state_age_ms=self._stopwatch.elapsed_ms((*key, "stage"), (attempt.stage, attempt.launched_at_ms)),
            starting_ms=self._stopwatch.worked_ms((*key, "start"), attempt.launched_at_ms),
            attached_age_ms=self._stopwatch.elapsed_ms((*key, "attached"), attempt.attached_at_ms),
            restored_at_ms=attempt.restored_at_ms,
            first_commit_at_ms=attempt.first_commit_at_ms,
            has_run_input=_has_run_input(attempt),
            waits_for_input=bool((attempt.metrics or {}).get("waits_for_input")),
            run_failure=(attempt.metrics or {}).get("last_failure"),
            has_progressed=attempt.first_commit_at_ms is not None
            or (attempt.running_at_ms is not None and running_ms > self._timeouts.healthy_ms),
            failure=attempt.failure,
            exit_code=seen.exit_code,
            pids=seen.pids,
        )

    def _in_turn(self, session: Session, attempt: Attempt) -> AttemptFacts:
        """Returns the facts of an attempt, with its turn to start."""
        facts = self.of_attempt(attempt)
        if self._starts is None or facts.process is not ProcessState.UNLAUNCHED:
            return facts
        return replace(facts, turn=self._starts.ask(session, attempt))

    def _silent_ms(self, job_id: str, attempt: int, heartbeat_at_ms: int | None, attached_at_ms: int | None) -> int:
        return self._stopwatch.elapsed_ms((job_id, attempt, "heartbeat"), (heartbeat_at_ms, attached_at_ms))

    def _stop(self, session: Session, stop: Operation) -> CommandFacts | None:
        command = self._command(stop)
        return command and replace(command, tries=attempts.count_since(session, stop.job_id, stop.requested_at_ms))

    def _command(self, operation: Operation) -> CommandFacts | None:
        if operation.command_status is None:
            return None
        return CommandFacts(
            operation_id=operation.id,
            status=operation.command_status,
            attempt=operation.old_attempt or 0,
            drain=operation.kind is OperationKind.DRAIN,
            status_age_ms=self._stopwatch.elapsed_ms(("command", operation.id), operation.command_status),
            failure=operation.failure,
        )

    def _change(self, session: Session, change: Operation, *, waits_for_turn: bool) -> ChangeFacts:
        assert change.phase is not None  # noqa: S101 - a change begins with its first phase
        old_attempt, to_revision = change.old_attempt or 0, change.to_revision or 0
        old = attempts.find(session, change.job_id, old_attempt)
        revision = revisions.find(session, change.job_id, change.from_revision or 0)
        settings = spec_of(revision).checkpoints if revision else CheckpointSettings()
        is_warming = change.phase is ChangePhase.REQUESTED
        earlier_warm_ms = operations.last_warm_ups(session, change.job_id, _WARM_UPS_MAX) if is_warming else ()
        phase_age_ms = self._stopwatch.elapsed_ms(("change", change.id), (change.phase, waits_for_turn))
        return ChangeFacts(
            phase=change.phase,
            to_revision=to_revision,
            kind=change.kind,
            mode=change.upgrade_mode or UpgradeMode.SAVEPOINT,
            command=self._command(change),
            new_attempt=change.new_attempt,
            tries=attempts.count_after(session, change.job_id, old_attempt, _OF_CHANGES),
            phase_age_ms=0 if waits_for_turn else phase_age_ms,
            checkpoint_timeout_ms=settings.timeout_ms,
            batch_duration_ms=((old.metrics if old else None) or {}).get("batch_duration_ms", 0.0),
            is_cancelled=change.cancel_requested_at_ms is not None,
            earlier_warm_ms=tuple(earlier_warm_ms),
        )


def _earlier(session: Session, job: Job, active: Attempt) -> tuple[EarlierRun, ...]:
    ran = attempts.ran_before(
        session, job.id, active.number, since_ms=job.started_at_ms or 0, limit=REPETITIONS_MAX - 1
    )
    return tuple(EarlierRun(run.failure, has_committed=run.first_commit_at_ms is not None) for run in ran)


def start_in_ms(next_start_at_ms: int, now_ms: int, longest_ms: int) -> int:
    """Returns how long a job waits for its next start.

    A clock that was set back must not make the job wait longer than the longest pause.
    """
    wait_ms = next_start_at_ms - now_ms
    return wait_ms if 0 < wait_ms <= longest_ms else 0


def restart_of(revision: Revision, attempt: Attempt | None) -> RestartStrategy | None:
    """Returns the job's restart strategy.

    It is the revision's strategy, or else the script's strategy, as the driver reported.
    """
    own = spec_of(revision).restart
    reported = (attempt.metrics or {}).get("restart") if attempt is not None else None
    return own or (_STRATEGY.validate_python(reported) if reported else None)


def failures_of(job: Job, attempt: Attempt | None) -> FailureHistory:
    """Returns the job's failures: the longer of two histories.

    The driver, which also restarts the job, has one history; the control plane has the other history.
    """
    known = [job.failures, (attempt.metrics or {}).get("failures") if attempt is not None else None]
    histories = [FailureHistory.model_validate(history) for history in known if history]
    return max(histories, key=lambda history: history.count, default=FailureHistory())


def _has_run_input(attempt: Attempt) -> bool:
    input_batches = (attempt.metrics or {}).get("input_batches")
    return attempt.first_commit_at_ms is not None and input_batches != 0  # older drivers do not report it


def _driver_state(text: str | None) -> DriverState | None:
    return DriverState(text) if text is not None else None
