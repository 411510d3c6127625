"""Runs the operators of a batch again, in this process.

They start from the state before the batch.

A subtask's state is restored into local files. Its changes stay in memory: they are compared with the committed
changes, and then dropped.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from keyscale.clock import now_ms
from keyscale.errors import KeyscaleError
from keyscale.identifiers import SubtaskIndex
from keyscale.jobs.functions.function_metrics import FunctionMetrics
from keyscale.jobs.operators.broadcast_rows import check_alike, from_stream
from keyscale.jobs.operators.failures import TaskOrigin, origin_of, with_origin
from keyscale.jobs.operators.operator_contract import SubtaskProgress, run_subtask
from keyscale.jobs.runtime.batch.committed_state import CommittedState
from keyscale.jobs.runtime.batch.operator_info import operator_info
from keyscale.jobs.runtime.batch.runner import RunInfo, subtask_specs
from keyscale.jobs.runtime.batch.watermarks import batch_times, due_subtasks
from keyscale.jobs.runtime.driver.execution import operator_declarations
from keyscale.jobs.runtime.errors import RestoreRefusedError
from keyscale.jobs.runtime.executor.side_outputs import to_wire
from keyscale.jobs.spark_internals.affinity import SUBTASK_COLUMN
from keyscale.jobs.spark_internals.checkpoint_directory import found_at_ms
from keyscale.jobs.spark_internals.function_copies import worker_copy
from keyscale.state.doors.commits import OperatorHistory, rekeyed
from keyscale.state.doors.keyed import NO_WATERMARK_MS, BatchClock, MemorySnapshot, MemoryState
from keyscale.state.doors.reading import keyed_tables
from keyscale.state.doors.subtasks import OperatorStatePlan, open_subtask

from .state_comparison import StateComparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from keyscale.identifiers import JobId, OperatorUid
    from keyscale.jobs.graph.nodes import OperatorNode
    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.runtime.executor.task import BatchTime
    from keyscale.state.doors.keyed import KeyedStateBackend
    from keyscale.state.doors.reading import RecordedBatch
    from keyscale.state.doors.subtasks import ChangelogHandle, SubtaskSpec, SubtaskStore

    from .replayed_key import ReplayedKey
    from .state_comparison import StateDifference


class ReplayedOperators:
    """Runs the operators of a recorded batch.

    Args:
        topology: The program.
        job_id: The job.
        batch: The batch.
        directory: An existing directory for local state.
        only: The only key to run; None: all keys.

    Attributes:
        output_records: The number of records that each operator has emitted.
        differences: The differences of the changed state from the committed state; empty for a batch without a commit.
        changes: The number of changed entries of each operator.
        key_records: The records of the only key; None: all keys run.

    Raises:
        RestoreRefusedError: The program has other keys than the state.
    """

    def __init__(
        self, topology: Topology, job_id: JobId, batch: RecordedBatch, directory: Path, only: ReplayedKey | None = None
    ) -> None:
        self.output_records: dict[OperatorUid, int] = {}
        self.changes: dict[OperatorUid, int] = {}
        self.differences: list[StateDifference] = []
        self.key_records = None if only is None else 0
        self._topology = topology
        self._batch = batch
        self._directory = directory
        self._only = only
        point = batch.before
        info = RunInfo(
            job_id=job_id,
            attempt=batch.attempt,
            ranges=batch.ranges,
            hash_id=point.hash_id,
            store_url=point.store.url,
            local_root=directory,
            rocksdb=replace(topology.rocksdb, local_directories=()),
        )
        for uid, declared in operator_declarations(topology).items():
            if (reason := rekeyed(point.resume.operators.get(uid, OperatorHistory()), declared)) is not None:
                raise RestoreRefusedError(f"operator {uid!r} {reason}")
        self._specs = {node.uid: subtask_specs(node, info) for node in topology.operators}
        self._starts = CommittedState.resumed(point.resume, self._specs, {}, 0).starts
        self.times = times_of(topology, batch)

    def run(
        self, node: OperatorNode, records: Sequence[pa.RecordBatch], broadcast: bytes = b""
    ) -> list[pa.RecordBatch]:
        """Runs all subtasks of an operator, in order.

        Args:
            node: The operator.
            records: Its records, with their key groups and subtasks.
            broadcast: The records of its broadcast stream, as an Arrow stream.

        Returns:
            The emitted records, in the schema that tasks emit.

        Raises:
            KeyscaleError: The function raised; the user's exception is its context.
        """
        outputs: list[pa.RecordBatch] = []
        digests = []
        for index, spec in enumerate(self._specs[node.uid]):
            mine = [batch.filter(pc.equal(batch.column(SUBTASK_COLUMN), index)) for batch in records]
            mine = [batch for batch in mine if batch.num_rows]
            if not self._runs(node, index, has_input=bool(mine or broadcast)):
                continue
            with self._opened(spec) as store, _with_origin(node.uid, SubtaskIndex(index)):
                outputs += self._run_subtask(node, spec, store, mine, broadcast)
                digests.append(store.operator.broadcast_digest() if broadcast else None)
        check_alike(node.uid, digests)
        return outputs

    def _runs(self, node: OperatorNode, index: int, *, has_input: bool) -> bool:
        if self._only is not None and self._only.uid == node.uid:
            return self._only.key_group in self._specs[node.uid][index].key_group_range
        if has_input:
            return True
        if self._batch.committed is not None:
            return self._committed(node.uid, index) is not None
        is_due = due_subtasks(node, self.times[node.uid], (None,) * self._batch.parallelism)[index]
        return is_due or self._operator_state(node.uid, index).needs_redistribution

    def _committed(self, uid: OperatorUid, index: int) -> ChangelogHandle | None:
        commit = self._batch.committed
        changelogs = [] if commit is None else commit.operators.get(uid, [])
        return changelogs[index] if index < len(changelogs) else None

    def _operator_state(self, uid: OperatorUid, index: int) -> OperatorStatePlan:
        """Returns the files of a subtask's operator state.

        Only the first batch of an attempt takes over the state of an earlier attempt.
        """
        files = self._batch.before.resume.operators.get(uid, OperatorHistory()).operator_state
        if self._batch.is_first or not any(files) or len(files) != self._batch.parallelism:
            return self._starts[uid][index].plan.operator_state
        return OperatorStatePlan((files[index],))

    @contextmanager
    def _opened(self, spec: SubtaskSpec) -> Iterator[SubtaskStore]:
        """Restores a subtask's state before the batch, and drops it afterwards."""
        point, uid = self._batch.before, spec.operator_uid
        times = self.times[uid]
        clock = BatchClock(
            processing_time_ms=times.processing_ms,
            event_time_ms=NO_WATERMARK_MS if times.records_ms is None else times.records_ms,
        )
        start = self._starts[uid][spec.index]
        plan = replace(start.plan, operator_state=self._operator_state(uid, spec.index))
        schema = point.resume.operators.get(uid, OperatorHistory()).schema
        store = open_subtask(
            replace(spec, schema=schema), start.version, plan, self._directory, point.store, clock=clock
        )
        try:
            yield store
        finally:
            store.abandon()

    def _run_subtask(
        self,
        node: OperatorNode,
        spec: SubtaskSpec,
        store: SubtaskStore,
        records: list[pa.RecordBatch],
        broadcast: bytes,
    ) -> list[pa.RecordBatch]:
        only = self._only if self._only is not None and self._only.uid == node.uid else None
        state = store.keyed if only is None else _state_of_key(store, node, only)
        if only is not None:
            records = [only.rows(node, batch) for batch in records]
            self.key_records = (self.key_records or 0) + sum(batch.num_rows for batch in records)
        info = replace(
            operator_info(self._topology, node, spec),
            subtask=spec.index,
            resources={},
            metrics=FunctionMetrics(node.uid),
        )
        comparison = StateComparison(
            node.uid,
            store,
            self._committed(node.uid, spec.index),
            store=self._batch.before.store,
            scratch=self._directory,
            only=only,
        )
        progress = SubtaskProgress()
        outputs = run_subtask(
            worker_copy(node.logic),
            state,
            info,
            [batch for batch in records if batch.num_rows],
            progress=progress,
            watermark_ms=self.times[node.uid].timers_ms,
            is_at_end=self.times[node.uid].is_at_end,
            operator_state=store.operator,
            broadcast=from_stream(broadcast),
        )
        emitted = list(to_wire(outputs, info))
        self.output_records[node.uid] = self.output_records.get(node.uid, 0) + progress.output_records
        changes = state.drain()
        self.changes[node.uid] = self.changes.get(node.uid, 0) + sum(map(len, changes))
        if self._batch.committed is not None and (self._only is None or only is not None):
            self.differences += comparison.differences(changes, state.schema)
        return emitted


def times_of(topology: Topology, batch: RecordedBatch) -> dict[OperatorUid, BatchTime]:
    """Returns the times of a recorded batch, by operator.

    The log has the times of a committed batch. A planned batch has the time at which Spark found its input.
    """
    resume = batch.before.resume
    if batch.committed is None:
        spark_batch_id = resume.batch_id + 1 - resume.time.time_batches
        found_ms = found_at_ms(resume.positions, spark_batch_id) if resume.planned is not None else None
        return batch_times(topology, resume.time, now_ms() if found_ms is None else found_ms)
    after = batch.committed.time
    times = batch_times(topology, resume.time, after.processing_ms)
    for uid, of_operator in times.items():
        known = after.event_times.get(uid)
        if known is not None and known.watermark_ms is not None:
            times[uid] = replace(of_operator, timers_ms=known.watermark_ms)
    return times


def _state_of_key(store: SubtaskStore, node: OperatorNode, only: ReplayedKey) -> KeyedStateBackend:
    """Returns the state of one key alone.

    The timers of other keys stay silent.
    """
    schema = store.keyed.schema
    families = {}
    for table in keyed_tables(schema):
        start, end = table.range_of(only.key_group, only.key)
        found = store.engine.scan(table.name, start, end)
        families[table.name] = [entry for entry in found if table.is_of(entry[0], only.key)]
    stored_key = node.logic.stored_key(node.key_schema)
    clock = store.keyed.clock
    assert isinstance(clock, BatchClock)  # noqa: S101 - see `_opened`
    return MemoryState(stored_key, clock, MemorySnapshot(families, schema), store.spec.key_group_range).backend


@contextmanager
def _with_origin(uid: OperatorUid, index: SubtaskIndex) -> Iterator[None]:
    """Names the operator and the subtask in an error.

    The user's exception stays its context.
    """
    try:
        yield
    except KeyscaleError as error:
        with_origin(error, TaskOrigin(uid, index, origin_of(error).user_traceback))
        raise
