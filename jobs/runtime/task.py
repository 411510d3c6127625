"""One subtask's part of one batch, in the executor's Python worker: open the state, run the function, write the changelog."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

from jobs.errors import IncompleteReportsError
from jobs.runtime.affinity import PARTITIONS_MIN, SUBTASK_COLUMN
from jobs.runtime.body import SecondFacts, SubtaskFacts, SubtaskProgress, run_subtask
from jobs.runtime.broadcast_rows import from_stream
from jobs.runtime.columns import combined
from jobs.runtime.failures import CarriedFailure, TaskOrigin, origin_of
from jobs.runtime.patience import Patience, PatientStore
from jobs.runtime.reports import TaskReport
from jobs.runtime.side_outputs import to_wire
from jobs.runtime.worker import executor_name, object_store, settle, warm_stores_for
from jobs.timers import NO_WATERMARK_MS
from state.errors import KeyscaleError
from state.identifiers import SubtaskIndex
from state.syncpoint import reach
from state.ttl import BatchClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.accumulators import Accumulator

    from jobs.runtime.body import OperatorLogic
    from jobs.runtime.watermarks import BatchTime
    from jobs.sinks import DirectOutput
    from jobs.topology import OperatorNode
    from state.identifiers import BatchId
    from state.restore import RestorePlan
    from state.subtask import SubtaskSpec, SubtaskStore
    from state.version import StateVersion


@dataclass(frozen=True, slots=True)
class SubtaskStart:
    """Where a subtask starts a batch from: exactly this version, which the plan gives if the local files do not."""

    version: StateVersion
    plan: RestorePlan


@dataclass(frozen=True, slots=True)
class OperatorTask:
    """All that the tasks of one operator need for one batch; pickled into them.

    Attributes:
        run: Identifies this try of the batch.
        batch_id: The batch.
        specs: The operator's subtasks, by index.
        starts: Where each starts from, by index.
        logic: What they do.
        facts: What the function is told; the subtask is filled in by each task.
        store_url: Root of the object store.
        local_root: Directory of local state on any host.
        time: The operator's times in this batch.
        due: Which subtasks have timers to fire, by index: they run without records, too.
        reports: Where to report.
        store_outage_max_ms: For how long an object store that is away is waited for.
        broadcast: Records of the broadcast stream, which every subtask gets, as an Arrow stream; empty where there are none.
        output: Where they write their rows themselves; None: they hand them to Spark.
    """

    run: str
    batch_id: BatchId
    specs: tuple[SubtaskSpec, ...]
    starts: tuple[SubtaskStart, ...]
    logic: OperatorLogic
    facts: SubtaskFacts
    store_url: str
    local_root: str
    time: BatchTime
    due: tuple[bool, ...]
    reports: Accumulator[list[TaskReport]]
    store_outage_max_ms: int = 0
    broadcast: bytes = b""
    output: DirectOutput | None = None

    def run_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes one partition, which is one subtask. Reports last of all, and only when all went well.

        Raises:
            CarriedFailure: An error of ours or the user's, for `typed_failure` on the driver.
        """
        settle()
        index = _partition_id()
        try:
            yield from self._run(index, batches)
        except KeyscaleError as error:
            origin = TaskOrigin(self.facts.operator_uid, index, origin_of(error).user_traceback)
            raise CarriedFailure(error, origin) from None

    def _run(self, index: SubtaskIndex, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with_rows = combined(batches)
        first = next(with_rows, None)
        if index >= len(self.specs):
            if index < PARTITIONS_MIN and first is None:  # the spare partition beside a single subtask
                return
            raise IncompleteReportsError(f"operator {self.facts.operator_uid} is run more than once in one Spark job")
        if first is None and not self.due[index]:  # nothing can change: the state is not even opened
            self.reports.add([TaskReport(self.run, self.facts.operator_uid, index)])
            return
        began = time.perf_counter()
        start, local_root = self.starts[index], Path(self.local_root)
        records_ms = NO_WATERMARK_MS if self.time.records_ms is None else self.time.records_ms
        clock = BatchClock(processing_time_ms=self.time.processing_ms, event_time_ms=records_ms)
        patience = Patience(self.store_outage_max_ms)
        objects, warm = PatientStore(object_store(self.store_url), patience), warm_stores_for(index)
        store = warm.take(self.specs[index], start.version, start.plan, local_root, objects, clock=clock)
        source = store.source
        try:
            opened = time.perf_counter()
            progress = SubtaskProgress()
            outputs = self._process(index, store, chain([] if first is None else [first], with_rows), progress)
            part = None
            if self.output is None:
                yield from outputs
            else:
                part = self.output.write(index, outputs)
                reach("task.part_written")
            processed = time.perf_counter()
            digest = store.operator.broadcast_digest() if self.broadcast else None
            changelog = store.finish_batch(self.batch_id, uuid.uuid4().hex)
            state_bytes = store.engine.size_bytes()
        except BaseException:  # GeneratorExit, too: whoever reads the rows stopped early
            store.abandon()
            raise
        warm.give_back(store)
        finished = time.perf_counter()
        report = TaskReport(
            run=self.run,
            uid=self.facts.operator_uid,
            subtask=index,
            changelog=changelog,
            input_records=progress.input_records,
            output_records=progress.output_records,
            open_ms=(opened - began) * 1000,
            process_ms=(processed - opened) * 1000,
            finish_ms=(finished - processed) * 1000,
            latest_event_ms=progress.latest_event_ms,
            latest_of_origins=progress.latest_of_origins,
            next_timers=progress.next_timers,
            executor=executor_name(),
            source=source,
            state_bytes=state_bytes,
            broadcast_digest=digest,
            part=part,
        )
        self.reports.add([report])

    def _process(
        self, index: SubtaskIndex, store: SubtaskStore, batches: Iterator[pa.RecordBatch], progress: SubtaskProgress
    ) -> Iterator[pa.RecordBatch]:
        facts = replace(self.facts, subtask=index)
        outputs = run_subtask(
            self.logic,
            store.keyed,
            facts,
            _spilling(_placed(batches, index), store, self.batch_id),
            progress=progress,
            watermark_ms=self.time.timers_ms,
            operator=store.operator,
            broadcast=from_stream(self.broadcast),
        )
        return to_wire(outputs, facts)


@dataclass(frozen=True, slots=True)
class TasksWithoutRecords:
    """What operators do in a batch that brings them no records, for `run_anchored`: one after the other, writing their rows themselves."""

    tasks: tuple[OperatorTask, ...]

    def __call__(self, subtask: SubtaskIndex) -> bytes:
        for task in self.tasks:
            for _ in task.run_partition(iter(())):
                raise IncompleteReportsError(
                    f"operator {task.facts.operator_uid}[{subtask}] has rows that nobody reads"
                )
        return b""


def subtask_facts(node: OperatorNode, specs: tuple[SubtaskSpec, ...], origins: tuple[str, ...] = ()) -> SubtaskFacts:
    """What the functions of an operator are told, still without the subtask; `origins` as in SubtaskFacts."""
    spec = specs[0]
    return SubtaskFacts(
        operator_uid=node.uid,
        subtask=SubtaskIndex(0),
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        attempt=spec.attempt,
        input_columns=tuple(node.input_schema.names),
        key_columns=node.key_columns,
        timestamp_column=node.timestamp_column,
        output_schema=node.schema,
        side_outputs=node.side_outputs,
        hash_id=spec.hash_id,
        broadcast_columns=tuple(node.broadcast_schema.names) if node.broadcast_schema is not None else (),
        origins=origins,
        second=None
        if node.second is None
        else SecondFacts(tuple(node.second.schema.names), node.second.key_columns, node.second.timestamp_column),
    )


def _placed(batches: Iterator[pa.RecordBatch], index: SubtaskIndex) -> Iterator[pa.RecordBatch]:
    """A row in another subtask's partition would change state that is not there: one look a batch is cheap."""
    for batch in batches:
        there = batch.column(SUBTASK_COLUMN)[0].as_py()
        if there != index:
            raise IncompleteReportsError(f"partition {index} was given rows of subtask {there}")
        yield batch
        reach("task-mid-batch")


def _spilling(batches: Iterator[pa.RecordBatch], store: SubtaskStore, batch_id: BatchId) -> Iterator[pa.RecordBatch]:
    """Record batches, with the state's changes brought into files between two of them when they are too many for memory."""
    for batch in batches:
        yield batch
        store.spill_if_large(batch_id)


def _partition_id() -> SubtaskIndex:
    context = TaskContext.get()
    assert context is not None  # noqa: S101 - always there in a task
    return SubtaskIndex(context.partitionId())
