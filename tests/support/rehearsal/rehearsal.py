"""A whole job in one process and without Spark: all that Keyscale does of it, with RocksDB, log, checkpoints and sinks.

The graph is a job's own. Spark's parts are played: the query hands over given batches, tasks run one after the other,
and transforms are applied by whoever rehearses. A rehearsal of many jobs at many parallelisms takes seconds.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from keyscale.clock import now_ms
from keyscale.jobs.graph.nodes import (
    OperatorNode,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TimestampsNode,
    TransformNode,
    UnionNode,
)
from keyscale.jobs.operators.operator_contract import KEY_GROUP_COLUMN
from keyscale.jobs.protocol.messages import Assignment
from keyscale.jobs.runtime.batch.batch_outcome import BatchOutcome
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.batch.runner import RunInfo, subtask_specs
from keyscale.jobs.runtime.batch.shipment import Shipment
from keyscale.jobs.runtime.batch.watermarks import batch_times, due_subtasks
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver.attempt import open_attempt
from keyscale.jobs.runtime.driver.batch_loop import BatchLoop
from keyscale.jobs.runtime.driver.checkpoints import Checkpoints, SnapshotContext
from keyscale.jobs.runtime.driver.execution import (
    existing_checkpoints,
    next_checkpoint_id,
    operator_declarations,
    with_schemas,
)
from keyscale.jobs.runtime.executor.subtask_jobs import RestoreSubtasks, SubtaskPlaces
from keyscale.jobs.runtime.executor.task import OperatorTask, subtask_info
from keyscale.jobs.runtime.executor.task_reports import TaskReport, complete_reports
from keyscale.jobs.runtime.executor.worker import warm_stores
from keyscale.jobs.sinks.sink import SinkContext, Takeover
from keyscale.jobs.spark_internals.affinity import SUBTASK_COLUMN
from keyscale.state.identifiers import Attempt, BatchId, JobId, OperatorUid, SubtaskIndex
from keyscale.state.keys.hashing import HashId, hash_codes
from keyscale.state.keys.key_groups import assign_to_key_groups, subtask_for_key_group
from keyscale.state.layout import Layout
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.rehearsal.rehearsed_sink import RehearsedSink
from tests.support.rehearsal.rehearsed_spark import RehearsedAnchor, RehearsedContext, RehearsedQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from keyscale.jobs.functions.timer_service import NextTimers
    from keyscale.jobs.graph.nodes import NodeId
    from keyscale.jobs.graph.topology import Topology
    from keyscale.state.documents.job_counters import JobCounters
    from keyscale.state.documents.job_time import JobTime
    from keyscale.state.local.subtask_spec import SubtaskSpec

JOB = JobId("rehearsed")
MAX_PARALLELISM = 16


class _Reports:
    """A Spark accumulator of task reports."""

    def __init__(self) -> None:
        self.value: list[TaskReport] = []

    def add(self, reports: list[TaskReport]) -> None:
        self.value.extend(reports)


@dataclass(slots=True)
class RehearsedRunner:
    """Plays `BatchRunner`, on tables: the same plan, tasks and outcome.

    Attributes:
        topology: With RehearsedSinks.
        info: Of the run.
        specs: The subtasks of each operator.
        transform: Applies a stateless step to a table.
        shipment: The parts of the run that are shipped once.
    """

    topology: Topology
    info: RunInfo
    specs: Mapping[OperatorUid, Sequence[SubtaskSpec]]
    transform: Callable[[TransformNode, pa.Table], pa.Table]
    shipment: Shipment
    _processing_time_ms: int = 0

    def run(
        self,
        frame: pa.Table | None,
        committed: CommittedState,
        *,
        is_at_end: bool = False,
    ) -> BatchOutcome:
        batch_id = BatchId(committed.batch_id + 1)
        (source,) = self.topology.sources
        frame = source.schema.empty_table() if frame is None else frame
        times = batch_times(self.topology, committed.time, self._now_ms(), is_at_end=is_at_end)
        reports, run = _Reports(), uuid.uuid4().hex
        tables: dict[NodeId, pa.Table] = {}
        sides: dict[tuple[NodeId, str], pa.Table] = {}
        tokens: dict[OperatorUid, str] = {}
        for node in self.topology.nodes:
            if isinstance(node, SourceNode):
                tables[node.id] = frame
            elif isinstance(node, TransformNode):
                tables[node.id] = self.transform(node, tables[node.input]).cast(node.schema)
            elif isinstance(node, TimestampsNode | UnionNode):
                tables[node.id] = pa.concat_tables(tables[each] for each in node.inputs)
            elif isinstance(node, SideOutputNode):
                tables[node.id] = sides[node.input, node.tag]
            elif isinstance(node, OperatorNode):
                task = self._task(node, run, committed, reports)
                due = self._due(node, times[node.uid], committed.timers)
                due = tuple(is_due or task.starts.must_all_run for is_due in due)
                task = replace(task, time=times[node.uid], due=due)
                outputs = self._run_operator(node, task, tables[node.input])
                tables[node.id] = outputs[""]
                sides |= {(node.id, tag): outputs[tag] for tag in node.side_outputs}
            else:
                tokens[node.uid] = node.sink.prepare(cast("Any", tables[node.input]), self._sink(node.uid, batch_id))
        uids = [node.uid for node in self.topology.operators]
        complete = complete_reports(reports.value, uids, self.info.parallelism)
        return BatchOutcome(
            changelogs={uid: tuple(report.changelog for report in found) for uid, found in complete.items()},
            sinks=tokens,
            input_records=frame.num_rows,
            output_records=0,
            reports=complete,
            times=times,
        )

    def is_due(
        self, time: JobTime, timers: Mapping[OperatorUid, Sequence[NextTimers | None]], *, is_at_end: bool = False
    ) -> bool:
        times = batch_times(self.topology, time, self._now_ms(), is_at_end=is_at_end)
        return any(any(self._due(node, times[node.uid], timers)) for node in self.topology.operators)

    def publish(self, tokens: Mapping[OperatorUid, str]) -> None:
        for node in self.topology.sinks:
            if node.uid in tokens:
                node.sink.publish(tokens[node.uid])

    def discard(self, tokens: Mapping[OperatorUid, str]) -> None:
        for node in self.topology.sinks:
            if node.uid in tokens:
                node.sink.discard(tokens[node.uid])

    def take_over(self, committed: BatchId) -> None:
        for node in self.topology.sinks:
            if isinstance(node.sink, Takeover):
                node.sink.take_over(self._sink(node.uid, committed))

    def recover(self, committed: BatchId) -> None:
        for node in self.topology.sinks:
            node.sink.recover(self._sink(node.uid, committed))

    def _due(
        self, node: OperatorNode, time: Any, timers: Mapping[OperatorUid, Sequence[NextTimers | None]]
    ) -> tuple[bool, ...]:
        return due_subtasks(node, time, timers.get(node.uid, (None,) * self.info.parallelism))

    def _now_ms(self) -> int:
        self._processing_time_ms = max(self._processing_time_ms, now_ms())
        return self._processing_time_ms

    def _sink(self, uid: OperatorUid, batch_id: BatchId) -> SinkContext:
        return SinkContext(JOB, uid, batch_id, self.info.attempt, uuid.uuid4().hex)

    def _task(
        self,
        node: OperatorNode,
        run: str,
        committed: CommittedState,
        reports: _Reports,
    ) -> OperatorTask:
        spec = self.specs[node.uid][0]
        return OperatorTask(
            run=run,
            batch_id=BatchId(committed.batch_id + 1),
            spec=spec,
            starts=self.shipment.starts(committed)[node.uid],
            logic=self.shipment.logic[node.uid],
            info=subtask_info(node, spec),
            store_url=self.info.store_url,
            local_root=str(self.info.local_root),
            time=cast("Any", None),
            due=(),
            reports=cast("Any", reports),
        )

    def _run_operator(self, node: OperatorNode, task: OperatorTask, table: pa.Table) -> dict[str, pa.Table]:
        """Routes the records, runs all subtasks, and sorts the emitted records by output; "" is the main one."""
        parallelism, max_parallelism = self.info.parallelism, self.info.max_parallelism
        batches: list[pa.RecordBatch] = []
        if table.num_rows:
            (records,) = table.combine_chunks().to_batches()
            codes = hash_codes([records.column(name) for name in node.key_columns], self.info.hash_id)
            groups = assign_to_key_groups(codes, max_parallelism)
            subtasks = [subtask_for_key_group(group, max_parallelism, parallelism) for group in groups.tolist()]
            routed = records.append_column(KEY_GROUP_COLUMN, pa.array(groups, pa.int32()))
            batches = [routed.append_column(SUBTASK_COLUMN, pa.array(subtasks, pa.int32()))]
        made: list[pa.RecordBatch] = []
        for index in range(parallelism):
            mine = [batch.filter(pc.equal(batch.column(SUBTASK_COLUMN), index)) for batch in batches]
            made.extend(task._run(SubtaskIndex(index), iter(mine)))  # a task without its TaskContext
        schemas = {"": node.schema, **node.side_outputs}
        if not node.side_outputs:
            return {"": pa.Table.from_batches(made, node.schema)}
        places = enumerate(schemas.items())
        return {tag: pa.Table.from_batches(_of_output(made, at, schema), schema) for at, (tag, schema) in places}


def _of_output(wire: Sequence[pa.RecordBatch], place: int, schema: pa.Schema) -> list[pa.RecordBatch]:
    mine = [batch.filter(pc.equal(batch.column("__output"), place)) for batch in wire]
    return [
        pa.RecordBatch.from_arrays(batch.column(f"__output_{place}").flatten(), schema=schema)
        for batch in mine
        if batch.num_rows
    ]


@dataclass(slots=True)
class Rehearsal:
    """A job that is run, killed, restored and rescaled.

    Attributes:
        directory: Of its object store, its outputs and its local files.
        topology: The job's graph.
        batches: Its whole input.
        transform: Applies the graph's stateless steps.
        attempt: The one that runs; 0 before the first.
    """

    directory: Path
    topology: Topology
    batches: Sequence[pa.Table]
    transform: Callable[[TransformNode, pa.Table], pa.Table]
    attempt: int = 0
    _query: RehearsedQuery = field(init=False)
    _loop: BatchLoop = field(init=False)
    _checkpoints: Checkpoints = field(init=False)

    def __post_init__(self) -> None:
        nodes = [
            replace(node, sink=RehearsedSink(self.directory / "out" / node.uid)) if isinstance(node, SinkNode) else node
            for node in self.topology.nodes
        ]
        self.topology = replace(self.topology, nodes=tuple(nodes))

    def start(
        self,
        parallelism: int,
        restore_from: str | None = None,
        *,
        local: str = "local",
        time_reset_after: int | None = None,
    ) -> None:
        """Opens the next attempt, which knows nothing of the one before but what the store holds.

        Args:
            parallelism: Subtasks.
            restore_from: A checkpoint's or savepoint's location, as a hint.
            local: Name of the directory of local files: another one is another host.
            time_reset_after: As of an assignment.
        """
        self.attempt += 1
        store = LocalObjectStore(self.directory / "store")
        assignment = Assignment(
            job_id=JOB,
            job_name=JOB,
            attempt=self.attempt,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            artifact_filename="none.py",
            artifact_sha256=hashlib.sha256(b"").hexdigest(),
            store_url=store.url,
            restore_from=restore_from,
            time_reset_after=time_reset_after,
        )
        local_root = self.directory / local
        info = RunInfo(JOB, Attempt(self.attempt), parallelism, MAX_PARALLELISM, HashId.SPARK, store.url, local_root)
        operators = operator_declarations(self.topology)
        sinks = [node.uid for node in self.topology.sinks]
        opened = open_attempt(store, assignment, operators, sinks=sinks)
        specs = {node.uid: subtask_specs(node, info) for node in self.topology.operators}
        places = with_schemas(SubtaskPlaces(specs, store.url, str(local_root)), opened.resume)
        committed = CommittedState.resumed(opened.resume, places.specs, opened.positions, opened.journal.last_position)
        shipment = Shipment(cast("Any", _RehearsedSession.sparkContext), self.topology)
        runner = RehearsedRunner(self.topology, info, places.specs, self.transform, shipment)
        runner.take_over(committed.batch_id)
        runner.publish({OperatorUid(uid): token for uid, token in committed.sinks.items()})
        runner.recover(committed.batch_id)
        for index in range(parallelism):
            RestoreSubtasks(places, shipment.starts(committed))(SubtaskIndex(index))
        warm_stores().close()  # this process also played the dead one, whose files must stay as it left them
        self._query = RehearsedQuery(self.batches)
        self._loop = BatchLoop(
            cast("Any", self._query),
            cast("Any", runner),
            opened,
            committed,
            directory=self.directory / f"positions-{self.attempt}",
            status=DriverStatus(),
            on_failure=lambda _: None,
        )
        self._loop.start()
        layout = Layout(JOB)
        context = SnapshotContext(
            spark=cast("Any", _RehearsedSession()),
            anchor=cast("Any", RehearsedAnchor(parallelism)),
            shipment=shipment,
            info=info,
            operators=operators,
            places=places,
            store=store,
            layout=layout,
            timeout_ms=60_000,
        )
        existing = existing_checkpoints(store, layout)
        self._checkpoints = Checkpoints(
            context=context,
            loop=self._loop,
            report=lambda _: None,
            next_id=next_checkpoint_id(assignment, opened.manifest, existing),
            retained_ids=existing,
            retained_count=3,
            base=opened.manifest,
            input_records=lambda: 0,
        )

    @property
    def is_at_end(self) -> bool:
        return self._query.is_at_end

    @property
    def counters(self) -> JobCounters:
        """The job's counters after its last batch."""
        return self._loop._committed.counters

    @property
    def time(self) -> JobTime:
        """The job's time after its last batch."""
        return self._loop._committed.time

    def run_batches(self, count: int) -> None:
        """Processes the next batches of input."""
        for _ in range(count):
            self._query.run_next()

    def checkpoint(self, savepoint_id: str | None = None, *, batches_wait: bool = False) -> str:
        """Takes a checkpoint, or a savepoint if it is named; returns its location.

        Args:
            savepoint_id: The savepoint's id.
            batches_wait: Batches wait until it is complete, as for one that the job stops with.
        """
        return self._checkpoints.take(savepoint_id, then=(lambda _: None) if batches_wait else None).location

    def drain(self) -> None:
        """Processes all input, and fires all timers that are due by then."""
        while not self.is_at_end:
            self._query.run_next()
        self.fire_timers()

    def fire_timers(self) -> None:
        """Fires all timers that are due now, as an idle job does."""
        while self._loop.fire_timers(wait=True):
            pass

    def output(self, uid: str) -> list[dict[str, Any]]:
        """All that a reader of a sink sees."""
        (sink,) = (node.sink for node in self.topology.sinks if node.uid == uid)
        assert isinstance(sink, RehearsedSink)
        return sink.rows()


class _RehearsedSession:
    sparkContext = RehearsedContext()  # noqa: N815 - Spark's name
