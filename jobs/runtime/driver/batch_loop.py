"""The loop of a job's batches.

Each batch is planned in the log, run, committed to the log, and only then published.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyscale.clock import now_ms
from keyscale.failpoints import failpoint
from keyscale.identifiers import BatchId
from keyscale.state.doors.commits import BatchCommitted, BatchPlanned, FencedError

from ...protocol.messages import BatchMetrics, Commit
from ...spark_internals.checkpoint_directory import (
    PositionsDirectory,
    check_planned,
    found_at_ms,
    merged,
    shortened,
    with_commit,
)
from ..batch.batch_metrics import operator_metrics, sink_metrics
from ..batch.batch_parts import BatchStart, parts_of_batch
from ..batch.locality import Locality
from ..batch.user_metrics import UserMetrics
from ..errors import BatchOrderError, CheckpointNotBegunError, RunEndedError
from .backlog import Reached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from keyscale.state.doors.catalogue import Manifest

    from ..batch.batch_outcome import BatchOutcome
    from ..batch.committed_state import CommittedState
    from ..batch.runner import BatchRunner
    from ..control.driver_status import DriverStatus
    from .attempt import OpenAttempt

logger = logging.getLogger(__name__)


class BatchLoop:
    """Runs Spark's batches through the job, exactly once each.

    Between two batches the loop can be paused: during a pause the committed state does not change.

    Args:
        frame: The job's streaming input.
        runner: Runs one batch up to its commit.
        opened: The attempt.
        committed: The committed state when the attempt begins.
        directory: Path for Spark's checkpoint directory; must not exist.
        positions: The files that Spark starts from; by default the recorded files.
        batch_interval_ms: The minimum time between the starts of two batches with input.
        status: Takes every commit.
        on_failure: Called once with the exception of a failed batch, on that batch's thread.
        measure: Returns new metrics of the driver's processes, if any; called after each batch.
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
        batch_interval_ms: int = 0,
        measure: Callable[[], Mapping[str, int | float]] = dict,
    ) -> None:
        self._measure = measure
        self._frame = frame
        self.batch_interval_ms = batch_interval_ms
        self._runner = runner
        self._journal = opened.journal
        self._attempt = opened.attempt
        self._committed = committed
        self._path = directory
        self._directory = PositionsDirectory(directory)
        self._queries = 0
        self._status = status
        self._on_failure = on_failure
        self._locality = Locality()
        self._user_metrics = UserMetrics()
        self._lock = threading.Lock()
        self._rebases: deque[Manifest] = deque(maxlen=1)
        self._halted = False
        self._had_input_at = time.monotonic()
        self._ended_ms = _clock_ms()  # the end of the last batch
        self._positions = dict(opened.positions if positions is None else positions)
        self._unplanned = {
            name: content for name, content in self._positions.items() if opened.positions.get(name) != content
        }
        self._replanned = opened.resume.planned.batch_id if opened.resume.planned else None
        # A checkpoint before the commit of an earlier attempt's planned batch would lose the plan.
        self._settled = threading.Event()
        if self._replanned is None:
            self._settled.set()

    def start(self, until_present_end: bool = False) -> StreamingQuery:
        """Starts a query on a fresh checkpoint directory.

        From now on batches run on threads of their own.

        The batches of an earlier query are refused. Waits for the end of a running batch.

        Args:
            until_present_end: Whether the query ends when it has read the present input.

        Raises:
            RunEndedError: The loop has been halted.
        """
        with self._lock:
            if self._halted:
                raise RunEndedError("the run has ended")
            self._queries += 1
            query = self._queries
            if query > 1:
                self._directory = PositionsDirectory(self._path.with_name(f"{self._path.name}-query-{query}"))
            self._ended_ms = _clock_ms()
            done = self._committed.spark_batch_id
            self._directory.write(self._positions if done < 0 else with_commit(self._positions, done))
        writer = self._frame.writeStream.foreachBatch(lambda frame, number: self._run_batch(frame, number, query))
        if until_present_end:
            writer = writer.trigger(availableNow=True)
        elif self.batch_interval_ms:
            writer = writer.trigger(processingTime=f"{self.batch_interval_ms} milliseconds")
        return writer.option("checkpointLocation", self._directory.location).start()

    def reached(self) -> Reached:
        """Returns how far the committed batches have read the sources."""
        files = self._positions  # first: later files may lack the offsets of an earlier batch
        return Reached(files, self._committed.spark_batch_id)

    @property
    def committed(self) -> CommittedState:
        """The state after the last batch.

        The next batch replaces it at any moment.
        """
        return self._committed

    def refuse(self) -> None:
        """Prevents further batches.

        May be called during a pause.
        """
        self._halted = True
        self._settled.set()

    def halt(self) -> None:
        """Prevents further batches and waits for a running batch to end.

        Nothing is committed after this.
        """
        self.refuse()
        with self._lock:
            pass

    @contextmanager
    def paused(self, deadline: float) -> Iterator[CommittedState]:
        """Holds the loop between two batches.

        Args:
            deadline: When to stop waiting for a running batch, by `time.monotonic`.

        Raises:
            CheckpointNotBegunError: A batch was still running at the deadline.
            RunEndedError: The loop has been halted.
        """
        settled = self._settled.wait(_left(deadline))
        if not settled or not self._lock.acquire(timeout=_left(deadline)):
            raise CheckpointNotBegunError("no batch has ended since the checkpoint was due")
        try:
            if self._halted:
                raise RunEndedError("the run has ended")
            self._apply_rebase()
            yield self._committed
        finally:
            self._lock.release()

    def rebase(self, manifest: Manifest) -> None:
        """Sets a completed checkpoint as the base of later subtask restores.

        This attempt has completed the checkpoint. Does not wait: a running batch continues with the checkpoint that it
        began with.
        """
        self._rebases.append(manifest)

    def wait_until_rebased(self) -> None:
        """Waits for the end of a running batch.

        After it, restores start only from the newest checkpoint.
        """
        with self._lock:
            self._apply_rebase()

    def _apply_rebase(self) -> None:
        if self._rebases:
            self._committed = self._committed.rebased(self._rebases.popleft())

    def is_overtaken(self) -> bool:
        """Returns whether a newer attempt has begun.

        Returns False while a batch runs, as its commit detects a newer attempt itself.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._journal.is_overtaken()
        finally:
            self._lock.release()

    def _run_batch(self, frame: DataFrame, batch_id: int, query: int) -> None:
        with self._lock:
            if self._halted:
                raise RunEndedError("the run has ended")
            if query != self._queries:
                raise RunEndedError("another query has taken over")
            self._apply_rebase()
            try:
                self._process_input(frame, batch_id)
            except BaseException as error:
                self.refuse()
                self._on_failure(error)
                if isinstance(error, Exception):
                    raise
                # Spark is not informed of other exceptions, such as SystemExit, and waits.
                raise RunEndedError(f"{type(error).__name__} was raised") from error
            self._settled.set()

    def fire_timers(self, idle_seconds: float = 0.0, *, wait: bool = False, is_at_end: bool = False) -> bool:
        """Runs a batch of time alone for due timers, if idle.

        The batch is numbered and committed like other batches; Spark's own numbers lag behind from then on. It has no
        plan in the log, so a failed batch leaves no trace. It does not run before a batch that is planned in the log.

        Args:
            idle_seconds: Minimum time since the last commit of a batch with input.
            wait: Whether to wait for the end of a running batch, instead of doing nothing.
            is_at_end: Whether the input has ended, so that every event-time timer is due.

        Returns:
            Whether a batch ran.
        """
        if not self._settled.is_set() or not self._lock.acquire(blocking=wait):
            return False
        try:
            self._apply_rebase()
            committed = self._committed
            if self._halted or not self._is_idle(idle_seconds) or committed.batch_id < 0:
                return False
            if not self._runner.is_due(committed.time, committed.timers, is_at_end=is_at_end):
                return False
            try:
                due_ms = _clock_ms()
                self._process(None, BatchStart(self._ended_ms, due_ms, due_ms, due_ms), is_at_end=is_at_end)
            except BaseException as error:
                self.refuse()
                self._on_failure(error)
                raise
            return True
        finally:
            self._lock.release()

    def rehearse_timers(self, idle_seconds: float) -> bool:
        """Rehearses a batch of time alone if the loop is idle.

        The first real batch is then as fast as later batches.

        Batches may run at the same time.

        Returns:
            Whether the loop was idle.
        """
        if self._committed.batch_id < 0 or not self._is_idle(idle_seconds):
            return False
        self._runner.rehearse()
        return True

    def _is_idle(self, seconds: float) -> bool:
        return time.monotonic() - self._had_input_at >= seconds

    def _process_input(self, frame: DataFrame, spark_batch_id: int) -> None:
        if spark_batch_id != self._committed.spark_batch_id + 1:
            raise BatchOrderError(
                f"Spark's batch {spark_batch_id} came after its batch {self._committed.spark_batch_id}"
            )
        failpoint("batch.received")
        batch_id = BatchId(self._committed.batch_id + 1)
        received_ms, received_at_ms = _clock_ms(), now_ms()
        self._plan(batch_id, spark_batch_id)
        failpoint("batch.planned")
        found_ms_ago = received_at_ms - (found_at_ms(self._positions, spark_batch_id) or received_at_ms)
        self._process(frame, BatchStart(self._ended_ms, received_ms - found_ms_ago, received_ms, _clock_ms()))

    def _process(self, frame: DataFrame | None, start: BatchStart, *, is_at_end: bool = False) -> None:
        batch_id = BatchId(self._committed.batch_id + 1)
        outcome = self._runner.run(frame, self._committed, is_at_end=is_at_end)
        failpoint("batch.ran")
        ran_ms = _clock_ms()
        try:
            commit = self._commit(batch_id, outcome, of_spark=frame is not None)
        except FencedError:  # the sinks of the newer attempt have recovered, perhaps before this output was staged
            self._runner.discard(outcome.sinks)
            raise
        failpoint("batch.committed")
        committed_ms = _clock_ms()
        duration_ms = committed_ms - start.planned_ms
        for move in self._locality.saw(outcome.all_reports):
            logger.info("batch %d: %s", batch_id, move)
        self._status.locality_measured(self._locality)
        for warning in self._user_metrics.saw(outcome.all_reports, self._committed.counters):
            logger.warning("batch %d: %s", batch_id, warning)
        self._status.user_metrics_set(self._user_metrics.gauges, self._user_metrics.help)
        self._status.committed(
            commit,
            counters=self._committed.counters,
            input_records=outcome.input_records,
            output_records=outcome.output_records,
            duration_ms=duration_ms,
            operators=operator_metrics(outcome.reports, self._committed.time, commit.at_ms),
            sinks=sink_metrics(outcome.dead_letters),
            has_input=frame is not None,
        )
        if self._status.commits == 1:
            logger.info("first commit: batch %d after %.0f ms", batch_id, duration_ms)
        publish_ms = self._runner.publish(outcome.sinks)
        self._ended_ms = _clock_ms()
        parts = parts_of_batch(
            start,
            ran_ms=ran_ms,
            committed_ms=committed_ms,
            published_ms=self._ended_ms,
            sinks_ms=sum(outcome.sink_ms.values()) + outcome.waited_ms,
            reports=outcome.all_reports,
        )
        self._status.published(
            BatchMetrics(batch_id=batch_id, at_ms=commit.at_ms, input_records=outcome.input_records, **parts),
            {uid: outcome.sink_ms.get(uid, 0.0) + publish_ms.get(uid, 0.0) for uid in outcome.sinks},
        )
        if measured := self._measure():
            self._status.host_measured(measured)
        failpoint("batch.published")

    def _plan(self, batch_id: BatchId, spark_batch_id: int) -> None:
        new = {**self._unplanned, **self._directory.read_new()}
        positions = merged(self._positions, new, spark_batch_id)
        check_planned(positions, spark_batch_id)
        if batch_id == self._replanned:
            # The batch runs again with its own positions, which are already in the log; other new files go with the
            # next plan.
            self._unplanned = new
        else:
            self._journal.append(BatchPlanned(self._attempt, batch_id, shortened(new, self._positions)))
            self._unplanned = {}
        self._positions = positions

    def _commit(self, batch_id: BatchId, outcome: BatchOutcome, *, of_spark: bool) -> Commit:
        committed_at_ms = now_ms()
        time_then = outcome.time_after(self._committed.time, of_spark=of_spark)
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
                counters=self._committed.counters.plus(outcome.counters),
            )
        )
        if of_spark:
            self._had_input_at = time.monotonic()
        self._committed = self._committed.after(
            batch_id, outcome, self._positions, self._journal.last_position, time_then
        )
        return Commit(batch_id=batch_id, at_ms=committed_at_ms)


def _clock_ms() -> float:
    return time.perf_counter() * 1000


def _left(deadline: float) -> float:
    return min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
