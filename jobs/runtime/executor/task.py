"""One subtask's part of one batch.

A task opens the subtask's state, runs its function, and writes its changelog.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

from keyscale.errors import KeyscaleError
from keyscale.failpoints import failpoint
from keyscale.identifiers import SubtaskIndex
from keyscale.state.doors.keyed import NO_WATERMARK_MS, BatchClock

from ...errors import IncompleteReportsError
from ...functions.function_metrics import FunctionMetrics
from ...functions.subtask_info import SecondInputInfo, SplitInfo, SubtaskInfo
from ...operators.broadcast_rows import from_stream
from ...operators.column_values import combined
from ...operators.failures import CarriedFailure, TaskOrigin, origin_of, user_code
from ...operators.operator_contract import SubtaskProgress, run_subtask
from ...spark_internals.affinity import PARTITIONS_MIN, SUBTASK_COLUMN
from ...spark_internals.worker_processes import executor_name, settle
from ..retries import RetryingStore
from .record_sample import RecordSample
from .side_outputs import to_wire
from .task_reports import TaskReport
from .task_stopwatch import Activity, TaskStopwatch, TimedRetries
from .worker import object_store, open_stores_for, worker_resources
from .worker_stacks import begin_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark import Accumulator

    from keyscale.identifiers import BatchId
    from keyscale.state.doors.subtasks import SubtaskSpec, SubtaskStore

    from ...graph.nodes import OperatorNode
    from ...operators.operator_contract import OperatorLogic
    from ...sinks.sink import DirectOutput
    from ...spark_internals.broadcast_payloads import BroadcastPayload
    from .record_sample import SampleOrder
    from .subtask_starts import ShippedStarts


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The times of an operator's batch, in milliseconds since the epoch.

    Attributes:
        processing_ms: The processing time, which stands still while the batch runs.
        records_ms: The watermark while records are processed: timers of the previous batch fired up to it. None before
            the first watermark.
        timers_ms: The watermark at the end of the batch, up to which timers fire. None before the first watermark.
        is_at_end: Whether the input has ended, so that all event-time timers fire. The watermark stays unchanged: a job
            that starts from the savepoint continues with it.
    """

    processing_ms: int
    records_ms: int | None = None
    timers_ms: int | None = None
    is_at_end: bool = False


@dataclass(frozen=True, slots=True)
class OperatorTask:
    """The data that all tasks of an operator need for a batch.

    It is pickled into each task, and so kept small.

    Attributes:
        run: Identifies this try of the batch.
        batch_id: The batch.
        spec: One of the operator's subtasks; each task fills in its own index.
        starts: Where each subtask starts.
        logic: The operator's logic, which is the same in all batches.
        info: The values that the user's function can ask for; each task fills in its subtask.
        store_url: Root of the object store.
        local_root: Directory of local state on any host.
        time: The operator's times in this batch.
        due: Whether each subtask has timers to fire, by index: such a subtask also runs without records.
        reports: Takes the tasks' reports.
        store_outage_max_ms: How long an operation is retried on an object store that does not answer.
        broadcast: Records of the broadcast stream for every subtask, as an Arrow stream; None without such records.
        output: Where the tasks write their rows directly; None if they emit them to Spark.
        sample: The sample of records to take, if any.
    """

    run: str
    batch_id: BatchId
    spec: SubtaskSpec
    starts: ShippedStarts
    logic: BroadcastPayload
    info: SubtaskInfo
    store_url: str
    local_root: str
    time: BatchTime
    due: tuple[bool, ...]
    reports: Accumulator[list[TaskReport]]
    store_outage_max_ms: int = 0
    broadcast: BroadcastPayload | None = None
    output: DirectOutput | None = None
    sample: SampleOrder | None = None

    def run_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes one partition, which is one subtask.

        It reports at the very end, after complete success.

        Raises:
            CarriedFailure: Any KeyscaleError, in the form that `typed_failure` reads on the driver.
        """
        settle()
        index = _partition_id()
        begin_task(f"operator {self.info.operator_uid}, subtask {index}, batch {self.batch_id}")
        try:
            yield from self._run(index, batches)
        except KeyscaleError as error:
            origin = TaskOrigin(self.info.operator_uid, index, origin_of(error).user_traceback)
            raise CarriedFailure(error, origin) from None

    def _run(self, index: SubtaskIndex, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        watch = TaskStopwatch(Activity.INPUT)
        with_rows = watch.pulled(combined(batches), Activity.INPUT)
        first = next(with_rows, None)
        if index >= self.spec.parallelism:
            if index < PARTITIONS_MIN and first is None:  # the spare partition beside a single subtask
                return
            raise IncompleteReportsError(f"operator {self.info.operator_uid} runs more than once in one Spark job")
        if first is None and not self.due[index]:  # nothing can change, so the state stays closed
            input_ms = watch.ms(Activity.INPUT)
            self.reports.add([TaskReport(self.run, self.info.operator_uid, index, input_ms=input_ms)])
            return
        watch.begin(Activity.OPEN)
        spec, version = replace(self.spec, index=index), self.starts.versions[index]
        records_ms = NO_WATERMARK_MS if self.time.records_ms is None else self.time.records_ms
        clock = BatchClock(processing_time_ms=self.time.processing_ms, event_time_ms=records_ms)
        retries = TimedRetries(self.store_outage_max_ms, stopwatch=watch)
        objects, warm = RetryingStore(object_store(self.store_url), retries), open_stores_for(index)
        plan = self.starts.plan(index, objects, spec.layout)
        store = warm.take(spec, version, plan, Path(self.local_root), objects, clock=clock)
        source = store.source
        try:
            watch.begin(Activity.PROCESS)
            progress, sample = SubtaskProgress(), RecordSample(self.sample)
            records = sample.of_input(chain([] if first is None else [first], with_rows))
            outputs = self._process(index, store, records, progress, sample)
            part = None
            if self.output is None:
                yield from watch.taken(outputs, Activity.OUTPUT)
            else:
                with watch.during(Activity.OUTPUT):
                    part = self.output.write(index, watch.pulled(outputs, Activity.PROCESS))
                failpoint("task.part_written")
            watch.begin(Activity.FINISH)
            digest = store.operator.broadcast_digest() if self.broadcast else None
            changelog = store.finish_batch(self.batch_id, uuid.uuid4().hex)
            state_bytes = store.engine.size_bytes()
        except BaseException as failure:
            if not isinstance(failure, GeneratorExit):  # the reader of the rows stops early this way
                worker_resources(self.info.operator_uid).clear()  # a resource may be broken
            store.abandon()
            raise
        warm.give_back(store)
        warm.abandon_older(spec)
        report = TaskReport(
            run=self.run,
            uid=self.info.operator_uid,
            subtask=index,
            changelog=changelog,
            read_records=progress.input_records,
            records_of_origins=progress.records_of_origins,
            write_records=progress.output_records,
            input_ms=watch.ms(Activity.INPUT),
            open_ms=watch.ms(Activity.OPEN),
            process_ms=watch.ms(Activity.PROCESS),
            output_ms=watch.ms(Activity.OUTPUT),
            store_ms=watch.ms(Activity.STORE),
            finish_ms=watch.ms(Activity.FINISH),
            processor_ms=watch.processor_ms,
            processor_wait_ms=watch.processor_wait_ms,
            began_at_ms=watch.began_at_ms,
            largest_key_group=progress.largest_key_group,
            largest_key_group_records=progress.largest_key_group_records,
            key_groups=progress.largest_key_groups(),
            latest_event_ms=progress.latest_event_ms,
            latest_of_origins=progress.latest_of_origins,
            latest_of_splits=progress.latest_of_splits,
            next_timers=progress.next_timers,
            counts=dict(progress.counts),
            user_series=progress.user_series,
            user_help=progress.user_help,
            ahead_records=progress.ahead_records,
            first_failure=progress.first_failure,
            executor=executor_name(),
            source=source,
            state_bytes=state_bytes,
            broadcast_digest=digest,
            part=part,
            sample_id="" if self.sample is None else self.sample.id,
            sample=sample.lines,
        )
        self.reports.add([report])

    def _process(
        self,
        index: SubtaskIndex,
        store: SubtaskStore,
        batches: Iterator[pa.RecordBatch],
        progress: SubtaskProgress,
        sample: RecordSample,
    ) -> Iterator[pa.RecordBatch]:
        uid = self.info.operator_uid
        info = replace(self.info, subtask=index, resources=worker_resources(uid), metrics=FunctionMetrics(uid))
        store.begin_batch(self.batch_id)
        with user_code():
            logic: OperatorLogic = self.logic.open()
        outputs = run_subtask(
            logic,
            store.keyed,
            info,
            _in_parts(_placed(batches, index), store),
            progress=progress,
            watermark_ms=self.time.timers_ms,
            is_at_end=self.time.is_at_end,
            operator_state=store.operator,
            broadcast=from_stream(b"" if self.broadcast is None else self.broadcast.open()),
        )
        return to_wire(sample.of_output(outputs), info)


@dataclass(frozen=True, slots=True)
class TasksWithoutRecords:
    """The tasks of all operators of a batch without records.

    `run_per_subtask` runs them one after the other. For operators that write their rows directly.
    """

    tasks: tuple[OperatorTask, ...]

    def __call__(self, subtask: SubtaskIndex) -> bytes:
        for task in self.tasks:
            for _ in task.run_partition(iter(())):
                raise IncompleteReportsError(
                    f"operator {task.info.operator_uid}[{subtask}] emitted rows in a batch without a reader"
                )
        return b""


def subtask_info(
    node: OperatorNode,
    spec: SubtaskSpec,
    origins: tuple[str, ...] = (),
    splits: Mapping[str, SplitInfo] | None = None,
) -> SubtaskInfo:
    """Returns the values for an operator's functions, without the subtask.

    `origins` and `splits` are as in SubtaskInfo.
    """
    return SubtaskInfo(
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
        splits=splits or {},
        max_ahead_ms=node.max_ahead_ms,
        failed_records=node.failed_records,
        second=None
        if node.second is None
        else SecondInputInfo(
            tuple(node.second.schema.names),
            node.second.key_columns,
            node.second.timestamp_column,
            node.second.max_ahead_ms,
        ),
    )


def _placed(batches: Iterator[pa.RecordBatch], index: SubtaskIndex) -> Iterator[pa.RecordBatch]:
    """Checks that each record batch is in its own subtask's partition.

    It checks the first row of each batch.

    A row elsewhere would change state that belongs to another subtask.
    """
    for batch in batches:
        found = batch.column(SUBTASK_COLUMN)[0].as_py()
        if found != index:
            raise IncompleteReportsError(f"partition {index} got rows of subtask {found}")
        yield batch
        failpoint("task-mid-batch")


def _in_parts(batches: Iterator[pa.RecordBatch], store: SubtaskStore) -> Iterator[pa.RecordBatch]:
    """Passes on record batches in parts with state that fits in memory.

    Between two parts, changes may be spilled.
    """
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            part = batch.slice(first, store.keyed.rows_at_once)
            yield part
            store.keyed.make_room(part.num_rows)
            first += part.num_rows


def _partition_id() -> SubtaskIndex:
    context = TaskContext.get()
    assert context is not None  # noqa: S101 - a task always has one
    return SubtaskIndex(context.partitionId())
