"""An operator without Spark: feed records, move time, snapshot, restore at another parallelism, read what came out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa
from pyspark import cloudpickle

from jobs.batch_function import KeyedBatchFunction, ProcessBatch
from jobs.broadcast import BroadcastProcess, KeyedBroadcastProcessFunction
from jobs.co_process import CoProcess, KeyedCoProcessFunction
from jobs.errors import InvalidTopologyError
from jobs.functions import KeyedProcessFunction, OutputTag, row_type
from jobs.process import Process
from jobs.runtime.body import KEY_GROUP_COLUMN, SecondFacts, SideBatch, SubtaskFacts, SubtaskProgress, run_subtask
from jobs.runtime.broadcast_rows import check_alike
from jobs.runtime.columns import batch_of, tuples_of
from jobs.runtime.two_inputs import packed_batch
from jobs.testing.column_types import schema_of
from jobs.topology import check_column, check_keys_alike, key_schema
from state.hashing import HashId, hash_codes
from state.heap import HeapEngine
from state.identifiers import Attempt, OperatorUid, SubtaskIndex
from state.key_groups import KEY_GROUP_BYTES, assign_to_key_groups, key_group_range, subtask_for_key_group
from state.keyed import KeyedStateBackend
from state.operator_state import OperatorStateBackend, redistribute
from state.ttl import BatchClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jobs.functions import Row
    from jobs.runtime.body import OperatorLogic
    from state.descriptors import MapStateDescriptor
    from state.operator_state import OperatorStateSnapshot
    from state.schema import KeyedSchema
    from state.stored_key import StoredKey

Function: TypeAlias = (
    "KeyedProcessFunction | KeyedBatchFunction | KeyedBroadcastProcessFunction | KeyedCoProcessFunction | OperatorLogic"
)
"""What a harness tests."""

Columns: TypeAlias = pa.Schema | Mapping[str, str | pa.DataType]
"""Columns of records: an Arrow schema, or types by name: Arrow's, or the names of Spark's atomic types."""

_MAIN = ""


class SecondStream:
    """The second keyed stream of a `KeyedCoProcessFunction` under test; arguments as of OperatorHarness."""

    def __init__(self, columns: Columns, key: Sequence[str], timestamp: str | None = None) -> None:
        self.schema = schema_of(columns)
        self.key = tuple(key)
        self._timestamp = timestamp
        if timestamp is not None:
            check_column(self.schema, timestamp, "timestamp")

    def facts(self, first_key: pa.Schema) -> SecondFacts:
        """What the operator is told of it.

        Raises:
            InvalidKeyError: Its key is of other types than that of the first stream.
        """
        check_keys_alike(first_key, key_schema(self.schema, self.key))
        return SecondFacts(tuple(self.schema.names), self.key, self._timestamp)


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """An operator's state between two batches: what a savepoint of it would hold, and its times."""

    families: dict[str, list[tuple[bytes, bytes]]]
    schema: KeyedSchema | None
    processing_time_ms: int
    watermark_ms: int
    operator_states: tuple[OperatorStateSnapshot, ...] = ()


class OperatorHarness:
    """One keyed operator at work on the heap, as the runtime runs it: in subtasks, batch by batch.

    Every `process` and every move of time is one batch: the function is pickled and opened anew, sees the records, has its due
    timers fired, and is closed. A batch that fails changes nothing. Outputs gather until they are taken.

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
        input: Columns,  # noqa: A002 - the word of the stream's own methods
        key: Sequence[str],
        output: Columns,
        timestamp: str | None = None,
        side_outputs: Iterable[OutputTag] = (),
        parallelism: int = 1,
        max_parallelism: int = 128,
        broadcast: Columns | None = None,
        broadcast_states: Sequence[MapStateDescriptor] = (),
        second: SecondStream | None = None,
    ) -> None:
        """An operator without state, at time zero and before any watermark.

        Args:
            function: What to test; or the logic of an operator, such as `jobs.deduplicate.Deduplicate(ttl)`.
            input: The records' columns.
            key: The key's columns.
            output: Columns of the main output.
            timestamp: The column that is the event time.
            side_outputs: What the function may put records into besides.
            parallelism: Subtasks.
            max_parallelism: Key groups.
            broadcast: Columns of the broadcast records, of a function that has such a stream beside its own.
            broadcast_states: What that stream is broadcast with.
            second: The second keyed stream, of a KeyedCoProcessFunction.

        Raises:
            InvalidTopologyError: The columns do not fit together.
        """
        self._broadcast_states = tuple(broadcast_states)
        self._logic = _logic_of(function, self._broadcast_states)
        self._input = schema_of(input)
        if timestamp is not None:
            check_column(self._input, timestamp, "timestamp")
        self._second = second
        self._broadcast = None if broadcast is None else schema_of(broadcast)
        self._key_schema = key_schema(self._input, tuple(key))
        self._facts = SubtaskFacts(
            operator_uid=OperatorUid("tested"),
            subtask=SubtaskIndex(0),
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            attempt=Attempt(1),
            input_columns=tuple(self._input.names),
            key_columns=tuple(key),
            timestamp_column=timestamp,
            output_schema=schema_of(output),
            side_outputs={tag.name: tag.schema for tag in side_outputs},
            second=None if second is None else second.facts(self._key_schema),
            broadcast_columns=() if self._broadcast is None else tuple(self._broadcast.names),
        )
        self._clock = BatchClock()
        self._outputs: dict[str, list[Row]] = {}
        self._open(HarnessSnapshot({}, None, self._clock.processing_time_ms, self._clock.event_time_ms))

    def process(self, *records: Any) -> None:
        """Process a batch of records, each a dict of all columns or a tuple in their order."""
        self._run(list(records))

    def process_second(self, *records: Any) -> None:
        """Process a batch of records of the second keyed stream.

        Raises:
            InvalidTopologyError: The harness was made without one.
        """
        if self._second is None:
            message = "the harness has no second stream: give it one with second=..."
            raise InvalidTopologyError(message)
        self._run(list(records), port=1)

    def process_broadcast(self, *records: Any) -> None:
        """Process a batch of records of the broadcast stream: every subtask gets them.

        Raises:
            InvalidTopologyError: The harness was made without `broadcast` columns.
            BroadcastDivergedError: The subtasks' broadcast states are not the same afterwards.
        """
        if self._broadcast is None:
            message = "the harness has no broadcast stream: give it the columns with broadcast=..."
            raise InvalidTopologyError(message)
        self._run([], broadcast=[batch_of(list(records), self._broadcast)] if records else [])

    def advance_watermark(self, to_ms: int) -> None:
        """Say that no event before a time is expected any more, in a batch without records."""
        self._run([], watermark_ms=to_ms)

    def advance_processing_time(self, to_ms: int) -> None:
        """Let the clock show a time, in a batch without records."""
        self._clock.advance(processing_time_ms=to_ms)
        self._run([])

    def take_output(self) -> list[Row]:
        """The records that the main output has had since they were last taken; rows compare with tuples."""
        return self._outputs.pop(_MAIN, [])

    def take_side_output(self, tag: OutputTag) -> list[Row]:
        """As `take_output`, of a side output."""
        return self._outputs.pop(tag.name, [])

    def state(self, name: str) -> list[tuple[StoredKey, Any]]:
        """All stored entries of a state by its name, in all subtasks, with their keys; expired ones are left out.

        Raises:
            StateSchemaMismatchError: The function has not declared it (in `open`, when the first batch came).
        """
        return [entry for state in self._states for entry in state.dump(name)]

    def snapshot(self) -> HarnessSnapshot:
        """The operator's whole state and its times."""
        families: dict[str, list[tuple[bytes, bytes]]] = {}
        for engine in self._engines:
            for family in engine.families():
                families.setdefault(family, []).extend(engine.scan(family, b"", None))
        return HarnessSnapshot(
            families,
            self._states[0].schema,
            self._clock.processing_time_ms,
            self._clock.event_time_ms,
            tuple(operator.snapshot() for operator in self._operators),
        )

    def operator_state(self, subtask: int) -> OperatorStateBackend:
        """The operator state of a subtask, to be read by its descriptors."""
        return OperatorStateBackend(self._operators[subtask].snapshot())

    def restored(
        self,
        snapshot: HarnessSnapshot,
        *,
        parallelism: int | None = None,
        function: KeyedProcessFunction
        | KeyedBatchFunction
        | KeyedBroadcastProcessFunction
        | OperatorLogic
        | None = None,
    ) -> Self:
        """A further harness that goes on from a snapshot; this one stays as it is.

        Args:
            snapshot: Of this or another harness with the same key and max parallelism.
            parallelism: Its subtasks; None: as many as here.
            function: A newer version of the function; None: the same.
        """
        later = object.__new__(type(self))
        later.__dict__.update(self.__dict__)
        later._facts = replace(self._facts, parallelism=parallelism or self._facts.parallelism)
        later._logic = self._logic if function is None else _logic_of(function, self._broadcast_states)
        later._clock = BatchClock(snapshot.processing_time_ms, snapshot.watermark_ms)
        later._outputs = {}
        later._open(snapshot)
        later._run([])  # opens the function, which declares its states, and fires nothing: time has not moved
        return later

    def _open(self, snapshot: HarnessSnapshot) -> None:
        self._engines: list[HeapEngine] = []
        self._states: list[KeyedStateBackend] = []
        self._operators = self._dealt(snapshot.operator_states)
        for index in range(self._facts.parallelism):
            owned = key_group_range(self._facts.max_parallelism, self._facts.parallelism, index)
            engine = HeapEngine()
            for family, entries in snapshot.families.items():
                engine.write(
                    (family, key, value)  # type: ignore[misc]  # a Mutation is this tuple
                    for key, value in entries
                    if owned.start <= int.from_bytes(key[:KEY_GROUP_BYTES], "big") <= owned.end
                )
            # A clock of its own: the first subtask's timers must not move the time that the next one's records see.
            clock = BatchClock(snapshot.processing_time_ms, snapshot.watermark_ms)
            stored_key = self._logic.stored_key(self._key_schema)
            state = KeyedStateBackend(engine, stored_key, clock, schema=snapshot.schema, key_group_range=owned)
            self._engines.append(engine)
            self._states.append(state)

    def _dealt(self, snapshots: Sequence[OperatorStateSnapshot]) -> list[OperatorStateBackend]:
        """Operator state as a restart deals it out, at this parallelism."""
        if not any(snapshot.states for snapshot in snapshots):
            return [OperatorStateBackend() for _ in range(self._facts.parallelism)]
        given = redistribute(snapshots, self._facts.parallelism)
        kept = redistribute(snapshots, self._facts.parallelism, claimed=False)
        return [OperatorStateBackend(*each) for each in zip(given, kept, strict=True)]

    def _run(
        self,
        records: list[Any],
        watermark_ms: int | None = None,
        broadcast: Sequence[pa.RecordBatch] = (),
        *,
        port: int = 0,
    ) -> None:
        before = [copy.deepcopy(operator) for operator in self._operators]
        rows = self._routed(records, port) if records else {}
        outputs: dict[str, list[Row]] = {}
        try:
            for index, state in enumerate(self._states):
                self._run_subtask(
                    index, state, rows.get(index), watermark_ms=watermark_ms, outputs=outputs, broadcast=broadcast
                )
            if broadcast:
                check_alike(self._facts.operator_uid, [each.broadcast_digest() for each in self._operators])
        except BaseException:
            for state in self._states:
                state.discard()
            self._operators = before
            raise
        for operator in self._operators:
            operator.changed()
        for engine, state in zip(self._engines, self._states, strict=True):
            engine.write_runs(state.drain())
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
        assert isinstance(state.clock, BatchClock)  # noqa: S101 - made so above
        state.clock.advance(processing_time_ms=self._clock.processing_time_ms)
        logic: OperatorLogic = cloudpickle.loads(cloudpickle.dumps(self._logic))  # type: ignore[no-untyped-call]  # as pyspark has it
        facts = replace(self._facts, subtask=SubtaskIndex(index))
        batches = [] if rows is None else [rows]
        progress = SubtaskProgress()
        for output in run_subtask(
            logic,
            state,
            facts,
            batches,
            progress=progress,
            watermark_ms=watermark_ms,
            operator=self._operators[index],
            broadcast=broadcast,
        ):
            tag, batch = (output.tag, output.records) if isinstance(output, SideBatch) else (_MAIN, output)
            names = tuple(batch.schema.names)
            outputs.setdefault(tag, []).extend(map(row_type(names), tuples_of(batch, names)))

    def _routed(self, records: list[Any], port: int) -> dict[int, pa.RecordBatch]:
        """The rows of each subtask that has any, with their key groups."""
        facts, second = self._facts, self._second
        schema, key = (second.schema, second.key) if port and second else (self._input, facts.key_columns)
        batch = batch_of(records, schema)
        codes = hash_codes([batch.column(name) for name in key], HashId.SPARK)
        groups = assign_to_key_groups(codes, facts.max_parallelism)
        routed = batch.append_column(KEY_GROUP_COLUMN, pa.array(groups, pa.int32()))
        places: dict[int, list[int]] = {}
        for row, group in enumerate(groups.tolist()):
            subtask = subtask_for_key_group(group, facts.max_parallelism, facts.parallelism)
            places.setdefault(subtask, []).append(row)
        taken = {subtask: routed.take(pa.array(rows)) for subtask, rows in places.items()}
        return taken if second is None else {subtask: packed_batch(rows, port) for subtask, rows in taken.items()}


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
    return ProcessBatch(function) if isinstance(function, KeyedBatchFunction) else function
