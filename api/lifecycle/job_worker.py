"""Takes the steps of one job until it must wait."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from keyscale import failpoints
from keyscale.clock import now_ms
from keyscale.db.connections import is_database_away
from keyscale.db.repositories import attempts, checkpoints, events, jobs, operations, revisions
from keyscale.log_lines import log_fields
from keyscale.vocabulary import AttemptStage, CommandStatus, RestoreMode

from ..errors import JobUserError, LeadershipLostError, PlanTimeoutError, StoreUnavailableError
from ..libraries.job_libraries import libraries_of
from . import steps
from .apply import apply
from .decision import DEFAULT_TIMEOUTS, next_step, waits_for_news
from .fact_reader import FactReader
from .job_transaction import JobTransaction
from .operation_results import settle_command
from .outcomes import failure
from .recorded_definition import record_of
from .restoring import restore_of_roll_back
from .start_queue import StartQueue
from .stopwatch import Stopwatch
from .store_grant import grant_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.orm import Session

    from keyscale.db.models import Attempt, Job
    from keyscale.db.repositories.job_signs import JobSign
    from keyscale.state.doors.catalogue import JobCounters

    from ..launching.launcher import Launcher
    from ..store_check import StoreCheck
    from .facts import JobFacts, Timeouts
    from .leadership import Leadership
    from .steps import Step

logger = logging.getLogger(__name__)

_OUTSIDE = (
    steps.CreateAttempt,
    steps.Launch,
    steps.Kill,
    steps.CheckSavepoint,
    steps.MarkReaped,
    steps.RollBack,
    steps.ReserveAttempts,
    steps.SendRescale,
)
_STEPS_MAX = 20  # so that no job keeps a thread to itself
_COUNTERS_LIMIT_MS = 3_000
"""The longest time to read a job's counters in its log."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits for news, or for its turn to start.

    Attributes:
        pids: The processes whose end is news; None if unknown.
    """

    pids: frozenset[int] | None = None


class JobWorker:
    """Takes one step of a job at a time.

    It may be killed between any two lines; then another replica continues.

    Two threads must not advance the same job at once.

    Args:
        leadership: The right to write.
        launcher: Starts, watches and kills drivers.
        store: Answers whether a savepoint exists, and what was committed after it.
        is_closing: Whether to stop after the present step.
        timeouts: The limits that decisions use.
        starts_at_once: How many drivers start on this host at once; None: without limit.
    """

    def __init__(
        self,
        *,
        leadership: Leadership,
        launcher: Launcher,
        store: StoreCheck,
        is_closing: Callable[[], bool] = lambda: False,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        starts_at_once: int | None = None,
    ) -> None:
        self._leadership = leadership
        self._launcher = launcher
        self._store = store
        self._is_closing = is_closing
        # A new leader measures every silence from now on: it hears a driver out before it replaces it.
        self._stopwatch = stopwatch = Stopwatch()
        self._starts = None if starts_at_once is None else StartQueue(launcher, starts_at_once, stopwatch, timeouts)
        self._reader = FactReader(launcher, stopwatch, timeouts, self._starts)
        self._timeouts = timeouts
        self._failed_starts: set[str] = set()  # jobs; a new leader finds out by itself

    def silent_ms(self, sign: JobSign) -> int:
        """Returns how long a job's active driver has been silent."""
        return self._reader.silent_ms(sign)

    def advance(self, job_id: str) -> Waiting | None:
        """Takes a job's steps until it must wait.

        Returns:
            The job's wait for news or for the turn of its start; None if a later look may find a step.

        Raises:
            LeadershipLostError: Another replica leads; nothing was written.
        """
        with log_fields(job=job_id):
            return self._take_steps(job_id)

    def _take_steps(self, job_id: str) -> Waiting | None:
        for _ in range(_STEPS_MAX):
            if self._is_closing():
                return None
            outside = self._take_database_step(job_id)
            if outside is None or isinstance(outside, Waiting):
                return outside
            if isinstance(outside, _Done):
                continue
            _reach(outside, "decided")
            self._leadership.require()
            goes_on = self._take_noted_step(job_id, outside)
            _reach(outside, "taken")
            if not goes_on:
                return None
        return None

    def _take_database_step(self, job_id: str) -> Step | _Done | Waiting | None:
        """Decides, and applies a step of the database.

        Returns a step with effects outside the database, to be taken later; None if the job must wait.
        """
        with self._leadership.transaction() as session:
            job = jobs.lock(session, job_id)
            if job is None:
                self._failed_starts.discard(job_id)
                return None
            facts = self._facts(session, job)
            step = next_step(facts, self._timeouts)
            if step is None:
                if facts.waits_for_turn:
                    return Waiting()
                return Waiting(facts.active.pids) if facts.active is not None and waits_for_news(facts) else None
            logger.info("job %s: %s", job_id, type(step).__name__)
            if isinstance(step, _OUTSIDE):
                return step
            apply(step, JobTransaction(session, job))
            _reach(step, "decided")
        if isinstance(step, steps.AnnounceWait) and self._starts is not None:
            self._starts.note_announced(job_id, step.attempt)
        _reach(step, "taken")
        return _DONE

    def _facts(self, session: Session, job: Job) -> JobFacts:
        return replace(self._reader.read(session, job), start_fails=job.id in self._failed_starts)

    def _take_noted_step(self, job_id: str, step: Step) -> bool:
        """Takes a step outside of the database, and notes failed starts.

        Returns whether the next step can be decided immediately.
        """
        is_start = isinstance(step, (steps.CreateAttempt, steps.Launch))
        try:
            goes_on = self._take_outside_step(job_id, step)
        except Exception as error:
            if is_start and not is_database_away(error) and not isinstance(error, LeadershipLostError):
                self._failed_starts.add(job_id)
            raise
        if is_start and goes_on:
            self._failed_starts.discard(job_id)
        return goes_on

    def _take_outside_step(self, job_id: str, step: Step) -> bool:
        """Takes a step outside of the database.

        Returns whether the next step can be decided immediately.
        """
        match step:
            case steps.Launch():
                return self._launch_in_turn(job_id, step)
            case steps.Kill():
                self._launcher.kill(job_id, self._run_of(job_id, step.attempt))
                return False
            case steps.MarkReaped():
                return self._mark_reaped(job_id, step)
            case steps.CreateAttempt():
                return self._create_attempt(job_id, step)
            case _:
                return self._take_step_of_change(job_id, step)

    def _take_step_of_change(self, job_id: str, step: Step) -> bool:
        match step:
            case steps.CheckSavepoint():
                return self._check_savepoint(job_id, step)
            case steps.RollBack():
                return self._roll_back(job_id, step)
            case steps.ReserveAttempts():
                return self._reserve(job_id, step)
            case steps.SendRescale():
                return self._send_rescale(job_id, step)
            case _:
                raise TypeError(type(step).__name__)

    def _mark_reaped(self, job_id: str, step: steps.MarkReaped) -> bool:
        """Cleans up after an attempt, and notes what its driver committed last.

        The driver is gone: it may have committed batches after its last report, and reports none of them.
        """
        self._launcher.clean_up(job_id, self._run_of(job_id, step.attempt))
        with self._leadership.transaction() as session:
            job, newest = jobs.lock(session, job_id), attempts.newest_counted(session, job_id)
        counters = None
        if job is not None and newest is not None and newest.number == step.attempt:
            counters = self._counters(job)
        with self._leadership.transaction() as session:
            if (job := jobs.lock(session, job_id)) is not None:
                apply(replace(step, counters=counters), JobTransaction(session, job))
        return True

    def _counters(self, job: Job) -> JobCounters | None:
        """Returns a job's counters in its commit log; None if unknown.

        The next driver reports them in any case, so no step waits for the store.
        """
        try:
            return self._store.counters(job.store_url, job.id, limit_ms=_COUNTERS_LIMIT_MS)
        except (StoreUnavailableError, PlanTimeoutError) as error:
            logger.warning("job %s: the store does not answer what the job has counted: %s", job.id, error.detail)
            return None

    def _create_attempt(self, job_id: str, step: steps.CreateAttempt) -> bool:
        """Creates an attempt with a number above all attempts in the log.

        A database from a backup may not know all attempts, nor the last commits of the attempt before.
        """
        with self._leadership.transaction() as session:
            job = jobs.lock(session, job_id)
        if job is None:
            return False
        after, counters = 0, None
        try:
            after = self._store.newest_attempt(job.store_url, job_id)
        except StoreUnavailableError as error:
            logger.warning("job %s: the store does not answer which attempts it knows: %s", job_id, error.detail)
        else:
            counters = None if step.standby else self._counters(job)
        self._apply_if_still(job_id, step, replace(step, after=after, counters=counters))
        return True

    def _run_of(self, job_id: str, number: int) -> int:
        """Returns the run that has an attempt's processes."""
        with self._leadership.transaction() as session:
            attempt = attempts.find(session, job_id, number)
            return number if attempt is None else attempt.run_number

    def _reserve(self, job_id: str, step: steps.ReserveAttempts) -> bool:
        """Reserves attempts with numbers above all attempts in the log."""
        with self._leadership.transaction() as session:
            job = jobs.lock(session, job_id)
        if job is None:
            return False
        decided: Step = step
        try:
            decided = replace(step, after=self._store.newest_attempt(job.store_url, job_id))
        except StoreUnavailableError as error:
            decided = steps.FallBack(failure(error.code, error.detail))
        self._apply_if_still(job_id, step, decided)
        return True

    def _send_rescale(self, job_id: str, step: steps.SendRescale) -> bool:
        """Stores the records of both attempts, and commands a live rescale."""
        with self._leadership.transaction() as session:
            job = jobs.lock(session, job_id)
            if job is None:
                return False
            reserved = attempts.all_of_stage(session, job_id, AttemptStage.RESERVED)
            records = [record_of(session, job, revisions.of_attempt(session, attempt), attempt) for attempt in reserved]
        decided: Step = step
        try:
            for record in records:
                self._launcher.keep_record(job, record)
        except (StoreUnavailableError, JobUserError) as error:
            decided = steps.FallBack(failure(error.code, error.detail))
        self._apply_if_still(job_id, step, decided)
        return True

    def _apply_if_still(self, job_id: str, step: Step, decided: Step) -> None:
        """Applies a step in its decided form, if it is still due."""
        with self._leadership.transaction() as session:
            job = jobs.lock(session, job_id)
            if job is not None and next_step(self._facts(session, job), self._timeouts) == step:
                apply(decided, JobTransaction(session, job))

    def _launch_in_turn(self, job_id: str, step: steps.Launch) -> bool:
        if self._starts is None:
            return self._launch(job_id, step)
        with self._starts.turn(job_id, step.attempt) as has_turn:
            return has_turn and self._launch(job_id, step)

    def _launch(self, job_id: str, step: steps.Launch) -> bool:
        launcher = self._launcher
        token_sha256 = launcher.prepare(job_id, step.attempt)
        with self._leadership.transaction() as session:
            job = jobs.lock(session, job_id)
            attempt = attempts.find(session, job_id, step.attempt) if job else None
            if job is None or attempt is None:
                return False
            attempt.token_sha256, attempt.launched_on = token_sha256, launcher.place
            attempt.launched_at_ms = now_ms()
            revision = revisions.of_attempt(session, attempt)
            brought = libraries_of(session, revision.libraries)
            granted = grant_of(job, attempts.restored_from(session, job_id))
            record = record_of(session, job, revision, attempt)
            fields = _log_fields(session, attempt)
        _reach(step, "recorded")
        launcher.launch(job, revision, attempt, brought, granted, record, fields)
        return True

    def _check_savepoint(self, job_id: str, step: steps.CheckSavepoint) -> bool:
        with self._leadership.transaction() as session:
            job, operation = jobs.lock(session, job_id), operations.find(session, step.operation_id)
        if job is None or operation is None:
            return False
        missing: Step = step.missing
        try:
            found = self._store.find_savepoint(job.store_url, job_id, operation.id)
        except StoreUnavailableError as error:
            logger.warning("job %s: the store does not answer whether the savepoint exists: %s", job_id, error.detail)
            self._note_wait(job_id, error)
            refused_ms = self._stopwatch.elapsed_ms(("savepoint", operation.id), operation.old_attempt)
            if refused_ms <= self._timeouts.store_ms:
                return False
            found, missing = None, step.unanswered or step.missing
        with self._leadership.transaction() as session:
            job, operation = jobs.lock(session, job_id), operations.find(session, step.operation_id, lock=True)
            if job is None or operation is None or operation.command_status is not CommandStatus.IN_PROGRESS:
                return True
            if found is None:
                apply(missing, JobTransaction(session, job))
            else:
                checkpoints.store_published(session, operation, **asdict(found))
                settle_command(
                    session,
                    operation,
                    status=CommandStatus.COMPLETED,
                    location=found.location,
                    checkpoint_id=found.checkpoint_id,
                )
        return True

    def _note_wait(self, job_id: str, error: StoreUnavailableError) -> None:
        """Notes in the job's change that it waits for the store."""
        with self._leadership.transaction() as session:
            job = jobs.lock(session, job_id)
            if job is not None and operations.running(session, job_id) is not None:
                apply(steps.NoteWait(failure(error.code, error.detail)), JobTransaction(session, job))

    def _roll_back(self, job_id: str, step: steps.RollBack) -> bool:
        """Rolls a change back, unless its new revision has committed a batch.

        The new revision may have died before it could report the commit.

        Going back to the savepoint would disown that batch, and a sink that cannot delete output would have it twice.
        """
        with self._leadership.transaction() as session:
            job = jobs.lock(session, job_id)
            change = operations.running(session, job_id) if job is not None else None
        if job is None or change is None:
            return True
        committed_at_ms = None
        if change.location is not None and restore_of_roll_back(change).mode is RestoreMode.REWIND:
            try:
                committed_at_ms = self._store.first_commit_after(
                    job.store_url, job_id, change.location, attempt=change.old_attempt or 0
                )
            except StoreUnavailableError as error:
                logger.warning(
                    "job %s: the store does not answer which batches are committed: %s", job_id, error.detail
                )
                self._note_wait(job_id, error)
                return False
        with self._leadership.transaction() as session:
            job = jobs.lock(session, job_id)
            if job is None or operations.running(session, job_id) is None:
                return True
            apply(
                step if committed_at_ms is None else steps.CompleteChange(False, committed_at_ms),
                JobTransaction(session, job),
            )
        return True


def _log_fields(session: Session, attempt: Attempt) -> dict[str, object]:
    """Returns the fields of the log lines of an attempt's driver.

    They name the operation that has started the attempt, and its request.
    """
    operation = operations.running(session, attempt.job_id)
    known = {
        "job": attempt.job_id,
        "attempt": attempt.number,
        "operation": None if operation is None else operation.id,
        "request_id": None if operation is None else events.request_of(session, attempt.job_id, operation.id),
    }
    return {name: value for name, value in known.items() if value is not None}


class _Done:
    """A step was taken, and is in the database."""


_DONE = _Done()


def _reach(step: Step, moment: str) -> None:
    """Marks a moment of a step for fault tests.

    Fault tests kill or stop the control plane there.

    It is named `<step>.<moment>`, and `AdvanceChange.<phase>.<moment>` for the step that several phases begin with.
    """
    phase = f".{step.phase}" if isinstance(step, steps.AdvanceChange) else ""
    failpoints.failpoint(f"{type(step).__name__}{phase}.{moment}")
