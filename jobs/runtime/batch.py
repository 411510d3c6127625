"""One micro-batch through the job's operators and into its sinks' staging: everything up to the commit."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from jobs.nodes import OperatorNode, SinkNode, SourceNode
from jobs.runtime.anchored import run_anchored
from jobs.runtime.batch_frames import BatchFrames, OperatorInputs
from jobs.runtime.branches import tags_of
from jobs.runtime.broadcast_rows import check_alike, collected
from jobs.runtime.clock import now_ms
from jobs.runtime.columns import rehearse_conversion
from jobs.runtime.direct_edges import carries_no_rows, direct_edges
from jobs.runtime.failures import typed_failure
from jobs.runtime.keyed_records import KeyedRecords
from jobs.runtime.reports import ReportCollector, TaskReport, complete_reports
from jobs.runtime.side_outputs import wire_schema
from jobs.runtime.sources import JobSources
from jobs.runtime.task import OperatorTask, TasksWithoutRecords, subtask_facts
from jobs.runtime.watermarks import Activity, batch_times, due_subtasks
from jobs.sinks import SinkContext
from state.errors import KeyscaleError
from state.identifiers import SubtaskIndex
from state.job_time import JobTime
from state.settings import RocksDbSettings
from state.subtask import SubtaskSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from jobs.nodes import NodeId
    from jobs.runtime.affinity import Anchor
    from jobs.runtime.body import NextTimers
    from jobs.runtime.task import SubtaskStart
    from jobs.runtime.watermarks import BatchTime
    from jobs.sinks import DirectOutput
    from jobs.topology import Topology
    from state.changelog import ChangelogHandle
    from state.hashing import HashId
    from state.identifiers import Attempt, BatchId, JobId, OperatorUid


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is the same for all batches of an attempt.

    Attributes:
        job_id: The job.
        attempt: The fencing number.
        parallelism: Subtasks of each operator.
        max_parallelism: Key groups.
        hash_id: How keys become key groups.
        store_url: Root of the object store.
        local_root: Directory of local state, the same path on every host.
        rocksdb: Of the stores of all operators' state.
        store_outage_max_ms: For how long tasks wait for an object store that is away.
    """

    job_id: JobId
    attempt: Attempt
    parallelism: int
    max_parallelism: int
    hash_id: HashId
    store_url: str
    local_root: Path
    rocksdb: RocksDbSettings = field(default_factory=RocksDbSettings)
    store_outage_max_ms: int = 0


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What a commit record of the batch names. Until it is committed none of it counts.

    Attributes:
        changelogs: Of each operator, by subtask; None where nothing changed.
        sinks: Of each sink, what publishes its output.
        input_records: Records that entered operators which follow the source (or its transforms) directly.
        output_records: Records that left operators which are followed by a sink (or transforms before one).
        reports: All of them, by operator and subtask.
        times: That it was run with, by operator.
    """

    changelogs: dict[OperatorUid, tuple[ChangelogHandle | None, ...]]
    sinks: dict[OperatorUid, str]
    input_records: int
    output_records: int
    reports: dict[OperatorUid, tuple[TaskReport, ...]]
    times: dict[OperatorUid, BatchTime] = field(default_factory=dict)

    def latest_of_origins(self) -> dict[OperatorUid, dict[str, int]]:
        """The latest event time of the records of each origin, of operators that have several."""
        latest: dict[OperatorUid, dict[str, int]] = {}
        for uid, reports in self.reports.items():
            for name, latest_ms in (item for report in reports for item in report.latest_of_origins.items()):
                of_operator = latest.setdefault(uid, {})
                of_operator[name] = max(latest_ms, of_operator.get(name, latest_ms))
        return latest


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    """What is decided before a batch runs: its identity, where subtasks start, their times and due timers.

    `outputs` is where operators' subtasks write themselves, of those that do.
    """

    run: str
    batch_id: BatchId
    starts: Mapping[OperatorUid, Sequence[SubtaskStart]]
    times: dict[OperatorUid, BatchTime]
    due: dict[OperatorUid, tuple[bool, ...]]
    outputs: dict[OperatorUid, DirectOutput] = field(default_factory=dict)


class BatchRunner:
    """Runs the batches of one attempt, one at a time."""

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        facts: RunFacts,
        anchor: Anchor,
        specs: Mapping[OperatorUid, Sequence[SubtaskSpec]] | None = None,
        *,
        sources: JobSources | None = None,
    ) -> None:
        """Made once an attempt.

        Args:
            spark: The session.
            topology: The job.
            facts: Of the run.
            anchor: Where the subtasks are.
            specs: The subtasks of each operator, by index; by default those of operators that have no state yet.
            sources: The job's, in the order in which Spark has them; by default that of the topology.
        """
        self._spark = spark
        self._anchor = anchor
        self._topology = topology
        self._facts = facts
        self._collector = ReportCollector(spark.sparkContext)
        self._processing_time_ms = 0
        self._direct = direct_edges(topology)
        self._time_carries_no_rows = carries_no_rows(topology, self._direct)
        self._sources = sources or JobSources(topology.sources)
        self._activity = Activity()
        self._specs = specs or {node.uid: subtask_specs(node, facts) for node in topology.operators}
        self._records = KeyedRecords(topology, anchor, max_parallelism=facts.max_parallelism, hash_id=facts.hash_id)
        self._no_records: dict[NodeId, DataFrame] = {}
        self._wires = {
            node.uid: from_arrow_schema(wire_schema(node.schema, node.side_outputs), prefer_timestamp_ntz=True)
            for node in topology.operators
        }

    def of_query(self, stream: DataFrame) -> DataFrame:
        """What the query reads whose batches are run: the sources' stream, as far as it can be prepared once for all of them."""
        return self._records.of_query(stream)

    def run(
        self,
        frame: DataFrame | None,
        batch_id: BatchId,
        starts: Mapping[OperatorUid, Sequence[SubtaskStart]],
        *,
        time: JobTime | None = None,
        timers: Mapping[OperatorUid, Sequence[NextTimers | None]] | None = None,
    ) -> BatchOutcome:
        """Processes a batch and stages its output; on any failure nothing of it is left but orphans that nothing names.

        Args:
            frame: The batch's records, as foreachBatch gives them of a query over `of_query`; None for a batch that has no input but time.
            batch_id: Its number.
            starts: Where the subtasks of each operator start from, by index.
            time: The job's time before the batch.
            timers: What is known of each subtask's timers.

        Raises:
            KeyscaleError: The user's function failed, a task did, a sink did, or the reports are not complete.
        """
        run = uuid.uuid4().hex
        began_ms = self._now_ms()
        self._collector.clear()
        plan = self._plan(run, batch_id, starts, time or JobTime(), timers or {})
        self._spark.sparkContext.setJobDescription(f"batch {batch_id}")
        tokens: dict[OperatorUid, str] = {}
        try:
            self._stage(frame, plan, tokens)
            uids = [node.uid for node in self._topology.operators]
            reports = complete_reports(self._collector.reports_of(run), uids, self._facts.parallelism)
            for uid, of_operator in reports.items():
                check_alike(uid, [report.broadcast_digest for report in of_operator])
            for edge in self._direct:
                edge.gather(tokens[edge.sink.uid], reports[edge.operator.uid])
        except Exception as failure:
            self.discard(tokens)
            typed = typed_failure(failure)
            if typed is failure:
                raise
            raise typed from failure
        finally:
            self._spark.sparkContext.setJobDescription("")
        outcome = BatchOutcome(
            changelogs={uid: tuple(report.changelog for report in found) for uid, found in reports.items()},
            sinks=tokens,
            input_records=sum(report.input_records for uid in self._first_uids() for report in reports[uid]),
            output_records=sum(report.output_records for uid in self._last_uids() for report in reports[uid]),
            reports=reports,
            times=plan.times,
        )
        self._activity.ran(began_ms, self._now_ms(), outcome.latest_of_origins())
        return outcome

    def is_due(self, time: JobTime, timers: Mapping[OperatorUid, Sequence[NextTimers | None]]) -> bool:
        """Whether a batch that begins now, when there is no input, would fire timers."""
        self._activity.waited(self._now_ms())
        times = batch_times(self._topology, time, self._now_ms(), self._activity)
        return any(any(self._due(node, times, timers)) for node in self._topology.operators)

    def rehearse(self) -> None:
        """Has Spark do all that a batch of time alone does, and a checkpoint beside it, but without a subtask's work: nothing changes.

        The first such batch of a JVM takes a second longer than those after it.
        """
        run_anchored(self._spark, self._anchor, "rehearsal", rehearse_conversion)
        if self._time_carries_no_rows:
            return
        with self._frames(None, self._rehearse_on) as frames:
            for node in self._topology.sinks:
                frames[node.input].collect()

    def publish(self, tokens: Mapping[OperatorUid, str]) -> None:
        """Makes a committed batch's output visible; any number of times.

        Raises:
            KeyscaleError: A sink could not; to be tried again.
        """
        for node in self._topology.sinks:
            if node.uid in tokens:
                node.sink.publish(tokens[node.uid])

    def discard(self, tokens: Mapping[OperatorUid, str]) -> None:
        """Forgets the staged output of a batch that was not committed. What cannot be removed now is removed by `recover`."""
        for node in self._topology.sinks:
            if node.uid in tokens:
                with contextlib.suppress(KeyscaleError):
                    node.sink.discard(tokens[node.uid])

    def recover(self, committed: BatchId) -> None:
        """Removes output that earlier attempts left behind. Call it after publishing the batch that was committed last."""
        for node in self._topology.sinks:
            node.sink.recover(self._sink_context(node, committed, uuid.uuid4().hex))

    def _stage(self, frame: DataFrame | None, plan: _BatchPlan, tokens: dict[OperatorUid, str]) -> None:
        """Runs the batch into the sinks' staging; notes each token as soon as there is something to discard."""
        for edge in self._direct:
            output = edge.staging.begin(self._sink_context(edge.sink, plan.batch_id, plan.run))
            plan.outputs[edge.operator.uid], tokens[edge.sink.uid] = output, output.token
        if frame is None and self._time_carries_no_rows:
            tasks = TasksWithoutRecords(tuple(self._task(plan, edge.operator, b"") for edge in self._direct))
            run_anchored(self._spark, self._anchor, f"batch {plan.batch_id}", tasks)
            return
        with self._frames(frame, partial(self._run_on, plan)) as frames:
            for node in self._topology.sinks:
                if node.uid in tokens:
                    frames[node.input].collect()  # no rows come: the subtasks write them
                else:
                    context = self._sink_context(node, plan.batch_id, plan.run)
                    tokens[node.uid] = node.sink.prepare(frames[node.input], context)

    def _plan(
        self,
        run: str,
        batch_id: BatchId,
        starts: Mapping[OperatorUid, Sequence[SubtaskStart]],
        time: JobTime,
        timers: Mapping[OperatorUid, Sequence[NextTimers | None]],
    ) -> _BatchPlan:
        times = batch_times(self._topology, time, self._now_ms(), self._activity)
        due = {
            # Operator state of an earlier run is taken over by all subtasks at once.
            uid: tuple(
                is_due or any(each.plan.operator_state.is_to_be_dealt for each in starts[uid]) for is_due in found
            )
            for uid, found in ((node.uid, self._due(node, times, timers)) for node in self._topology.operators)
        }
        return _BatchPlan(run, batch_id, starts, times, due)

    def _due(
        self,
        node: OperatorNode,
        times: Mapping[OperatorUid, BatchTime],
        timers: Mapping[OperatorUid, Sequence[NextTimers | None]],
    ) -> tuple[bool, ...]:
        return due_subtasks(node, times[node.uid], timers.get(node.uid, (None,) * self._facts.parallelism))

    def _now_ms(self) -> int:
        self._processing_time_ms = max(self._processing_time_ms, now_ms())  # a clock that is set back stops
        return self._processing_time_ms

    @contextlib.contextmanager
    def _frames(
        self, batch: DataFrame | None, run_on: Callable[[OperatorNode, DataFrame, bytes], DataFrame]
    ) -> Iterator[dict[NodeId, DataFrame]]:
        """The frame that each sink's input puts out; frames that are read more than once are kept until the end.

        `run_on` gives what an operator puts out, with all its outputs, of its keyed records and the rows of its broadcast stream.
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
        """The sources of a batch that has no input but time; made once, as that takes longer than to use them."""
        self._no_records = self._no_records or self._sources.empty(self._spark)
        return self._no_records

    def _rehearse_on(self, node: OperatorNode, records: DataFrame, _rows: bytes) -> DataFrame:
        return records.mapInArrow(_nothing, self._wires[node.uid])

    def _run_on(self, plan: _BatchPlan, node: OperatorNode, records: DataFrame, rows: bytes) -> DataFrame:
        return records.mapInArrow(self._task(plan, node, rows).run_partition, self._wires[node.uid])

    def _task(self, plan: _BatchPlan, node: OperatorNode, rows: bytes) -> OperatorTask:
        specs = self._specs[node.uid]
        return OperatorTask(
            run=plan.run,
            batch_id=plan.batch_id,
            specs=tuple(specs),
            starts=tuple(plan.starts[node.uid]),
            logic=node.logic,
            facts=subtask_facts(node, tuple(specs), tags_of(self._topology.arrivals(node))),
            store_url=self._facts.store_url,
            local_root=str(self._facts.local_root),
            store_outage_max_ms=self._facts.store_outage_max_ms,
            time=plan.times[node.uid],
            due=(True,) * len(specs) if rows else plan.due[node.uid],
            reports=self._collector.accumulator,
            broadcast=rows,
            output=plan.outputs.get(node.uid),
        )

    def _sink_context(self, node: SinkNode, batch_id: BatchId, unique: str) -> SinkContext:
        return SinkContext(self._facts.job_id, node.uid, batch_id, self._facts.attempt, unique)

    def _first_uids(self) -> set[OperatorUid]:
        arrivals = {node.uid: self._topology.arrivals(node) for node in self._topology.operators}
        return {
            uid for uid, found in arrivals.items() if any(isinstance(each.origin.node, SourceNode) for each in found)
        }

    def _last_uids(self) -> set[OperatorUid]:
        return {node.uid for sink in self._topology.sinks for node in self._topology.operators_before(sink.input)}


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


def subtask_specs(node: OperatorNode, facts: RunFacts) -> tuple[SubtaskSpec, ...]:
    """The subtasks of an operator, by index."""
    return tuple(
        SubtaskSpec(
            job_id=facts.job_id,
            operator_uid=node.uid,
            index=SubtaskIndex(index),
            parallelism=facts.parallelism,
            max_parallelism=facts.max_parallelism,
            hash_id=facts.hash_id,
            key_schema=node.key_schema,
            attempt=facts.attempt,
            settings=facts.rocksdb,
        )
        for index in range(facts.parallelism)
    )
