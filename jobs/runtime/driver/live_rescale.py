"""Rescales a job without a stop.

The running driver opens the next attempt.

    PREPARE   the stores of the new subtasks are built beside the batches
    SWITCH    between two batches the next attempt is opened in the commit log
    VERIFY    the next execution runs the first batch at the new parallelism

Until the next attempt is opened, any failure leaves the job as it is. The commit log alone says which attempt runs.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.failpoints import failpoint
from keyscale.units import duration_text
from keyscale.vocabulary import RescalePhase

from ...protocol.messages import LiveRescale as Progress
from ...protocol.specification import differences
from ..errors import CheckpointNotBegunError, RescaleNotLiveError, RescaleTimeoutError, RescaleWithdrawnError
from .run_outcome import HANDED_OVER, RunOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...protocol.messages import Command, ReservedAttempt
    from ..batch.committed_state import CommittedState
    from .batch_loop import BatchLoop
    from .checkpoints import Checkpoints
    from .execution import Execution, RunContext

logger = logging.getLogger(__name__)

LIMIT_MS = 120_000
_ROUNDS_MAX = 5
_BATCHES_BEHIND_MAX = 1
_CHANGELOGS_MAX = 20  # with more, a checkpoint is sooner linked than the changelogs are replayed


class LiveRescale:
    """Carries out one command to rescale, on the thread that takes checkpoints.

    Args:
        running: The execution of the running attempt.
        loop: Its batches.
        checkpoints: Its checkpoints.
        command: The command.
    """

    def __init__(self, running: Execution, loop: BatchLoop, checkpoints: Checkpoints, command: Command) -> None:
        self._running = running
        self._context = running.context
        self._loop = loop
        self._checkpoints = checkpoints
        self._command = command
        # No checkpoint is taken meanwhile: the preparation may delay the next one as long as a slow one may.
        limit_ms = LIMIT_MS if command.limit_ms is None else command.limit_ms
        self._limit_ms = min(limit_ms, checkpoints.context.timeout_ms)
        self._deadline = time.monotonic() + self._limit_ms / 1000

    def run(self) -> None:
        """Prepares the next attempt and opens it.

        Afterwards the running execution ends, and the next one continues.

        Raises:
            RescaleNotLiveError: This driver cannot do it.
            RescaleTimeoutError: The new subtasks were not ready in time.
            RescaleWithdrawnError: The control plane has withdrawn the command.
            KeyscaleError: The preparation failed. The job runs as before.
        """
        following = next_context(self._context, self._command)
        self._check()
        present = self._context.assignment
        self._context.status.rescales(
            Progress(
                command_id=self._command.id,
                phase=RescalePhase.PREPARE,
                from_attempt=present.attempt,
                to_attempt=following.assignment.attempt,
                began_at_ms=now_ms(),
            )
        )
        self._context.reporter.nudge()
        logger.info("attempt %d is prepared, at parallelism %d", *_numbers(following))
        following_execution = self._running.following(following)
        try:
            with self._cancelled_in_time():
                self._prepare(following_execution)
            self._context.status.rescale_reaches(RescalePhase.PREPARE, prepared_at_ms=now_ms())
            self._switch(following_execution)
        except BaseException:
            following_execution.release()
            raise

    def _prepare(self, following: Execution) -> None:
        """Builds the new stores, and brings them close to the batches."""
        if self._loop.committed.changelogs_max > _CHANGELOGS_MAX:
            self._checkpoints.take()
        with self._between_batches(self._deadline):  # a later rebase would lead past the prepared stores
            pass
        for _ in range(_ROUNDS_MAX):
            committed = self._loop.committed
            following.prepare(committed)
            failpoint("rescale.prepared")
            self._check()
            if self._loop.committed.batch_id - committed.batch_id <= _BATCHES_BEHIND_MAX:
                break
        following.rehearse()

    def _switch(self, following: Execution) -> None:
        with self._between_batches(max(self._deadline, time.monotonic() + 1)) as committed:
            held_since = time.monotonic()
            self._context.status.rescale_reaches(RescalePhase.SWITCH)
            failpoint("rescale.held")
            self._check()
            try:
                following.take_over(committed, self._checkpoints.base, held_since)
            except Exception as failure:
                if self._running.is_followed:
                    self._loop.refuse()
                    self._context.outcome_box.give(RunOutcome.by(failure))
                raise
            self._context.status.rescale_reaches(RescalePhase.SWITCH, switched_at_ms=now_ms())
            failpoint("rescale.opened")
            self._loop.refuse()
            self._running.successor = following
            self._context.outcome_box.give(HANDED_OVER)

    @contextmanager
    def _between_batches(self, deadline: float) -> Iterator[CommittedState]:
        """Holds the batches, or raises if one runs until the deadline."""
        try:
            with self._loop.paused(deadline) as committed:
                yield committed
        except CheckpointNotBegunError as running:
            raise RescaleTimeoutError(f"no batch ended in {duration_text(self._limit_ms)}") from running

    def _check(self) -> None:
        """Raises unless the rescale shall go on."""
        if self._command.id in self._context.withdrawn:
            raise RescaleWithdrawnError("the rescale was withdrawn before the job switched")
        if time.monotonic() > self._deadline:
            raise RescaleTimeoutError(f"the new subtasks were not ready in {duration_text(self._limit_ms)}")

    @contextmanager
    def _cancelled_in_time(self) -> Iterator[None]:
        """Cancels the Spark jobs of the preparation at the deadline."""
        spark_context, tag = self._context.spark.sparkContext, f"rescale-{self._context.assignment.attempt}"

        def cancel() -> None:
            with suppress(Exception):  # Spark may be gone, and its jobs with it
                spark_context.cancelJobsWithTag(tag)

        timer = threading.Timer(min(max(0.0, self._deadline - time.monotonic()), threading.TIMEOUT_MAX), cancel)
        timer.daemon = True
        timer.start()
        spark_context.addJobTag(tag)
        try:
            yield
        except Exception as failure:
            try:
                self._check()
            except (RescaleTimeoutError, RescaleWithdrawnError) as cancelled:
                raise cancelled from failure
            raise
        finally:
            timer.cancel()
            spark_context.removeJobTag(tag)


def carry_out(running: Execution, loop: BatchLoop, checkpoints: Checkpoints, command: Command) -> None:
    """Carries out one command; see `LiveRescale`."""
    LiveRescale(running, loop, checkpoints, command).run()


def next_context(context: RunContext, command: Command) -> RunContext:
    """Returns the context of the attempt that a command names.

    Raises:
        RescaleNotLiveError: The attempt does not follow, or differs in more than the parallelism.
    """
    given = command.next_attempt
    if given is None:
        raise RescaleNotLiveError("the command names no attempt")
    present, following = context.assignment, given.assignment
    if (following.job_id, following.store_url) != (present.job_id, present.store_url):
        raise RescaleNotLiveError("the command is for another job")
    if following.attempt <= present.attempt:
        raise RescaleNotLiveError(f"attempt {following.attempt} does not follow attempt {present.attempt}")
    others = [each.path for each in differences(present.spec, following.spec) if each.needs_restart]
    if changed := sorted(set(others) - {"parallelism_limit"}):
        raise RescaleNotLiveError(f"the rescale changes other settings, too: {', '.join(changed)}")
    slots = context.status.slots
    if slots is None or following.spec.parallelism > slots:
        raise RescaleNotLiveError(
            f"Spark runs {slots or 'an unknown number of'} subtasks at once, and the job is to have"
            f" {following.spec.parallelism}"
        )
    return _context_of(context, given, command)


def return_context(failed: Execution) -> RunContext | None:
    """Returns the context of the attempt to go back to, if any."""
    context = failed.context
    command = context.rescaled_by
    if not failed.is_unverified or command is None or command.return_attempt is None:
        return None
    given = command.return_attempt.assignment
    unused = given.model_copy(update={"next_checkpoint_id": max(given.next_checkpoint_id, failed.next_checkpoint_id)})
    return _context_of(context, command.return_attempt.model_copy(update={"assignment": unused}), command)


def _context_of(context: RunContext, given: ReservedAttempt, command: Command) -> RunContext:
    return replace(context, assignment=given.assignment, token=given.token, rescaled_by=command)


def _numbers(context: RunContext) -> tuple[int, int]:
    return context.assignment.attempt, context.assignment.spec.parallelism
