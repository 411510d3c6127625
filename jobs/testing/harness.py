"""A harness that runs an operator without Spark.

It processes records, advances time, takes and restores snapshots, and returns outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa

from keyscale.errors import KeyscaleError
from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex
from keyscale.state.doors.keyed import (
    BatchClock,
    MemorySnapshot,
    MemoryState,
    OperatorStateBackend,
    memory_snapshot,
    redistribute,
)
from keyscale.state.doors.values import HashId, KeyGroupRanges, assign_to_key_groups, hash_codes
from keyscale.user_series import added, gauges_of

from ..errors import InvalidSchemaError, InvalidTopologyError, MetricInvalidError, OutputTypeError
from ..functions.batch_function import KeyedBatchFunction
from ..functions.broadcast_function import KeyedBroadcastProcessFunction
from ..functions.function_metrics import FunctionMetrics
from ..functions.given_function import check_function
from ..functions.process_function import KeyedCoProcessFunction, KeyedProcessFunction, OutputTag, row_type
from ..functions.subtask_info import FailedRecordPolicy, SecondInputInfo, SubtaskInfo
from ..graph.schemas import check_column, check_keys_alike, check_schema, check_type_name, key_schema
from ..operators.batch_operator import ProcessBatch
from ..operators.broadcast_operator import BroadcastProcess
from ..operators.broadcast_rows import check_alike
from ..operators.co_process_operator import CoProcess
from ..operators.column_values import batch_of, tuples_of
from ..operators.failures import TaskOrigin, origin_of, with_origin
from ..operators.operator_contract import (
    KEY_GROUP_COLUMN,
    OperatorLogic,
    SideBatch,
    SubtaskProgress,
    run_subtask,
)
from ..operators.process_operator import Process
from ..operators.two_inputs import packed_batch
from ..spark_internals.function_copies import worker_copy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from keyscale.state.doors.keyed import KeyedStateBackend, MapStateDescriptor, OperatorStateSnapshot, StoredKey
    from keyscale.user_series import UserSeries

    from ..functions.process_function import Row

Function: TypeAlias = (
    KeyedProcessFunction | KeyedBatchFunction | KeyedBroadcastProcessFunction | KeyedCoProcessFunction | OperatorLogic
)
"""The functions and operator logic that a harness can test."""

Columns: TypeAlias = pa.Schema | Mapping[str, str | pa.DataType]
"""Columns of records: an Arrow schema, or a mapping from names to Arrow types or names of Spark's atomic types."""

_MAIN = ""
_ATOMIC = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "int": pa.int32(),
    "long": pa.int64(),
    "smallint": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "tinyint": pa.int8(),
}


class SecondStream:
    """The second keyed stream of a tested `KeyedCoProcessFunction`.

    The arguments are as for OperatorHarness.
    """

    def __init__(self, columns: Columns, key: Sequence[str], timestamp: str | None = None) -> None:
        self.schema = _schema_of(columns)
        self.key = tuple(key)
        self._timestamp = timestamp
        if timestamp is not None:
            check_column(self.schema, timestamp, "timestamp")

    def info(self, first_key: pa.Schema) -> SecondInputInfo:
        """Returns the description of this input for the operator.

        Raises:
            InvalidKeyError: The types of its key differ from the first stream's key.
        """
        check_keys_alike(first_key, key_schema(self.schema, self.key))
        return SecondInputInfo(tuple(self.schema.names), self.key, self._timestamp)


@dataclass(frozen=True, slots=True)
class Observations:
    """The observations of a histogram.

    Attributes:
        count: Their number.
        sum: Their sum.
        buckets: Their number per bucket; the last bucket has no bound.
    """

    count: int
    sum: int | float
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """An operator's state between two batches, with its times.

    A savepoint would hold the same state.
    """

    keyed: MemorySnapshot
    processing_time_ms: int
    watermark_ms: int
    operator_states: tuple[OperatorStateSnapshot, ...] = ()

    @property
    def families(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """The stored keys and values by column family."""
        return self.keyed.families


class OperatorHarness:
    """Runs one keyed operator in memory as the runtime does.

    It runs in subtasks, batch by batch.

    Every call of `process`, or advance of time, is one batch: a new instance of the function is unpickled and opened,
    processes the records, fires its due timers and is closed. A failed batch has no effect. Outputs collect until they
    are taken. All subtasks run in one worker.

    Attributes:
        late_records: Records so far that came too late, or had no event time: dropped, or sent to a side output.
        dead_letters: Records so far that became dead letters.

    `metric` returns what the function has counted itself.

    Example:
        >>> harness = OperatorHarness(Totals(), input={"user": "string", "amount": "bigint"}, key=["user"],
        ...                           output={"user": "string", "total": "bigint"})
        >>> harness.process(("ada", 2), ("ada", 3))
        >>> harness.take_output()
        [('ada', 2), ('ada', 5)]
        >>> harness = harness.restored(harness.snapshot(), parallelism=3)
    """

    def __init__(
        self,
        function: Function,
        *,
        input: Columns,  # noqa: A002 - the opposite of `output`
        key: Sequence[str],
        output: Columns,
        timestamp: str | None = None,
        side_outputs: Iterable[OutputTag] = (),
        parallelism: int = 1,
        max_parallelism: int = 128,
        broadcast: Columns | None = None,
        broadcast_states: Sequence[MapStateDescriptor] = (),
        second: SecondStream | None = None,
        max_ahead_ms: int | None = None,
        failed_records: FailedRecordPolicy = "fail",
    ) -> None:
        """Creates an operator without state.

        It starts at time zero and before any watermark.

        Args:
            function: The function to test, or the logic of an operator, such as `keyscale.Deduplicate(ttl)`.
            input: The columns of the records.
            key: The names of the key's columns.
            output: The columns of the main output.
            timestamp: The name of the column with the event time.
            side_outputs: The function's side outputs.
            parallelism: The number of subtasks.
            max_parallelism: The number of key groups.
            broadcast: The columns of the broadcast records, for a KeyedBroadcastProcessFunction.
            broadcast_states: The descriptors that the stream is broadcast with.
            second: The second keyed stream, for a KeyedCoProcessFunction.
            max_ahead_ms: How far a record's event time may be ahead of the processing time, which begins at zero here;
                None for no limit.
            failed_records: As for `StreamEnvironment.set_failed_records`.

        Raises:
            InvalidTopologyError: The columns do not fit together.
        """
        self._broadcast_states = tuple(broadcast_states)
        self._logic = _logic_of(function, self._broadcast_states)
        self._input = _schema_of(input)
        if timestamp is not None:
            check_column(self._input, timestamp, "timestamp")
        self._second = second
        self._broadcast = None if broadcast is None else _schema_of(broadcast)
        self._key_schema = key_schema(self._input, tuple(key))
        self._info = SubtaskInfo(
            operator_uid=OperatorUid("tested"),
            subtask=SubtaskIndex(0),
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            attempt=Attempt(1),
            input_columns=tuple(self._input.names),
            key_columns=tuple(key),
            timestamp_column=timestamp,
            output_schema=_schema_of(output),
            side_outputs={tag.name: tag.schema for tag in side_outputs},
            second=None if second is None else second.info(self._key_schema),
            broadcast_columns=() if self._broadcast is None else tuple(self._broadcast.names),
            max_ahead_ms=max_ahead_ms,
            failed_records=failed_records,
        )
        self._resources: dict[str, Any] = {}
        self._clock = BatchClock()
        self._outputs: dict[str, list[Row]] = {}
        self.late_records = self.dead_letters = 0
        self._counted: tuple[UserSeries, ...] = ()
        self._gauges: dict[int, tuple[UserSeries, ...]] = {}
        self._declared: set[str] = set()
        self._open(HarnessSnapshot(MemorySnapshot(), self._clock.processing_time_ms, self._clock.event_time_ms))

    def process(self, *records: Any) -> None:
        """Processes a batch of records.

        Each record is a dict of all columns or a tuple in their order.

        Raises:
            ValueError: A record does not fit the columns.
        """
        self._run(list(records))

    def process_second(self, *records: Any) -> None:
        """Processes a batch of records of the second keyed stream.

        Raises:
            InvalidTopologyError: The harness has no second stream.
        """
        if self._second is None:
            raise InvalidTopologyError("the harness has no second stream: give it one with second=...")
        self._run(list(records), port=1)

    def process_broadcast(self, *records: Any) -> None:
        """Processes a batch of records of the broadcast stream in every subtask.

        Raises:
            InvalidTopologyError: The harness has no broadcast stream.
            BroadcastDivergedError: The subtasks' broadcast states differ afterwards.
        """
        if self._broadcast is None:
            raise InvalidTopologyError("the harness has no broadcast stream: give it the columns with broadcast=...")
        self._run([], broadcast=[_batch_of_input(list(records), self._broadcast)] if records else [])

    def advance_watermark(self, to_ms: int) -> None:
        """Advances the watermark in a batch without records."""
        self._run([], watermark_ms=to_ms)

    def advance_processing_time(self, to_ms: int) -> None:
        """Advances the processing time in a batch without records."""
        self._clock.advance(processing_time_ms=to_ms)
        self._run([])

    def take_output(self) -> list[Row]:
        """Returns the records of the main output since the last call.

        Rows compare equal to tuples.
        """
        return self._outputs.pop(_MAIN, [])

    def take_side_output(self, tag: OutputTag) -> list[Row]:
        """Returns the records emitted to a side output since the last call."""
        return self._outputs.pop(tag.name, [])

    def metric(self, name: str, **labels: object) -> int | float | Observations:
        """Returns the value of one of the function's own metrics.

        A counter counts since the harness was created, also over `restored`. A series without a value is 0.

        Args:
            name: Its name, as declared.
            labels: The values of its labels.

        Raises:
            MetricInvalidError: The function has not declared the metric.
        """
        if name not in self._declared:
            known = ", ".join(sorted(self._declared)) or "none"
            raise MetricInvalidError(f"the function has not declared the metric {name!r}; it has: {known}")
        wanted = {label: str(value) for label, value in labels.items()}
        for series in (*self._counted, *gauges_of(self._gauges)):
            if series.name == name and series.labels == wanted:
                if series.bounds:
                    return Observations(int(series.count), series.values[0], tuple(map(int, series.values[1:])))
                return series.values[0]
        return 0

    def state(self, name: str) -> list[tuple[StoredKey, Any]]:
        """Returns all stored entries of a state, with their keys.

        The entries come from all subtasks; expired entries are left out.

        Raises:
            StateSchemaMismatchError: The function has not declared the state; it does so in `open`, with the first
                batch.
        """
        return [entry for state in self._states for entry in state.backend.dump(name)]

    def snapshot(self) -> HarnessSnapshot:
        """Returns the operator's whole state and its times."""
        return HarnessSnapshot(
            memory_snapshot(self._states),
            self._clock.processing_time_ms,
            self._clock.event_time_ms,
            tuple(operator.snapshot() for operator in self._operators),
        )

    def operator_state(self, subtask: int) -> OperatorStateBackend:
        """Returns the operator state of a subtask, to read with its descriptors."""
        return OperatorStateBackend(self._operators[subtask].snapshot())

    def restored(
        self,
        snapshot: HarnessSnapshot,
        *,
        parallelism: int | None = None,
        function: Function | None = None,
    ) -> Self:
        """Returns a new harness that continues from a snapshot.

        This harness stays unchanged.

        Args:
            snapshot: A snapshot of this or another harness with the same key and max parallelism.
            parallelism: The number of subtasks; None for the same number.
            function: A newer version of the function; None for the same function.
        """
        later = object.__new__(type(self))
        later.__dict__.update(self.__dict__)
        later._info = replace(self._info, parallelism=parallelism or self._info.parallelism)
        later._logic = self._logic if function is None else _logic_of(function, self._broadcast_states)
        later._clock = BatchClock(snapshot.processing_time_ms, snapshot.watermark_ms)
        later._outputs = {}
        later._resources = {}
        later._gauges = {}
        later._open(snapshot)
        later._run([])  # opens the function, which declares its states; timers that wait for another batch fire
        return later

    def _open(self, snapshot: HarnessSnapshot) -> None:
        self._states: list[MemoryState] = []
        self._operators = self._dealt(snapshot.operator_states)
        self._ranges = KeyGroupRanges.of_count(self._info.max_parallelism, self._info.parallelism)
        for owned in self._ranges:
            # One clock per subtask: a subtask's timers must not advance the time that the next subtask's records see.
            clock = BatchClock(snapshot.processing_time_ms, snapshot.watermark_ms)
            stored_key = self._logic.stored_key(self._key_schema)
            self._states.append(MemoryState(stored_key, clock, snapshot.keyed, owned))

    def _dealt(self, snapshots: Sequence[OperatorStateSnapshot]) -> list[OperatorStateBackend]:
        """Returns operator state as a restart redistributes it, at this parallelism."""
        if not any(snapshot.states for snapshot in snapshots):
            return [OperatorStateBackend() for _ in range(self._info.parallelism)]
        given = redistribute(snapshots, self._info.parallelism)
        kept = redistribute(snapshots, self._info.parallelism, claimed=False)
        return [OperatorStateBackend(*each) for each in zip(given, kept, strict=True)]

    def _run(
        self,
        records: list[Any],
        watermark_ms: int | None = None,
        broadcast: Sequence[pa.RecordBatch] = (),
        *,
        port: int = 0,
    ) -> None:
        counted_before = self.late_records, self.dead_letters, self._counted, dict(self._gauges)
        before = [copy.deepcopy(operator) for operator in self._operators]
        rows = self._routed(records, port) if records else {}
        outputs: dict[str, list[Row]] = {}
        try:
            for index, state in enumerate(self._states):
                self._run_subtask(
                    index,
                    state.backend,
                    rows.get(index),
                    watermark_ms=watermark_ms,
                    outputs=outputs,
                    broadcast=broadcast,
                )
            if broadcast:
                check_alike(self._info.operator_uid, [each.broadcast_digest() for each in self._operators])
        except BaseException:
            self._resources.clear()
            for state in self._states:
                state.backend.discard()
            self._operators = before
            self.late_records, self.dead_letters, self._counted, self._gauges = counted_before
            raise
        for operator in self._operators:
            operator.changed()
        for state in self._states:
            state.commit()
        if watermark_ms is not None:
            self._clock.advance(event_time_ms=watermark_ms)
        for tag, taken in outputs.items():
            self._outputs.setdefault(tag, []).extend(taken)

    def _run_subtask(
        self,
        index: int,
        state: KeyedStateBackend,
        rows: pa.RecordBatch | None,
        *,
        watermark_ms: int | None,
        outputs: dict[str, list[Row]],
        broadcast: Sequence[pa.RecordBatch],
    ) -> None:
        assert isinstance(state.clock, BatchClock)  # noqa: S101 - see _open
        state.clock.advance(processing_time_ms=self._clock.processing_time_ms)
        logic = worker_copy(self._logic)
        metrics = FunctionMetrics(self._info.operator_uid)
        info = replace(self._info, subtask=SubtaskIndex(index), resources=self._resources, metrics=metrics)
        batches = [] if rows is None else [rows]
        progress = SubtaskProgress()
        with _shown_in_full(info):
            for output in run_subtask(
                logic,
                state,
                info,
                batches,
                progress=progress,
                watermark_ms=watermark_ms,
                operator_state=self._operators[index],
                broadcast=broadcast,
            ):
                tag, batch = (output.tag, output.records) if isinstance(output, SideBatch) else (_MAIN, output)
                names = tuple(batch.schema.names)
                outputs.setdefault(tag, []).extend(map(row_type(names), tuples_of(batch, names)))
        self.late_records += progress.counts["late_records"]
        self.dead_letters += progress.counts["dead_letters"]
        self._declared |= progress.user_help.keys()
        self._counted = added(self._counted, progress.user_series)
        gauges = {each.key: each for each in (*self._gauges.get(index, ()), *progress.user_series) if each.fold}
        self._gauges[index] = tuple(gauges.values())

    def _routed(self, records: list[Any], port: int) -> dict[int, pa.RecordBatch]:
        """Returns the rows by subtask, with their key groups."""
        info, second = self._info, self._second
        schema, key = (second.schema, second.key) if port and second else (self._input, info.key_columns)
        batch = _batch_of_input(records, schema)
        codes = hash_codes([batch.column(name) for name in key], HashId.SPARK)
        groups = assign_to_key_groups(codes, info.max_parallelism)
        routed = batch.append_column(KEY_GROUP_COLUMN, pa.array(groups, pa.int32()))
        places: dict[int, list[int]] = {}
        for row, group in enumerate(groups.tolist()):
            places.setdefault(self._ranges.subtask_of(group), []).append(row)
        taken = {subtask: routed.take(pa.array(rows)) for subtask, rows in places.items()}
        return taken if second is None else {subtask: packed_batch(rows, port) for subtask, rows in taken.items()}


@contextmanager
def _shown_in_full(info: SubtaskInfo) -> Iterator[None]:
    """Raises errors with the user's exception as their cause.

    A note names the operator and the subtask.
    """
    try:
        yield
    except KeyscaleError as error:
        with_origin(error, TaskOrigin(info.operator_uid, info.subtask, origin_of(error).user_traceback))
        error.add_note(f"in operator {info.operator_uid}, subtask {info.subtask}")
        raise error from error.__context__


def _logic_of(
    function: Function,
    broadcast_states: Sequence[MapStateDescriptor],
) -> OperatorLogic:
    if isinstance(function, KeyedCoProcessFunction):
        return CoProcess(function)
    if isinstance(function, KeyedBroadcastProcessFunction):
        return BroadcastProcess(function, tuple(broadcast_states))
    if isinstance(function, KeyedProcessFunction):
        return Process(function)
    if isinstance(function, KeyedBatchFunction):
        return ProcessBatch(function)
    if isinstance(function, type) or not hasattr(function, "start"):
        check_function(function, KeyedProcessFunction)
    return function


def _batch_of_input(records: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    try:
        return batch_of(records, schema)
    except OutputTypeError as error:
        reason = str(error).replace("a result", "a record", 1).replace("output column", "column", 1)
    raise ValueError(f"{reason.partition('; yield')[0]}; the input has the columns {', '.join(schema.names)}")


def _schema_of(columns: pa.Schema | Mapping[str, str | pa.DataType]) -> pa.Schema:
    """Returns the Arrow schema of columns, without Spark's parser.

    Spark's parser needs a JVM.

    Raises:
        InvalidSchemaError: A type is not an atomic type of Spark, or the columns cannot be a stream's.
    """
    if not isinstance(columns, pa.Schema | Mapping):
        raise InvalidSchemaError(
            f"the columns of a harness are declared as a {type(columns).__name__}; "
            'give {"column": "type", ...} or a pyarrow schema'
        )
    if isinstance(columns, Mapping):
        columns = pa.schema([pa.field(name, _type_of(name, kind)) for name, kind in columns.items()])
    check_schema(columns, "a declared stream")
    return columns


def _type_of(name: str, kind: str | pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    check_type_name(name, kind)
    found = _ATOMIC.get(kind.lower())
    if found is None:
        raise InvalidSchemaError(f"column {name!r} has the type {kind!r}; give nested and decimal types as Arrow's")
    return found
