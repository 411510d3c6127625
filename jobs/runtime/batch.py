"""One micro-batch through the job's operators and into its sinks' staging: everything up to the commit."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.runtime.clock import now_ms
from jobs.runtime.failures import typed_failure, user_code
from jobs.runtime.reports import ReportCollector, TaskReport, complete_reports
from jobs.runtime.routing import Routing
from jobs.runtime.side_outputs import main_output, side_output, wire_schema
from jobs.runtime.task import OperatorTask, subtask_facts
from jobs.runtime.watermarks import batch_times, due_subtasks
from jobs.sinks import SinkContext
from jobs.topology import OperatorNode, SideOutputNode, SinkNode, SourceNode, TransformNode
from state.errors import KeyscaleError
from state.identifiers import SubtaskIndex
from state.job_time import JobTime
from state.settings import RocksDbSettings
from state.subtask import SubtaskSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from jobs.runtime.affinity import Anchor
    from jobs.runtime.body import NextTimers
    from jobs.runtime.task import SubtaskStart
    from jobs.runtime.watermarks import BatchTime
    from jobs.topology import NodeId, Topology
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


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    """What is decided before a batch runs: its identity, where subtasks start, and their times and due timers."""

    run: str
    batch_id: BatchId
    starts: Mapping[OperatorUid, Sequence[SubtaskStart]]
    times: dict[OperatorUid, BatchTime]
    due: dict[OperatorUid, tuple[bool, ...]]


class BatchRunner:
    """Runs the batches of one attempt, one at a time."""

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        facts: RunFacts,
        anchor: Anchor,
        specs: Mapping[OperatorUid, Sequence[SubtaskSpec]] | None = None,
    ) -> None:
        """Made once an attempt.

        Args:
            spark: The session.
            topology: The job.
            facts: Of the run.
            anchor: Where the subtasks are.
            specs: The subtasks of each operator, by index; by default those of operators that have no state yet.
        """
        self._spark = spark
        self._topology = topology
        self._facts = facts
        self._anchor = anchor
        self._collector = ReportCollector(spark.sparkContext)
        self._processing_time_ms = 0
        self._specs = specs or {node.uid: subtask_specs(node, facts) for node in topology.operators}
        self._routings = {node.uid: _routing(node, facts) for node in topology.operators}
        self._wires = {
            node.uid: from_arrow_schema(wire_schema(node.schema, node.side_outputs), prefer_timestamp_ntz=True)
            for node in topology.operators
        }

    def run(
        self,
        frame: DataFrame,
        batch_id: BatchId,
        starts: Mapping[OperatorUid, Sequence[SubtaskStart]],
        *,
        time: JobTime | None = None,
        timers: Mapping[OperatorUid, Sequence[NextTimers | None]] | None = None,
    ) -> BatchOutcome:
        """Processes a batch and stages its output; on any failure nothing of it is left but orphans that nothing names.

        Args:
            frame: The batch's records, as foreachBatch gives them.
            batch_id: Its number.
            starts: Where the subtasks of each operator start from, by index.
            time: The job's time before the batch.
            timers: What is known of each subtask's timers.

        Raises:
            KeyscaleError: The user's function failed, a task did, a sink did, or the reports are not complete.
        """
        run = uuid.uuid4().hex
        self._collector.clear()
        plan = self._plan(run, batch_id, starts, time or JobTime(), timers or {})
        self._spark.sparkContext.setJobDescription(f"batch {batch_id}")
        tokens: dict[OperatorUid, str] = {}
        try:
            with self._frames(frame, plan) as frames:
                for node in self._topology.sinks:
                    context = self._sink_context(node, batch_id, run)
                    tokens[node.uid] = node.sink.prepare(frames[node.input], context)
            uids = [node.uid for node in self._topology.operators]
            reports = complete_reports(self._collector.reports_of(run), uids, self._facts.parallelism)
        except Exception as failure:
            self.discard(tokens)
            typed = typed_failure(failure)
            if typed is failure:
                raise
            raise typed from failure
        finally:
            self._spark.sparkContext.setJobDescription("")
        return BatchOutcome(
            changelogs={uid: tuple(report.changelog for report in found) for uid, found in reports.items()},
            sinks=tokens,
            input_records=sum(report.input_records for uid in self._first_uids() for report in reports[uid]),
            output_records=sum(report.output_records for uid in self._last_uids() for report in reports[uid]),
            reports=reports,
            times=plan.times,
        )

    def empty_frame(self) -> DataFrame:
        """The source's frame without a record, for a batch that has no input but time.

        It is no local relation, which Spark would see to be empty, and leave out all that comes after it.
        """
        source = self._topology.source
        schema = from_arrow_schema(source.schema, prefer_timestamp_ntz=True)
        return self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), schema)

    def is_due(self, time: JobTime, timers: Mapping[OperatorUid, Sequence[NextTimers | None]]) -> bool:
        """Whether a batch that begins now would fire timers, whatever its input is."""
        times = batch_times(self._topology, time, self._now_ms())
        return any(any(self._due(node, times, timers)) for node in self._topology.operators)

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

    def _plan(
        self,
        run: str,
        batch_id: BatchId,
        starts: Mapping[OperatorUid, Sequence[SubtaskStart]],
        time: JobTime,
        timers: Mapping[OperatorUid, Sequence[NextTimers | None]],
    ) -> _BatchPlan:
        times = batch_times(self._topology, time, self._now_ms())
        due = {node.uid: self._due(node, times, timers) for node in self._topology.operators}
        return _BatchPlan(run, batch_id, starts, times, due)

    def _due(
        self,
        node: OperatorNode,
        times: Mapping[OperatorUid, BatchTime],
        timers: Mapping[OperatorUid, Sequence[NextTimers | None]],
    ) -> tuple[bool, ...]:
        known = timers.get(node.uid, (None,) * self._facts.parallelism)
        return due_subtasks(node, times[node.uid], known)

    def _now_ms(self) -> int:
        self._processing_time_ms = max(self._processing_time_ms, now_ms())  # a clock that is set back stops
        return self._processing_time_ms

    @contextlib.contextmanager
    def _frames(self, source: DataFrame, plan: _BatchPlan) -> Iterator[dict[NodeId, DataFrame]]:
        """The frame that each node puts out; those that are read more than once are kept until the end."""
        frames: dict[NodeId, DataFrame] = {}
        wires: dict[NodeId, DataFrame] = {}
        kept: list[DataFrame] = []
        try:
            for node in self._topology.nodes:
                if isinstance(node, SinkNode):
                    continue
                if isinstance(node, SourceNode):
                    frame = source
                elif isinstance(node, TransformNode):
                    with user_code():
                        frame = node.apply(frames[node.input])
                elif isinstance(node, SideOutputNode):
                    frame = side_output(wires[node.input], node.tag, self._side_outputs_of(node.input))
                else:
                    frame = self._operator_frame(node, frames[node.input], plan)
                    if node.side_outputs:
                        wires[node.id] = frame.persist(StorageLevel.MEMORY_AND_DISK)
                        kept.append(frame)
                        frames[node.id] = main_output(frame)
                        continue
                if self._is_read_repeatedly(node.id):
                    frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
                    kept.append(frame)
                frames[node.id] = frame
            yield frames
        finally:
            for frame in kept:
                frame.unpersist()

    def _side_outputs_of(self, operator: NodeId) -> Mapping[str, pa.Schema]:
        node = self._topology.nodes[operator]
        return node.side_outputs if isinstance(node, OperatorNode) else {}

    def _operator_frame(self, node: OperatorNode, frame: DataFrame, plan: _BatchPlan) -> DataFrame:
        specs = self._specs[node.uid]
        task = OperatorTask(
            run=plan.run,
            batch_id=plan.batch_id,
            specs=tuple(specs),
            starts=tuple(plan.starts[node.uid]),
            logic=node.logic,
            facts=subtask_facts(node, tuple(specs)),
            store_url=self._facts.store_url,
            local_root=str(self._facts.local_root),
            store_outage_max_ms=self._facts.store_outage_max_ms,
            time=plan.times[node.uid],
            due=plan.due[node.uid],
            reports=self._collector.accumulator,
        )
        routed = self._routings[node.uid].mark(frame)
        return self._anchor.hold(routed).mapInArrow(task.run_partition, self._wires[node.uid])

    def _is_read_repeatedly(self, node: NodeId) -> bool:
        consumers = self._topology.consumers(node)
        return len(consumers) > 1 or any(
            isinstance(reader, SinkNode) and reader.sink.reads_repeatedly for reader in consumers
        )

    def _sink_context(self, node: SinkNode, batch_id: BatchId, unique: str) -> SinkContext:
        return SinkContext(self._facts.job_id, node.uid, batch_id, self._facts.attempt, unique)

    def _first_uids(self) -> set[OperatorUid]:
        return {node.uid for node in self._topology.operators if not self._topology.operator_before(node.input)}

    def _last_uids(self) -> set[OperatorUid]:
        before = (self._topology.operator_before(node.input) for node in self._topology.sinks)
        return {node.uid for node in before if node is not None}


def _routing(node: OperatorNode, facts: RunFacts) -> Routing:
    return Routing.of(
        node.key_columns,
        max_parallelism=facts.max_parallelism,
        parallelism=facts.parallelism,
        hash_id=facts.hash_id,
    )


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
