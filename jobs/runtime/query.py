"""The streaming query: each batch is planned in the log, run, committed to the log, and only then made visible."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from jobs.runtime.batch_metrics import operator_metrics
from jobs.runtime.clock import now_ms
from jobs.runtime.errors import BatchOrderError, CheckpointTimeoutError, RunEndedError
from jobs.runtime.placement import Placement
from jobs.runtime.positions import PositionsDirectory, check_planned, merged
from jobs.runtime.watermarks import time_after
from jobs.wire import Commit
from state.identifiers import BatchId
from state.log import BatchCommitted, BatchPlanned
from state.syncpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from jobs.runtime.attempt import OpenAttempt
    from jobs.runtime.batch import BatchOutcome, BatchRunner
    from jobs.runtime.committed import CommittedState
    from jobs.runtime.status import DriverStatus
    from state.manifest import Manifest

_log = logging.getLogger(__name__)


class BatchLoop:
    """Runs Spark's micro-batches through the job, exactly once each, until it is halted.

    Between two batches the loop can be paused: whoever holds the pause sees a committed state that does not change.

    Args:
        frame: The job's streaming input.
        runner: Runs one batch up to its commit.
        opened: The attempt.
        committed: What is committed as the attempt begins.
        directory: For Spark's checkpoint directory; must not exist.
        positions: What Spark starts from, if it is not what was recorded as it is.
        status: Is told of every commit.
        on_failure: Called once, on the thread of the batch that failed, with what it raised.
    """

    def __init__(
        self,
        frame: DataFrame,
        runner: BatchRunner,
        opened: OpenAttempt,
        committed: CommittedState,
        *,
        directory: Path,
        status: DriverStatus,
        on_failure: Callable[[BaseException], None],
        positions: Mapping[str, str] | None = None,
    ) -> None:
        self._frame = frame
        self._runner = runner
        self._journal = opened.journal
        self._attempt = opened.attempt
        self._committed = committed
        self._directory = PositionsDirectory(directory)
        self._status = status
        self._on_failure = on_failure
        self._placement = Placement()
        self._lock = threading.Lock()
        self._halted = False
        self._had_input_at = time.monotonic()
        self._positions = dict(opened.positions if positions is None else positions)
        self._unplanned = {
            name: content for name, content in self._positions.items() if opened.positions.get(name) != content
        }
        self._replanned = opened.resume.planned.batch_id if opened.resume.planned else None
        # A checkpoint before the batch that an earlier attempt has planned is committed would forget its plan.
        self._settled = threading.Event()
        if self._replanned is None:
            self._settled.set()

    def start(self) -> StreamingQuery:
        """Start the query on a fresh checkpoint directory. Batches run on threads of their own from now on."""
        self._directory.write(self._positions)
        writer = self._frame.writeStream.foreachBatch(self._run_batch)
        return writer.option("checkpointLocation", self._directory.location).start()

    def refuse(self) -> None:
        """Let no further batch begin. May be called during a pause."""
        self._halted = True
        self._settled.set()

    def halt(self) -> None:
        """Let no further batch begin, and wait for the end of one that runs: nothing is committed after this."""
        self.refuse()
        with self._lock:
            pass

    @contextmanager
    def paused(self, deadline: float) -> Iterator[CommittedState]:
        """Hold the loop between two batches.

        Args:
            deadline: When to give up, by `time.monotonic`.

        Raises:
            CheckpointTimeoutError: A batch was still running at the deadline.
            RunEndedError: The loop has been halted.
        """
        settled = self._settled.wait(_left(deadline))
        if not settled or not self._lock.acquire(timeout=_left(deadline)):
            message = "no batch ended in time"
            raise CheckpointTimeoutError(message)
        try:
            if self._halted:
                message = "the run has ended"
                raise RunEndedError(message)
            yield self._committed
        finally:
            self._lock.release()

    def rebase(self, manifest: Manifest) -> None:
        """Let later restores of subtasks start from a checkpoint that this attempt has completed."""
        with self._lock:
            self._committed = self._committed.rebased(manifest)

    def is_overtaken(self) -> bool:
        """Whether a newer attempt has begun; False while a batch runs, which would find out by itself."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._journal.is_overtaken()
        finally:
            self._lock.release()

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        with self._lock:
            if self._halted:
                message = "the run has ended"
                raise RunEndedError(message)
            try:
                self._process_input(frame, batch_id)
            except BaseException as error:
                self.refuse()
                self._on_failure(error)
                raise
            self._settled.set()

    def fire_timers(self, idle_seconds: float = 0.0, *, wait: bool = False) -> bool:
        """Run a batch without input if timers are due and the loop is idle; whether it did.

        The batch is numbered and committed as any other one; Spark's own numbers lag behind from then on. It plans nothing, so
        one that fails leaves no trace. A batch that Spark has planned in the log has to come first.

        Args:
            idle_seconds: For how long no batch with input must have been committed.
            wait: Wait for the end of a batch that runs, instead of doing nothing.
        """
        if not self._settled.is_set() or not self._lock.acquire(blocking=wait):
            return False
        try:
            committed = self._committed
            if self._halted or not self._is_idle(idle_seconds) or committed.batch_id < 0:
                return False
            if not self._runner.is_due(committed.time, committed.timers):
                return False
            try:
                self._process(None, BatchId(committed.batch_id + 1))
            except BaseException as error:
                self.refuse()
                self._on_failure(error)
                raise
            return True
        finally:
            self._lock.release()

    def rehearse_timers(self, idle_seconds: float) -> bool:
        """Have the first batch of time alone be no slower than those after it; whether that was done, as the loop was idle.

        Batches go on beside it.
        """
        if self._committed.batch_id < 0 or not self._is_idle(idle_seconds):
            return False
        self._runner.rehearse()
        return True

    def _is_idle(self, seconds: float) -> bool:
        return time.monotonic() - self._had_input_at >= seconds

    def _process_input(self, frame: DataFrame, spark_batch_id: int) -> None:
        if spark_batch_id != self._committed.spark_batch_id + 1:
            message = f"Spark's batch {spark_batch_id} came after its batch {self._committed.spark_batch_id}"
            raise BatchOrderError(message)
        reach("batch.received")
        batch_id = BatchId(self._committed.batch_id + 1)
        self._plan(batch_id, spark_batch_id)
        reach("batch.planned")
        self._process(frame, batch_id)

    def _process(self, frame: DataFrame | None, batch_id: BatchId) -> None:
        began = time.perf_counter()
        committed = self._committed
        outcome = self._runner.run(frame, batch_id, committed.starts, time=committed.time, timers=committed.timers)
        reach("batch.ran")
        commit = self._commit(batch_id, outcome, of_spark=frame is not None)
        reach("batch.committed")
        duration_ms = (time.perf_counter() - began) * 1000
        for move in self._placement.saw(chain.from_iterable(outcome.reports.values())):
            _log.info("batch %d: %s", batch_id, move)
        self._status.placed(self._placement)
        self._status.committed(
            commit,
            input_records=outcome.input_records,
            output_records=outcome.output_records,
            duration_ms=duration_ms,
            operators=operator_metrics(outcome.reports, self._committed.time, commit.at_ms),
        )
        if self._status.commits == 1:
            _log.info("first commit: batch %d after %.0f ms", batch_id, duration_ms)
        self._runner.publish(outcome.sinks)
        reach("batch.published")

    def _plan(self, batch_id: BatchId, spark_batch_id: int) -> None:
        new = {**self._unplanned, **self._directory.read_new()}
        positions = merged(self._positions, new, spark_batch_id)
        check_planned(positions, spark_batch_id)
        if batch_id == self._replanned:
            # It is run again with its own positions, which are in the log already; what else is new goes with the next plan.
            self._unplanned = new
        else:
            self._journal.append(BatchPlanned(self._attempt, batch_id, new))
            self._unplanned = {}
        self._positions = positions

    def _commit(self, batch_id: BatchId, outcome: BatchOutcome, *, of_spark: bool) -> Commit:
        committed_at_ms = now_ms()
        latest = {
            uid: max((each.latest_event_ms for each in reports if each.latest_event_ms is not None), default=None)
            for uid, reports in outcome.reports.items()
        }
        time_then = time_after(
            self._committed.time, outcome.times, latest, of_spark=of_spark, of_origins=outcome.latest_of_origins()
        )
        self._journal.append(
            BatchCommitted(
                attempt=self._attempt,
                batch_id=batch_id,
                operators={uid: list(changelogs) for uid, changelogs in outcome.changelogs.items()},
                sinks={str(uid): token for uid, token in outcome.sinks.items()},
                committed_at_ms=committed_at_ms,
                input_records=outcome.input_records,
                output_records=outcome.output_records,
                time=time_then,
            )
        )
        if of_spark:
            self._had_input_at = time.monotonic()
        self._committed = self._committed.after(
            batch_id, outcome, self._positions, self._journal.last_position, time_then
        )
        return Commit(batch_id=batch_id, at_ms=committed_at_ms)


def _left(deadline: float) -> float:
    return min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
