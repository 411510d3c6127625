"""The thread that takes due checkpoints and executes commands in order."""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from keyscale.errors import KeyscaleError
from keyscale.log_lines import log_fields
from keyscale.state.doors.commits import FencedError
from keyscale.units import counted
from keyscale.vocabulary import CommandKind, DriverState

from ...operators.failures import typed_failure
from ...protocol.messages import CommandResult
from ..errors import CheckpointNotBegunError, CheckpointsFailingError, RunEndedError
from .run_outcome import ASLEEP, RunOutcome, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...protocol.messages import Command
    from ...protocol.specification import CheckpointSettings
    from ..control.driver_status import DriverStatus
    from .batch_loop import BatchLoop
    from .checkpoints import Checkpoints, CompletedSnapshot
    from .run_outcome import RunOutcomeBox

logger = logging.getLogger(__name__)

_FENCE_CHECK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CheckpointSchedule:
    """When the next periodic checkpoint is due.

    Times are seconds of one monotonic clock.

    Attributes:
        started_at: When the last checkpoint was triggered; at first, when the job started to run.
        ended_at: When the last checkpoint ended, whatever its outcome; None before the first.
        consecutive_failures: Number of failures since the last completed checkpoint.
    """

    started_at: float
    ended_at: float | None = None
    consecutive_failures: int = 0

    def due_at(self, settings: CheckpointSettings) -> float:
        """Returns when to trigger the next checkpoint.

        It is an interval after the last start and at least a pause after the last end.
        """
        by_interval = self.started_at + settings.interval_ms / 1000
        if self.ended_at is None:
            return by_interval
        return max(by_interval, self.ended_at + settings.min_pause_ms / 1000)

    def triggered(self, now: float) -> CheckpointSchedule:
        return replace(self, started_at=now)

    def ended(self, now: float) -> CheckpointSchedule:
        return replace(self, ended_at=now)

    def completed(self, now: float) -> CheckpointSchedule:
        return replace(self, ended_at=now, consecutive_failures=0)

    def failed(self, now: float) -> CheckpointSchedule:
        return replace(self, ended_at=now, consecutive_failures=self.consecutive_failures + 1)

    def has_failed_too_often(self, settings: CheckpointSettings) -> bool:
        return self.consecutive_failures > settings.tolerable_failed_checkpoints


class Coordinator:
    """Coordinates checkpoints and commands.

    Only its thread takes checkpoints.

    Args:
        checkpoints: Takes the checkpoints.
        loop: The loop of the batches.
        settings: Returns the job's checkpoint settings, which may change.
        status: Takes results and states.
        outcome_box: Takes the outcome of a command that ends the run.
        commands: The queue of commands; None ends the thread.
        drain: Returns when the present input has been processed, all event-time timers have fired, and both are
            committed.
        read_on: Continues reading after a drain.
        run_retention: Called after each completed checkpoint, and periodically; may delete objects that no retained
            checkpoint needs.
        nudge: Sends the status to the control plane at once.
        follow_settings: Called periodically, between checkpoints, to apply changed settings.
        rescale: Carries out a live rescale.
        sleeps: Returns whether the job shall sleep; asked between checkpoints.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        loop: BatchLoop,
        settings: Callable[[], CheckpointSettings],
        status: DriverStatus,
        outcome_box: RunOutcomeBox,
        *,
        commands: queue.SimpleQueue[Command | None],
        drain: Callable[[], None],
        read_on: Callable[[], None],
        run_retention: Callable[[], None],
        nudge: Callable[[], None],
        follow_settings: Callable[[], None] = lambda: None,
        rescale: Callable[[Command], None] = lambda _: None,
        sleeps: Callable[[], bool] = lambda: False,
    ) -> None:
        self._checkpoints = checkpoints
        self._loop = loop
        self._settings = settings
        self._status = status
        self._outcome_box = outcome_box
        self._drain = drain
        self._read_on = read_on
        self._run_retention = run_retention
        self._nudge = nudge
        self._follow_settings = follow_settings
        self._rescale = rescale
        self._sleeps = sleeps
        self._commands = commands
        self._schedule = CheckpointSchedule(started_at=time.monotonic())
        self._fence_checked_at = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def start(self) -> None:
        self._schedule = CheckpointSchedule(started_at=time.monotonic())
        self._thread.start()

    def close(self, timeout_seconds: float) -> None:
        """Ends the thread after its current step.

        The step's outcome no longer ends the run.
        """
        self._closed.set()
        self._commands.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while self._outcome_box.outcome is None and not self._closed.is_set():
            now = time.monotonic()
            wait_seconds = (
                min(self._schedule.due_at(self._settings()), self._fence_checked_at + _FENCE_CHECK_SECONDS) - now
            )
            try:
                command = self._commands.get(timeout=max(0.0, wait_seconds))
            except queue.Empty:
                self._tick()
                continue
            if command is None:
                return
            with log_fields(operation=command.id.rpartition(":")[2]):
                self._execute_command(command)

    def _tick(self) -> None:
        now = time.monotonic()
        try:
            if now >= self._fence_checked_at + _FENCE_CHECK_SECONDS:
                self._fence_checked_at = now
                self._check_fence()
                self._run_retention()  # a pass may have waited for the last checkpoint's report
            self._follow_settings()
            if self._sleeps() and self._fall_asleep():
                return
            if now >= self._schedule.due_at(self._settings()):
                self._take_periodic()
        except RunEndedError:
            return
        except Exception as failure:  # noqa: BLE001 - any failure ends the run, not just this thread
            if not self._closed.is_set():
                self._outcome_box.give(RunOutcome.by(failure))

    def _check_fence(self) -> None:
        try:
            overtaken = self._loop.is_overtaken()
        except KeyscaleError as error:
            logger.warning("cannot check for a newer attempt: %s: %s", error.code, error)
            return
        if overtaken:
            raise FencedError("a newer attempt has taken over while this attempt was idle")

    def _fall_asleep(self) -> bool:
        """Ends the run with a checkpoint; returns whether it has ended.

        Nothing is committed after the checkpoint.
        """
        try:
            self._checkpoints.take(then=lambda _completed: self._loop.refuse())
        except RunEndedError:
            raise
        except Exception as failure:  # noqa: BLE001 - the job stays awake without a checkpoint
            error = typed_failure(failure)
            logger.warning("the job does not sleep, as its checkpoint failed: %s: %s", error.code, error)
            return False
        self._outcome_box.give(ASLEEP)
        return True

    def _take_periodic(self) -> None:
        self._schedule = self._schedule.triggered(time.monotonic())
        try:
            self._checkpoints.take()
        except RunEndedError:
            raise
        except CheckpointNotBegunError as not_begun:
            logger.warning("no checkpoint was taken: %s: %s", not_begun.code, not_begun)
            self._schedule = self._schedule.ended(time.monotonic())
            return
        except Exception as failure:
            error = typed_failure(failure)
            logger.warning("a checkpoint failed: %s: %s", error.code, error, exc_info=True)
            self._schedule = self._schedule.failed(time.monotonic())
            if self._schedule.has_failed_too_often(self._settings()):
                failures = self._schedule.consecutive_failures
                raise CheckpointsFailingError(
                    f"{counted(failures, 'checkpoint')} failed in a row; the last failure: {error.code}: {error}"
                ) from error
            return
        self._schedule = self._schedule.completed(time.monotonic())
        self._run_retention()

    def _execute_command(self, command: Command) -> None:
        try:
            if command.kind is CommandKind.RESCALE:
                self._rescale(command)  # the next attempt answers
                return
            result = self._result_of(command)
        except Exception as failure:
            if self._outcome_box.outcome is not None and command.kind is CommandKind.RESCALE:
                return  # the run has ended; an answer would say that nothing was appended
            error = typed_failure(failure)
            logger.warning("command %s failed: %s: %s", command.kind, error.code, error, exc_info=True)
            if self._status.state is DriverState.STOPPING:
                self._status.enter(DriverState.RUNNING)
            result = CommandResult(command_id=command.id, status="FAILED", failure=failure_of(error))
        self._status.answer(result)
        if command.kind is CommandKind.STOP_WITH_SAVEPOINT and result.status == "COMPLETED":
            # Commits have ended, so the next attempt need not wait until Spark has stopped.
            outcome = RunOutcome(DriverState.FINISHED if command.drain else DriverState.STOPPED)
            self._outcome_box.give(outcome)
            self._status.enter(outcome.state)
        self._nudge()

    def _result_of(self, command: Command) -> CommandResult:
        completed = self._snapshot_of(command)
        return CommandResult(
            command_id=command.id,
            status="COMPLETED",
            location=completed.location,
            checkpoint_id=completed.manifest.checkpoint_id,
        )

    def _snapshot_of(self, command: Command) -> CompletedSnapshot:
        match command.kind:
            case CommandKind.CHECKPOINT:
                return self._checkpoint()
            case CommandKind.SAVEPOINT:
                return self._savepoint(command)
            case CommandKind.STOP_WITH_SAVEPOINT:
                return self._stop_with_savepoint(command)
            case CommandKind.CANCEL | CommandKind.RESCALE:
                raise AssertionError("a cancellation does not wait here, and a rescale takes no snapshot")

    def _checkpoint(self) -> CompletedSnapshot:
        self._schedule = self._schedule.triggered(time.monotonic())
        try:
            return self._checkpoints.take()
        finally:
            # A requested checkpoint postpones the next periodic checkpoint. The requester handles its failure.
            self._schedule = self._schedule.ended(time.monotonic())
            self._run_retention()

    def _savepoint(self, command: Command) -> CompletedSnapshot:
        savepoint_id = command.savepoint_id or command.id
        return self._checkpoints.find_savepoint(savepoint_id) or self._checkpoints.take(savepoint_id)

    def _stop_with_savepoint(self, command: Command) -> CompletedSnapshot:
        """Pauses the batches from the snapshot to the end of the job.

        Nothing is committed after the savepoint.
        """
        self._status.enter(DriverState.STOPPING)
        if not command.drain:
            return self._stop_now(command)
        try:
            self._drain()
            return self._stop_now(command)
        except Exception:
            with suppress(RunEndedError):
                self._read_on()
            raise

    def _stop_now(self, command: Command) -> CompletedSnapshot:
        savepoint_id = command.savepoint_id or command.id
        found = self._checkpoints.find_savepoint(savepoint_id)
        if found is not None:
            # An earlier attempt has taken it and died; later commits are in the log.
            self._loop.halt()
            return found
        return self._checkpoints.take(savepoint_id, then=lambda _completed: self._loop.refuse())
