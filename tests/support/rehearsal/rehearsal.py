"""A whole job in one process and without Spark: all that Keyscale does of it, with RocksDB, log, checkpoints and sinks.

The graph is a job's own. Spark's parts are played: the query hands over given batches, tasks run one after the other,
and transforms are applied by whoever rehearses. A rehearsal of many jobs at many parallelisms takes seconds.
"""

from __future__ import annotations

import hashlib
import queue
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc

from keyscale.identifiers import JobId, SubtaskIndex
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
from keyscale.jobs.protocol.messages import Command, ReservedAttempt
from keyscale.jobs.protocol.specification import CheckpointSettings
from keyscale.jobs.runtime.batch import runner
from keyscale.jobs.runtime.batch.runner import BatchRunner
from keyscale.jobs.runtime.batch.shipped_logic import ShippedLogic
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.control.followed_settings import FollowedSettings
from keyscale.jobs.runtime.driver import execution, live_rescale
from keyscale.jobs.runtime.driver.execution import Execution, RunContext
from keyscale.jobs.runtime.driver.live_rescale import LiveRescale, carry_out
from keyscale.jobs.runtime.driver.run_outcome import RunOutcomeBox
from keyscale.jobs.runtime.executor.worker import open_stores
from keyscale.jobs.spark_internals.affinity import SUBTASK_COLUMN
from keyscale.state.keys.hashing import hash_codes
from keyscale.state.keys.key_groups import assign_to_key_groups
from keyscale.state.objects.local_store import LocalObjectStore
from keyscale.vocabulary import CommandKind, KeyGroupDivision
from tests.support.drivers.assignments import assignment as new_assignment
from tests.support.rehearsal.rehearsed_sink import RehearsedSink
from tests.support.rehearsal.rehearsed_spark import (
    RehearsedPlacement,
    RehearsedQuery,
    RehearsedSession,
    RehearsedSources,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from keyscale.identifiers import OperatorUid
    from keyscale.jobs.graph.nodes import NodeId
    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.runtime.driver.batch_loop import BatchLoop
    from keyscale.jobs.runtime.driver.checkpoints import Checkpoints
    from keyscale.state.documents.job_counters import JobCounters
    from keyscale.state.documents.job_time import JobTime
    from keyscale.state.keys.hashing import HashId
    from keyscale.state.keys.key_group_ranges import KeyGroupRanges

JOB = JobId("rehearsed")
MAX_PARALLELISM = 16
Transform: TypeAlias = "Callable[[TransformNode, pa.Table], pa.Table]"


def _unchanged(_node: TransformNode, table: pa.Table) -> pa.Table:
    return table


class RehearsedRunner(BatchRunner):
    """A `BatchRunner` whose batches are tables: tasks run here and now, one after the other.

    Args:
        given: As of `BatchRunner`.
        transform: Applies a stateless step to a table.
        parts: As of `BatchRunner`.
    """

    def __init__(self, *given: Any, transform: Transform, **parts: Any) -> None:
        super().__init__(*given, **parts)
        self._transform = transform

    def of_query(self, stream: Any) -> Any:
        return stream

    def rehearse(self) -> None:
        return

    def rehearse_input(self) -> None:
        return

    def _stage(self, frame: Any, plan: Any, tokens: dict[OperatorUid, str]) -> None:
        def run(node: OperatorNode, routed: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
            task = self._task(plan, node, b"")
            made: list[pa.RecordBatch] = []
            for index in range(self._info.parallelism):
                mine = [batch.filter(pc.equal(batch.column(SUBTASK_COLUMN), index)) for batch in routed]
                made.extend(task._run(SubtaskIndex(index), iter(mine)))  # a task without its TaskContext
            return made

        tables = sink_inputs(self._topology, frame, self._info, self._transform, run)
        for node in self._topology.sinks:
            context = self._sink_context(node, plan.batch_id, plan.run)
            tokens[node.uid] = node.sink.prepare(cast("Any", tables[node.uid]), context)


def sink_inputs(
    topology: Topology,
    records: pa.Table | None,
    info: Routed,
    transform: Transform,
    run: Callable[[OperatorNode, list[pa.RecordBatch]], list[pa.RecordBatch]],
) -> dict[OperatorUid, pa.Table]:
    """Plays the graph over one batch of the only source; returns the input of each sink.

    `run` runs all subtasks of an operator over its routed records.
    """
    (source,) = topology.sources
    tables: dict[NodeId, pa.Table] = {}
    sides: dict[tuple[NodeId, str], pa.Table] = {}
    inputs: dict[OperatorUid, pa.Table] = {}
    for node in topology.nodes:
        if isinstance(node, SourceNode):
            tables[node.id] = source.schema.empty_table() if records is None else records
        elif isinstance(node, TransformNode):
            tables[node.id] = transform(node, tables[node.input]).cast(node.schema)
        elif isinstance(node, TimestampsNode | UnionNode):
            tables[node.id] = pa.concat_tables(tables[each] for each in node.inputs)
        elif isinstance(node, SideOutputNode):
            tables[node.id] = sides[node.input, node.tag]
        elif isinstance(node, OperatorNode):
            outputs = _outputs_of(node, run(node, routed(node, tables[node.input], info)))
            tables[node.id] = outputs[""]
            sides |= {(node.id, tag): outputs[tag] for tag in node.side_outputs}
        else:
            inputs[node.uid] = tables[node.input]
    return inputs


class Routed(Protocol):
    """The numbers that say where a record goes."""

    ranges: KeyGroupRanges
    hash_id: HashId


def routed(node: OperatorNode, table: pa.Table, info: Routed) -> list[pa.RecordBatch]:
    """Returns an operator's records with their key groups and subtasks."""
    if not table.num_rows:
        return []
    (records,) = table.combine_chunks().to_batches()
    codes = hash_codes([records.column(name) for name in node.key_columns], info.hash_id)
    groups = assign_to_key_groups(codes, info.ranges.max_parallelism)
    subtasks = [info.ranges.subtask_of(group) for group in groups.tolist()]
    with_groups = records.append_column(KEY_GROUP_COLUMN, pa.array(groups, pa.int32()))
    return [with_groups.append_column(SUBTASK_COLUMN, pa.array(subtasks, pa.int32()))]


def _outputs_of(node: OperatorNode, made: list[pa.RecordBatch]) -> dict[str, pa.Table]:
    """Sorts the emitted records by output; "" is the main one."""
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


class _Reporter:
    """Drops all reports."""

    def report_checkpoint(self, _: object) -> None:
        return

    def follow(self, _: object) -> None:
        return

    def nudge(self) -> None:
        return


@dataclass(slots=True)
class Rehearsal:
    """A job that is run, killed, restored and rescaled.

    Attributes:
        directory: Of its object store, its outputs and its local files.
        topology: The job's graph.
        batches: Its whole input.
        transform: Applies the graph's stateless steps.
        attempt: The one that runs; 0 before the first.
        division: How its rescales divide key groups.
    """

    directory: Path
    topology: Topology
    batches: Sequence[pa.Table]
    transform: Transform
    attempt: int = 0
    division: KeyGroupDivision = KeyGroupDivision.BY_COUNT
    _query: RehearsedQuery = field(init=False)
    _loop: BatchLoop = field(init=False)
    _checkpoints: Checkpoints = field(init=False)
    _execution: Execution = field(init=False)

    def __post_init__(self) -> None:
        nodes = [
            replace(node, sink=RehearsedSink(self.directory / "out" / node.uid)) if isinstance(node, SinkNode) else node
            for node in self.topology.nodes
        ]
        self.topology = replace(self.topology, nodes=tuple(nodes))

    def _read(self, query: RehearsedQuery) -> Topology:
        """Returns the job's graph, whose sources a query reads."""
        nodes = [
            replace(node, frame=cast("Any", query)) if isinstance(node, SourceNode) else node
            for node in self.topology.nodes
        ]
        return replace(self.topology, nodes=tuple(nodes))

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
        assignment = new_assignment(
            job_id=JOB,
            job_name=JOB,
            attempt=self.attempt,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            key_group_division=self.division,
            artifact_filename="none.py",
            artifact_sha256=hashlib.sha256(b"").hexdigest(),
            store_url=store.url,
            restore_from=restore_from,
            time_reset_after=time_reset_after,
            checkpoints=CheckpointSettings(retained_count=3, timeout_ms=60_000),
        )
        session, status = cast("Any", RehearsedSession()), DriverStatus()
        context = RunContext(
            spark=session,
            assignment=assignment,
            store=store,
            status=status,
            settings=FollowedSettings(assignment, status),
            outcome_box=RunOutcomeBox(),
            commands=queue.SimpleQueue(),
            reporter=cast(
                "Any", SimpleNamespace(report_checkpoint=lambda _: None, nudge=lambda: None, follow=lambda _: None)
            ),
            work_dir=self.directory / f"work-{self.attempt}",
            local_root=self.directory / local,
            rescale=carry_out,
        )
        self._query = RehearsedQuery(self.batches)
        with self._without_spark():
            self._run(Execution(context, self._read(self._query)))

    def _run(self, execution: Execution) -> None:
        """Begins an attempt as the execution does, up to its query."""
        context, prepared = execution.context, execution._prepared
        opened = execution._open()
        if prepared is None:
            placement = cast("Any", RehearsedPlacement(context.assignment.spec.parallelism))
            shipped = ShippedLogic(context.spark.sparkContext, self.topology)
        else:
            placement, shipped = prepared.placement, prepared.shipped
        opened, self._loop = execution._begun(opened, placement, shipped)
        if prepared is None:
            open_stores().close()  # this process also played the dead one, whose files must stay as it left them
        self._loop.start()
        query = cast("Any", SimpleNamespace(read_on=lambda: None))
        self._checkpoints = execution._coordinator(opened, placement, shipped, self._loop, query)._checkpoints
        self._execution = execution

    def rescale(
        self, parallelism: int, *, meanwhile: int = 0, before_switch: Callable[[], None] = lambda: None
    ) -> None:
        """Rescales the job without a stop.

        Args:
            parallelism: Subtasks of the next attempt.
            meanwhile: Batches that run between the preparation and the switch.
            before_switch: Called when batches are held.
        """
        context = self._execution.context
        changed = {"parallelism": parallelism, "key_group_division": self.division}
        assignment = context.assignment.model_copy(
            update={"attempt": self.attempt + 1, "spec": context.assignment.spec.model_copy(update=changed)}
        )
        command = Command(
            id="rescale",
            kind=CommandKind.RESCALE,
            next_attempt=ReservedAttempt(token="token", assignment=assignment),  # noqa: S106 - a rehearsal has no server
        )
        context.status.has_slots(MAX_PARALLELISM)
        failpoint = live_rescale.failpoint

        def run_meanwhile(moment: str) -> None:
            if moment == "rescale.prepared":
                self.run_batches(min(meanwhile, len(self.batches) - self._query.next_batch))
            if moment == "rescale.held":
                before_switch()
            failpoint(moment)

        with self._without_spark(), patch.object(live_rescale, "failpoint", run_meanwhile):
            LiveRescale(self._execution, self._loop, self._checkpoints, command).run()
            assert context.outcome_box.reopen() is None
            assert self._execution.successor is not None
            self.attempt += 1
            self._run(self._execution.successor)

    @contextmanager
    def _without_spark(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, part in parts_without_spark(self.transform):
                stack.enter_context(patch.object(owner, name, part))
            yield

    @property
    def ranges(self) -> KeyGroupRanges:
        """The key groups of each subtask."""
        return self._execution._info.ranges

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


def parts_without_spark(transform: Transform = _unchanged) -> list[tuple[Any, str, object]]:
    """Returns what is put in the places of the parts of an execution that need Spark: owner, name, and part."""
    return [
        (execution, "PlacementDataset", RehearsedPlacement),
        (execution, "BatchRunner", partial(RehearsedRunner, transform=transform)),
        (execution, "JobSources", RehearsedSources),
        (execution, "parallelism_of_slots", lambda _: MAX_PARALLELISM),
        (runner, "KeyedRecords", lambda *_, **__: None),
    ]
