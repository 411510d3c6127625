"""The thread that takes checkpoints when they are due and carries out the control plane's commands, one after another."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING

from jobs.runtime.ending import Ending
from jobs.runtime.errors import CheckpointsFailingError, RunEndedError
from jobs.runtime.failures import typed_failure
from jobs.runtime.pace import CheckpointPace
from jobs.wire import CommandKind, CommandResult, DriverState, Failure
from state.errors import KeyscaleError
from state.log import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobs.runtime.checkpoints import Checkpoints, CompletedSnapshot
    from jobs.runtime.ending import EndingBox
    from jobs.runtime.query import BatchLoop
    from jobs.runtime.status import DriverStatus
    from jobs.wire import CheckpointSettings, Command

_log = logging.getLogger(__name__)

_FENCE_CHECK_SECONDS = 5.0


class Coordinator:
    """Decides what happens between the batches. Its thread is the only one that takes checkpoints.

    Args:
        checkpoints: Takes them.
        loop: The batches.
        settings: How often.
        status: Is told of results and states.
        endings: Where a command that ends the run ends it.
        commands: Where commands arrive; None ends the thread.
        drain: Returns when all input that there is has been processed and committed.
        collect: Called after each completed checkpoint; may remove what no retained one needs.
        nudge: Has the control plane told at once of what has changed.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        loop: BatchLoop,
        settings: CheckpointSettings,
        status: DriverStatus,
        endings: EndingBox,
        *,
        commands: queue.SimpleQueue[Command | None],
        drain: Callable[[], None],
        collect: Callable[[], None],
        nudge: Callable[[], None],
    ) -> None:
        self._checkpoints = checkpoints
        self._loop = loop
        self._settings = settings
        self._status = status
        self._endings = endings
        self._drain = drain
        self._collect = collect
        self._nudge = nudge
        self._commands = commands
        self._pace = CheckpointPace(started_at=time.monotonic())
        self._fence_checked_at = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def start(self) -> None:
        self._pace = CheckpointPace(started_at=time.monotonic())
        self._thread.start()

    def close(self, timeout_seconds: float) -> None:
        """End the thread after what it is doing; what comes of that ends nobody's run any more."""
        self._closed.set()
        self._commands.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while self._endings.ending is None and not self._closed.is_set():
            now = time.monotonic()
            wait_seconds = min(self._pace.due_at(self._settings), self._fence_checked_at + _FENCE_CHECK_SECONDS) - now
            try:
                command = self._commands.get(timeout=max(0.0, wait_seconds))
            except queue.Empty:
                self._tick()
                continue
            if command is None:
                return
            self._carry_out(command)

    def _tick(self) -> None:
        now = time.monotonic()
        try:
            if now >= self._fence_checked_at + _FENCE_CHECK_SECONDS:
                self._fence_checked_at = now
                self._check_fence()
            if now >= self._pace.due_at(self._settings):
                self._take_periodic()
        except RunEndedError:
            return
        except Exception as failure:  # noqa: BLE001 - whatever it is ends the run, not just this thread
            if not self._closed.is_set():
                self._endings.give(Ending.by(failure))

    def _check_fence(self) -> None:
        try:
            overtaken = self._loop.is_overtaken()
        except KeyscaleError as error:
            _log.warning("whether a newer attempt runs cannot be seen: %s: %s", error.code, error)
            return
        if overtaken:
            raise FencedError("a newer attempt has taken over while this one was idle")

    def _take_periodic(self) -> None:
        self._pace = self._pace.triggered(time.monotonic())
        try:
            self._take()
        except RunEndedError:
            raise
        except Exception as failure:  # noqa: BLE001 - any failure of a checkpoint is counted, and tolerated for a while
            error = typed_failure(failure)
            _log.warning("a checkpoint failed: %s: %s", error.code, error, exc_info=True)
            self._pace = self._pace.failed(time.monotonic())
            if self._pace.has_failed_too_often(self._settings):
                message = f"{self._pace.consecutive_failures} checkpoints in a row failed; the last one: {error.code}: {error}"
                raise CheckpointsFailingError(message) from error
            return
        self._pace = self._pace.completed(time.monotonic())
        self._collect()

    def _carry_out(self, command: Command) -> None:
        try:
            result = self._result_of(command)
        except Exception as failure:  # noqa: BLE001 - the command has failed, whatever it was
            error = typed_failure(failure)
            _log.warning("command %s failed: %s: %s", command.kind, error.code, error, exc_info=True)
            if self._status.state is DriverState.STOPPING:
                self._status.enter(DriverState.RUNNING)
            result = CommandResult(
                command_id=command.id, status="FAILED", failure=Failure(code=error.code, message=str(error))
            )
        self._status.answer(result)
        if command.kind is CommandKind.STOP_WITH_SAVEPOINT and result.status == "COMPLETED":
            # Nothing can be committed any more: the next attempt need not wait until Spark has stopped.
            ending = Ending(DriverState.FINISHED if command.drain else DriverState.STOPPED)
            self._endings.give(ending)
            self._status.enter(ending.state)
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
            case CommandKind.CANCEL:
                message = "a cancellation does not wait for its turn here; JobRun carries it out"
                raise AssertionError(message)

    def _checkpoint(self) -> CompletedSnapshot:
        self._pace = self._pace.triggered(time.monotonic())
        try:
            return self._take()
        finally:
            # One that was asked for postpones the next periodic one; its failure is its caller's to judge.
            self._pace = self._pace.ended(time.monotonic())
            self._collect()

    def _take(self, savepoint_id: str | None = None) -> CompletedSnapshot:
        completed = self._checkpoints.take(savepoint_id)
        self._status.state_measured(completed.manifest.state_size_bytes)
        return completed

    def _savepoint(self, command: Command) -> CompletedSnapshot:
        savepoint_id = command.savepoint_id or command.id
        return self._checkpoints.find_savepoint(savepoint_id) or self._take(savepoint_id)

    def _stop_with_savepoint(self, command: Command) -> CompletedSnapshot:
        """The batches are held from the snapshot to the end, so that nothing is committed that is not in the savepoint."""
        self._status.enter(DriverState.STOPPING)
        if command.drain:
            self._drain()
        savepoint_id = command.savepoint_id or command.id
        found = self._checkpoints.find_savepoint(savepoint_id)
        if found is not None:
            # Taken before an earlier attempt of the job died: what was committed since is in the log.
            self._loop.halt()
            return found
        return self._checkpoints.take(savepoint_id, then=lambda _completed: self._loop.refuse())
