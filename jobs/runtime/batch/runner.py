"""Runs one batch through the job's operators, up to the commit.

Output is staged in the sinks.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec

from keyscale.clock import now_ms
from keyscale.errors import KeyscaleError
from keyscale.identifiers import BatchId, SubtaskIndex
from keyscale.state.doors.keyed import RocksDbSettings
from keyscale.state.doors.subtasks import SubtaskSpec

from ...errors import (
    SinkForbiddenError,
    SinkOccupiedError,
    SinkPublishError,
    SinkRowsRefusedError,
    SinkTooSlowError,
    SinkUnavailableError,
)
from ...operators.broadcast_rows import check_alike, collected
from ...operators.column_values import rehearse_conversion
from ...operators.failures import origin_of, shown_message, typed_failure, with_origin
from ...protocol.messages import SinkOutage
from ...sinks.sink import DeadLetterSink, SinkContext, Takeover
from ...spark_internals.arrow_schemas import spark_schema_of
from ...spark_internals.broadcast_payloads import BroadcastPayload
from ..executor.side_outputs import wire_schema
from ..executor.subtask_jobs import run_per_subtask
from ..executor.task import OperatorTask, TasksWithoutRecords
from ..executor.task_reports import ReportCollector, complete_reports
from ..retries import Retries
from .batch_metrics import records_read
from .batch_outcome import BatchOutcome
from .batch_parts import Staging, sink_times_ms
from .direct_edges import carries_no_rows, direct_edges
from .frames import BatchFrames, OperatorInputs
from .job_sources import JobSources
from .keyed_records import KeyedRecords
from .operator_info import operator_info
from .processing_clock import ProcessingClock
from .record_sampling import RecordSampling
from .shipped_logic import ShippedLogic
from .watermarks import InputActivity, batch_times, due_subtasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from keyscale.identifiers import Attempt, JobId, OperatorUid
    from keyscale.state.doors.commits import JobTime, Rewind
    from keyscale.state.doors.keyed import NextTimers
    from keyscale.state.doors.values import HashId, KeyGroupRanges

    from ...graph.nodes import NodeId, OperatorNode, SinkNode
    from ...graph.topology import Topology
    from ...sinks.sink import DirectOutput
    from ...spark_internals.affinity import PlacementDataset
    from ..executor.subtask_starts import ShippedStarts
    from ..executor.task import BatchTime
    from ..executor.task_reports import TaskReport
    from .committed_state import CommittedState

logger = logging.getLogger(__name__)

_CLOCK_BEHIND_MS = 1000  # synchronized clocks differ by less

_Result = TypeVar("_Result")
_OF_SINKS = (
    SinkForbiddenError,
    SinkOccupiedError,
    SinkPublishError,
    SinkRowsRefusedError,
    SinkTooSlowError,
    SinkUnavailableError,
)
_NO_RETRIES = Retries(0, awaited=SinkUnavailableError)


def _to_nobody(_outage: SinkOutage | None) -> None:
    pass


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Values that are the same for all batches of an attempt.

    Attributes:
        job_id: The job.
        attempt: The fencing number.
        ranges: The key groups of each subtask.
        hash_id: The hash that maps keys to key groups.
        store_url: Root of the object store.
        local_root: Directory of local state, the same path on every host.
        rocksdb: Settings of all operators' stores.
        store_outage_max_ms: How long tasks retry an operation on an unavailable object store.
    """

    job_id: JobId
    attempt: Attempt
    ranges: KeyGroupRanges
    hash_id: HashId
    store_url: str
    local_root: Path
    rocksdb: RocksDbSettings = field(default_factory=RocksDbSettings)
    store_outage_max_ms: int = 0

    @property
    def parallelism(self) -> int:
        """Number of subtasks per operator."""
        return len(self.ranges)

    @property
    def max_parallelism(self) -> int:
        """Number of key groups."""
        return self.ranges.max_parallelism


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    """The plan of a batch, made before it runs.

    It holds the batch's identity, and the subtasks' versions, times and due timers. `outputs` says where subtasks write
    their rows directly, by operator. `payloads` belong to this batch alone, `stagings` are the times of its sinks.
    """

    run: str
    batch_id: BatchId
    starts: Mapping[OperatorUid, ShippedStarts]
    times: dict[OperatorUid, BatchTime]
    due: dict[OperatorUid, tuple[bool, ...]]
    outputs: dict[OperatorUid, DirectOutput] = field(default_factory=dict)
    payloads: list[BroadcastPayload] = field(default_factory=list)
    stagings: list[Staging] = field(default_factory=list)


class BatchRunner:
    """Runs the batches of one attempt, one at a time."""

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        info: RunInfo,
        placement: PlacementDataset,
        specs: Mapping[OperatorUid, Sequence[SubtaskSpec]] | None = None,
        *,
        sources: JobSources | None = None,
        shipped: ShippedLogic | None = None,
        sink_retries: Retries = _NO_RETRIES,
        on_outage: Callable[[SinkOutage | None], None] = _to_nobody,
        clock: ProcessingClock | None = None,
        sampling: RecordSampling | None = None,
    ) -> None:
        """Creates the runner; once per attempt.

        Args:
            spark: The session.
            topology: The job.
            info: The attempt's info.
            placement: The subtasks' rows.
            specs: The subtasks of each operator, by index; by default subtasks without state.
            sources: The job's sources, in the order of their places in Spark's query; by default the source of the
                topology.
            shipped: The parts of the run that are shipped once; by default new ones.
            sink_retries: How long to wait for a sink with an unavailable system.
            on_outage: Called with the sink that batches wait for, and with None when the waiting has ended.
            clock: Tells the processing time; by default a clock that begins now.
            sampling: Orders samples of records; by default none.
        """
        self._spark = spark
        self._placement = placement
        self._topology = topology
        self._info = info
        self._collector = ReportCollector(spark.sparkContext)
        self._clock_was_behind = False
        self._with_records_ahead: set[OperatorUid] = set()
        self._direct = direct_edges(topology)
        self._time_carries_no_rows = carries_no_rows(topology, self._direct)
        self._sources = sources or JobSources(topology.sources)
        self._sink_retries = sink_retries
        self._on_outage = on_outage
        self._clock = clock or ProcessingClock(now_ms())
        self._sampling = sampling or RecordSampling()
        self._sampling.serve([node.uid for node in topology.operators])
        self._activity = InputActivity()
        self._specs = specs or {node.uid: subtask_specs(node, info) for node in topology.operators}
        self._shipped = shipped or ShippedLogic(spark.sparkContext, topology)
        self._records = KeyedRecords(topology, placement, ranges=info.ranges, hash_id=info.hash_id)
        self._no_records: dict[NodeId, DataFrame] = {}
        self._wires = {
            node.uid: spark_schema_of(wire_schema(node.schema, node.side_outputs)) for node in topology.operators
        }

    def of_query(self, stream: DataFrame) -> DataFrame:
        """Returns the frame that the streaming query reads.

        It is the sources' stream, prepared once for all batches.
        """
        return self._records.of_query(stream)

    def run(
        self,
        frame: DataFrame | None,
        committed: CommittedState,
        *,
        is_at_end: bool = False,
    ) -> BatchOutcome:
        """Processes the next batch and stages its output.

        A failure leaves only orphaned files that nothing names.

        While a sink's system does not answer, the batch is tried again from its beginning.

        Args:
            frame: The batch's records, as foreachBatch gets them from a query over `of_query`; None for a batch of time
                alone.
            committed: The state after the previous batch.
            is_at_end: Whether the input has ended, so that all event-time timers fire.

        Raises:
            KeyscaleError: The user's function, a task or a sink failed, or the reports are not complete.
        """
        began = time.monotonic()
        return self._waiting(
            lambda: self._try(frame, committed, is_at_end=is_at_end, waited_ms=1000 * (time.monotonic() - began))
        )

    def _try(
        self, frame: DataFrame | None, committed: CommittedState, *, is_at_end: bool, waited_ms: float
    ) -> BatchOutcome:
        run = uuid.uuid4().hex
        self._check_clock(committed.time)
        began_ms = _elapsed_ms()
        self._collector.clear()
        plan = self._plan(run, committed, is_at_end=is_at_end)
        self._spark.sparkContext.setJobDescription(f"batch {plan.batch_id}")
        tokens: dict[OperatorUid, str] = {}
        try:
            self._stage(frame, plan, tokens)
            uids = [node.uid for node in self._topology.operators]
            reports = complete_reports(self._collector.reports_of(run), uids, self._info.parallelism)
            self._sampling.collect(chain.from_iterable(reports.values()))
            for uid, of_operator in reports.items():
                check_alike(uid, [report.broadcast_digest for report in of_operator])
            for edge in self._direct:
                with _timed(edge.sink, plan.stagings):
                    of_sink(edge.sink, partial(edge.gather, tokens[edge.sink.uid], reports[edge.operator.uid]))
            dead_letters = self._dead_letters_of(tokens)
        except Exception as failure:
            self.discard(tokens)
            typed = typed_failure(failure)
            if typed is failure:
                raise
            raise typed from failure
        finally:
            self._spark.sparkContext.setJobDescription("")
            for payload in plan.payloads:
                payload.release()
        outcome = BatchOutcome(
            changelogs={uid: tuple(report.changelog for report in found) for uid, found in reports.items()},
            sinks=tokens,
            input_records=records_read(self._topology, reports),
            output_records=sum(report.write_records for uid in self._last_uids() for report in reports[uid]),
            reports=reports,
            times=plan.times,
            dead_letters=dead_letters,
            sink_ms=sink_times_ms(plan.stagings, chain.from_iterable(reports.values())),
            waited_ms=waited_ms,
        )
        self._warn_of_records_ahead(reports)
        _warn_of_failed_records(reports)
        self._activity.ran(began_ms, _elapsed_ms(), outcome.latest_of_origins(), outcome.latest_of_splits())
        return outcome

    def is_due(
        self, time: JobTime, timers: Mapping[OperatorUid, Sequence[NextTimers | None]], *, is_at_end: bool = False
    ) -> bool:
        """Returns whether a batch of time alone would fire timers now."""
        self._activity.waited(_elapsed_ms())
        times = batch_times(self._topology, time, self._clock.now_ms(), self._activity, is_at_end=is_at_end)
        return any(any(self._due(node, times, timers)) for node in self._topology.operators)

    def rehearse(self) -> None:
        """Rehearses Spark's part of a batch of time alone and a checkpoint.

        Subtasks do no work.

        Nothing changes. The first such batch of a JVM takes a second longer than later batches.
        """
        run_per_subtask(self._spark, self._placement, "rehearsal", rehearse_conversion)
        if self._time_carries_no_rows:
            return
        with self._frames(None, self._rehearse_on) as frames:
            for node in self._topology.sinks:
                frames[node.input].collect()

    def rehearse_input(self) -> None:
        """Rehearses Spark's part of a batch with input, on no records.

        Spark then has planned the batch and compiled its code for this parallelism. A job of several sources rehearses
        a batch of time alone.
        """
        if len(self._topology.sources) > 1:
            self.rehearse()
            return
        run_per_subtask(self._spark, self._placement, "rehearsal", rehearse_conversion)
        (empty,) = self._without_records().values()
        with self._frames(self._records.of_query(empty), self._rehearse_on) as frames:
            for node in self._topology.sinks:
                frames[node.input].collect()

    def publish(self, tokens: Mapping[OperatorUid, str]) -> dict[OperatorUid, float]:
        """Makes a committed batch's output visible.

        It may be called any number of times.

        It waits for sinks with unavailable systems.

        Returns:
            The time that each sink took, in ms.

        Raises:
            KeyscaleError: A sink failed; call it again.
        """
        times: list[Staging] = []
        for node in self._topology.sinks:
            if node.uid in tokens:
                with _timed(node, times):
                    self._waiting(partial(of_sink, node, partial(node.sink.publish, tokens[node.uid])))
        return sink_times_ms(times, ())

    def discard(self, tokens: Mapping[OperatorUid, str]) -> None:
        """Deletes the staged output of a batch that was not committed.

        `recover` deletes the output that this call cannot.
        """
        for node in self._topology.sinks:
            if node.uid in tokens:
                with contextlib.suppress(KeyscaleError):
                    node.sink.discard(tokens[node.uid])

    def take_over(self, committed: BatchId, rewinds: tuple[Rewind, ...] = ()) -> None:
        """Ends what earlier attempts hold in the systems of sinks.

        Call it before publishing the last committed batch. It waits for sinks with unavailable systems.

        Sinks are taken over in reverse order, as rows that are taken back may refer to rows of a sink before.

        Args:
            committed: The last committed batch.
            rewinds: The rewinds in the job's history.
        """
        for node in reversed(self._topology.sinks):
            if isinstance(node.sink, Takeover):
                context = replace(self._sink_context(node, committed, uuid.uuid4().hex), rewinds=rewinds)
                self._waiting(partial(of_sink, node, partial(node.sink.take_over, context)))

    def recover(self, committed: BatchId, rewinds: tuple[Rewind, ...] = (), forked_from: JobId | None = None) -> None:
        """Deletes output that earlier attempts left.

        Call it after publishing the last committed batch.

        It waits for sinks with unavailable systems. Sinks are taken in reverse order, as rows that are taken back may
        refer to rows of a sink before.

        Args:
            committed: The last committed batch.
            rewinds: The rewinds in the job's history.
            forked_from: The other job that the attempt's snapshot comes from, if any.
        """
        for node in reversed(self._topology.sinks):
            context = self._sink_context(node, committed, uuid.uuid4().hex)
            context = replace(context, rewinds=rewinds, forked_from=forked_from)
            self._waiting(partial(of_sink, node, partial(node.sink.recover, context)))

    def _waiting(self, operation: Callable[[], _Result]) -> _Result:
        """Runs an operation until all sinks answer, or the limit is reached."""

        def report(error: KeyscaleError | None) -> None:
            uid = None if error is None else origin_of(error).operator_uid
            self._on_outage(
                None if uid is None else SinkOutage(uid=uid, since_ms=now_ms(), reason=shown_message(str(error)))
            )

        return self._sink_retries.run(operation, report)

    def _stage(self, frame: DataFrame | None, plan: _BatchPlan, tokens: dict[OperatorUid, str]) -> None:
        """Runs the batch into the sinks' staging.

        Stores each token as soon as there is something to discard.
        """
        for edge in self._direct:
            context = self._sink_context(edge.sink, plan.batch_id, plan.run)
            output = of_sink(edge.sink, partial(edge.staging.begin, context))
            plan.outputs[edge.operator.uid], tokens[edge.sink.uid] = output, output.token
        if frame is None and self._time_carries_no_rows:
            tasks = TasksWithoutRecords(tuple(self._task(plan, edge.operator, b"") for edge in self._direct))
            run_per_subtask(self._spark, self._placement, f"batch {plan.batch_id}", tasks)
            return
        with self._frames(frame, partial(self._run_on, plan)) as frames:
            for node in self._topology.sinks:
                if node.uid in tokens:
                    of_sink(node, frames[node.input].collect)  # the subtasks write the rows, so the result is empty
                else:
                    context = self._sink_context(node, plan.batch_id, plan.run)
                    with _timed(node, plan.stagings):
                        tokens[node.uid] = of_sink(node, partial(node.sink.prepare, frames[node.input], context))

    def _plan(self, run: str, committed: CommittedState, *, is_at_end: bool) -> _BatchPlan:
        times = batch_times(self._topology, committed.time, self._clock.now_ms(), self._activity, is_at_end=is_at_end)
        starts = self._shipped.starts(committed)
        due = {
            uid: tuple(is_due or starts[uid].must_all_run for is_due in found)
            for uid, found in (
                (node.uid, self._due(node, times, committed.timers)) for node in self._topology.operators
            )
        }
        return _BatchPlan(run, BatchId(committed.batch_id + 1), starts, times, due)

    def _due(
        self,
        node: OperatorNode,
        times: Mapping[OperatorUid, BatchTime],
        timers: Mapping[OperatorUid, Sequence[NextTimers | None]],
    ) -> tuple[bool, ...]:
        return due_subtasks(node, times[node.uid], timers.get(node.uid, (None,) * self._info.parallelism))

    def _check_clock(self, time: JobTime) -> None:
        """Logs, once per attempt, that processing time stands still.

        It does until the driver's clock has caught up with the job's time.
        """
        behind_ms = time.processing_ms - self._clock.now_ms()
        if behind_ms > _CLOCK_BEHIND_MS and not self._clock_was_behind:
            self._clock_was_behind = True
            logger.warning(
                "the clock of this driver is %d s behind the processing time that the job has reached; until it has"
                " caught up, processing time stands still: processing-time timers do not fire, and entries do not"
                " expire by processing time",
                behind_ms // 1000,
            )

    def _warn_of_records_ahead(self, reports: Mapping[OperatorUid, Sequence[TaskReport]]) -> None:
        """Logs that records are ahead of the clock.

        It does so once per attempt and operator.
        """
        for uid, of_operator in reports.items():
            ahead = sum(report.ahead_records for report in of_operator)
            if ahead and uid not in self._with_records_ahead:
                self._with_records_ahead.add(uid)
                logger.warning(
                    "%d records at operator %s have event times further ahead of the clock than max_ahead_ms allows:"
                    " they do not advance the watermark, and windows treat them as late",
                    ahead,
                    uid,
                )

    @contextlib.contextmanager
    def _frames(
        self, batch: DataFrame | None, run_on: Callable[[OperatorNode, DataFrame, bytes], DataFrame]
    ) -> Iterator[dict[NodeId, DataFrame]]:
        """Builds the frame of each sink's input.

        Frames that are read more than once are kept until the end.

        `run_on` returns the frame of all outputs of an operator, given its keyed records and the rows of its broadcast
        stream.
        """

        def operator_frame(node: OperatorNode, inputs: Callable[[], OperatorInputs]) -> DataFrame:
            if batch is None and self._topology.follows_sources_alone(node):
                return run_on(node, self._records.none(node, inputs), b"")
            if batch is not None and node is self._records.keyed_by_query:
                return run_on(node, batch, b"")
            found = inputs()
            rows = b"" if found.broadcast is None else collected(found.broadcast)
            return run_on(node, self._records.moved(node, found), rows)

        frames = BatchFrames(self._topology, operator_frame)
        try:
            yield frames.build(self._without_records() if batch is None else self._sources.split(batch, frames.keep))
        finally:
            frames.release()

    def _without_records(self) -> dict[NodeId, DataFrame]:
        """Returns the sources of a batch of time alone.

        They are created once, as creating them takes longer than using them.
        """
        self._no_records = self._no_records or self._sources.empty(self._spark)
        return self._no_records

    def _rehearse_on(self, node: OperatorNode, records: DataFrame, _rows: bytes) -> DataFrame:
        return records.mapInArrow(_nothing, self._wires[node.uid])

    def _run_on(self, plan: _BatchPlan, node: OperatorNode, records: DataFrame, rows: bytes) -> DataFrame:
        return records.mapInArrow(self._task(plan, node, rows).run_partition, self._wires[node.uid])

    def _task(self, plan: _BatchPlan, node: OperatorNode, rows: bytes) -> OperatorTask:
        spec = self._specs[node.uid][0]
        broadcast = None
        if rows:
            broadcast = BroadcastPayload.of(self._spark.sparkContext, rows)
            plan.payloads.append(broadcast)
        return OperatorTask(
            run=plan.run,
            batch_id=plan.batch_id,
            spec=spec,
            starts=plan.starts[node.uid],
            logic=self._shipped.logic[node.uid],
            info=operator_info(self._topology, node, spec),
            store_url=self._info.store_url,
            local_root=str(self._info.local_root),
            store_outage_max_ms=self._info.store_outage_max_ms,
            time=plan.times[node.uid],
            due=(True,) * spec.parallelism if rows else plan.due[node.uid],
            reports=self._collector.accumulator,
            broadcast=broadcast,
            output=plan.outputs.get(node.uid),
            sample=self._sampling.order_of(node.uid),
        )

    def _dead_letters_of(self, tokens: Mapping[OperatorUid, str]) -> dict[OperatorUid, int]:
        return {
            node.uid: node.sink.dead_letters_of(tokens[node.uid])
            for node in self._topology.sinks
            if node.uid in tokens and isinstance(node.sink, DeadLetterSink)
        }

    def _sink_context(self, node: SinkNode, batch_id: BatchId, unique: str) -> SinkContext:
        return SinkContext(self._info.job_id, node.uid, batch_id, self._info.attempt, unique)

    def _last_uids(self) -> set[OperatorUid]:
        return {node.uid for sink in self._topology.sinks for node in self._topology.operators_before(sink.input)}


def of_sink(node: SinkNode, operation: Callable[[], _Result]) -> _Result:
    """Runs an operation of a sink; its own errors get its uid.

    Errors of operators that the sink reads keep their uid.
    """
    try:
        return operation()
    except Exception as failure:
        error = typed_failure(failure)
        if not isinstance(error, _OF_SINKS) or origin_of(error).operator_uid is not None:
            raise
        raise with_origin(error, msgspec.structs.replace(origin_of(error), operator_uid=node.uid)) from failure


@contextlib.contextmanager
def _timed(node: SinkNode, stagings: list[Staging]) -> Iterator[None]:
    """Notes the time in the block as a sink's."""
    began_s = time.time()
    yield
    stagings.append(Staging(node.uid, 1000 * began_s, 1000 * time.time()))


def _warn_of_failed_records(reports: Mapping[OperatorUid, Sequence[TaskReport]]) -> None:
    for uid, of_operator in reports.items():
        failures = [report.first_failure for report in of_operator if report.first_failure is not None]
        if failures:
            count = sum(report.count_of("dead_letters") for report in of_operator)
            logger.warning("operator %s failed on %d records of a batch, such as: %s", uid, count, failures[0])


def _elapsed_ms() -> int:
    """Returns the monotonic time in ms; used to detect idle sources."""
    return time.monotonic_ns() // 1_000_000


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


def subtask_specs(node: OperatorNode, info: RunInfo) -> tuple[SubtaskSpec, ...]:
    """Returns the subtasks of an operator, by index."""
    return tuple(
        SubtaskSpec(
            job_id=info.job_id,
            operator_uid=node.uid,
            index=SubtaskIndex(index),
            parallelism=info.parallelism,
            max_parallelism=info.max_parallelism,
            hash_id=info.hash_id,
            key_schema=node.key_schema,
            attempt=info.attempt,
            settings=info.rocksdb,
            ranges=info.ranges,
        )
        for index in range(info.parallelism)
    )
