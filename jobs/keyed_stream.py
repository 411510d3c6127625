"""Streams partitioned by key: what stateful operators work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from jobs.aggregate import Aggregate, Reduce, keyed_schema
from jobs.approximate_deduplicate import ApproximateDeduplicate
from jobs.batch_function import KeyedBatchFunction, ProcessBatch
from jobs.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from jobs.deduplicate import Deduplicate
from jobs.errors import InvalidTopologyError
from jobs.nodes import SecondInput
from jobs.output_schema import Schema, arrow_schema
from jobs.process import Process
from jobs.topology import Timestamps, dead_letter_tag, key_schema
from jobs.transform_with_state import InitialState, RecordForm, TimeMode, TransformWithState
from jobs.windowed_stream import WindowedStream
from state.ttl import TimeDomain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from jobs.bloom_filter import BloomFilter
    from jobs.functions import KeyedProcessFunction, OutputTag, Row
    from jobs.runtime.body import OperatorLogic
    from jobs.stream import DataStream
    from jobs.topology import NodeId, TopologyBuilder
    from jobs.windows import WindowAssigner
    from state.descriptors import AggregateFunction
    from state.ttl import Ttl


class KeyedStream:
    """A stream partitioned by key: what stateful operators work on."""

    def __init__(
        self,
        stream_of: Callable[[NodeId, Timestamps | None], DataStream],
        builder: TopologyBuilder,
        node: NodeId,
        key_columns: tuple[str, ...],
        timestamps: Timestamps | None,
    ) -> None:
        self._stream_of = stream_of
        self._builder = builder
        self._node = node
        self._key_columns = key_columns
        self._timestamps = timestamps

    def process(
        self,
        function: KeyedProcessFunction | KeyedBatchFunction,
        *,
        output: Schema,
        side_outputs: Iterable[OutputTag] = (),
        dead_letters: bool = False,
    ) -> DataStream:
        """Runs a function over the records, with the state of their keys. Give the result a `.uid(...)`.

        Records of one key are processed in their order within a partition of the batch, and batch after batch.

        Args:
            function: Pickled into each subtask. A KeyedBatchFunction is given whole Arrow batches: the fast path.
            output: Columns and types of the records that it puts out.
            side_outputs: What it may put records into besides, with `context.output`; see `get_side_output`.
            dead_letters: Have records that `process_element` raises on diverted, each without any effect on state, timers and
                outputs, instead of failing the batch; see `get_dead_letters`. What `on_timer` raises still fails it.

        Raises:
            InvalidSchemaError: `output` is not a schema.
            InvalidTopologyError: Dead letters of a KeyedBatchFunction, which are whole batches.
        """
        if isinstance(function, KeyedBatchFunction):
            if dead_letters:
                message = "a KeyedBatchFunction has no dead letters: it is given many records at once"
                raise InvalidTopologyError(message)
            return self._operator(ProcessBatch(function), arrow_schema(output), None, side_outputs)
        diverted = dead_letter_tag(self.schema)
        logic = Process(function, diverted.name if dead_letters else None)
        tags = [*side_outputs, diverted] if dead_letters else side_outputs
        return self._operator(logic, arrow_schema(output), None, tags)

    def reduce(self, function: Callable[[Row, Row], Any], *, ttl: Ttl | None = None) -> DataStream:
        """Reduces the records of each key into one, and puts out the new one after each. Give the result a `.uid(...)`.

        Args:
            function: From what the key has and a further record to what it has then: a row, a tuple or a dict of all
                columns. A key's first record is what it has first.
            ttl: How long what a key has is kept after its last record; for ever if None.
        """
        return self._operator(Reduce(function, ttl), self._builder.schema(self._node), self._timestamps)

    def aggregate(
        self, function: AggregateFunction, *, accumulator: pa.DataType, output: Schema, ttl: Ttl | None = None
    ) -> DataStream:
        """Folds the records of each key, and puts out the key and its new result after each. Give it a `.uid(...)`.

        Args:
            function: `add` is given each record as a Row; `get_result` gives the columns of `output`, as a dict or a tuple.
            accumulator: The accumulator's Arrow type, such as `pa.struct([("count", pa.int64())])`, which is a dict.
            output: The result's columns. The key's columns come before them by themselves.
            ttl: How long an accumulator is kept after its key's last record; for ever if None.

        Raises:
            InvalidSchemaError: `output` is not a schema, or has a key's column.
        """
        schema = keyed_schema(self.key_schema, arrow_schema(output))
        return self._operator(Aggregate(function, accumulator, ttl), schema, None)

    def deduplicate(
        self, *, ttl: Ttl | None = None, hashed: bool = False, approximate: BloomFilter | None = None
    ) -> DataStream:
        """Lets the first record of each key through, and drops later ones. Give the result a `.uid(...)`.

        Exact, unless one of two forms is chosen that remember a key in fewer bytes and now and then drop a record whose key
        is new. No form lets a key that it remembers through again. State of one form is refused by another.

        Args:
            ttl: How long a key is remembered; for ever if None.
            hashed: Store the 64-bit hash of a key in its place, 11 bytes with the key group however long the key is. A record is
                lost if its key has the hash of another one that is remembered: among n keys with a chance of at most n²/2⁶⁵.
                That is 1 in 37 million for a million keys, 1 in 37 for a billion; for 10 billion, count on 3 lost records.
                A key is only compared with those of its key group, which makes it rarer by as many as there are.
            approximate: Keep a Bloom filter a key group: with a TTL of 1 % error 11 bits a key and generation, two generations.
                A record whose key is new is lost with the chance `error_rate` at most, while no more than `capacity` keys
                come in a TTL's time; with twice as many, 12 to 100 times as often. Keys are remembered for the TTL at least, and
                for less than twice that. Capacity, error rate and TTL cannot be changed later.

        Raises:
            InvalidTopologyError: Both forms are chosen.
        """
        if hashed and approximate is not None:
            message = "deduplication is either hashed or approximate"
            raise InvalidTopologyError(message)
        logic = Deduplicate(ttl, hashed) if approximate is None else ApproximateDeduplicate.of(approximate, ttl)
        return self._operator(logic, self._builder.schema(self._node), self._timestamps)

    def transform_with_state(
        self,
        processor: StatefulProcessor,
        output: Schema,
        *,
        time_mode: str = "None",
        output_mode: str = "Append",
        initial_state: DataFrame | None = None,
        pandas: bool = False,
    ) -> DataStream:
        """Runs a Spark `StatefulProcessor`, unchanged, on our state. Give the result a `.uid(...)`.

        As Spark's `groupBy(...).transformWithState(...)`, or `transformWithStateInPandas` with `pandas=True`; how it differs is in the
        guide. The result has no event time; say which column it is with `with_timestamps`.

        Args:
            processor: Pickled into each subtask.
            output: Columns and types of what it puts out.
            time_mode: `None`, `ProcessingTime` or `EventTime`; event time needs a stream with timestamps.
            output_mode: `Append` or `Update`, which mean the same here.
            initial_state: Rows that `handleInitialState` is given once, before any record; it has the key's columns, and 16 MB at most.
            pandas: Whether the processor takes and gives pandas frames instead of Rows.

        Raises:
            InvalidSchemaError: `output` is not a schema.
            InvalidTopologyError: A mode is none, event time is not there, or the initial state does not fit.
        """
        mode = TimeMode.of(time_mode)
        if output_mode.lower() not in {"append", "update"}:
            message = f"the output mode is {output_mode!r}; Append and Update are there"
            raise InvalidTopologyError(message)
        if mode is TimeMode.EVENT_TIME and self._timestamps is None:
            message = "the time mode EventTime needs a stream with timestamps: see with_timestamps"
            raise InvalidTopologyError(message)
        initial = None if initial_state is None else InitialState.of(initial_state.toArrow(), self.key_schema)
        logic = TransformWithState(processor, mode, RecordForm.PANDAS if pandas else RecordForm.ROWS, initial)
        return self._operator(logic, arrow_schema(output), None)

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...
    @overload
    def connect(self, other: KeyedStream) -> ConnectedStreams: ...
    def connect(self, other: BroadcastStream | KeyedStream) -> BroadcastConnectedStream | ConnectedStreams:
        """Puts another stream beside this one, for one function over both.

        Args:
            other: A keyed stream, for a `KeyedCoProcessFunction`: keys are compared by their values, columns may have other names. The
                watermark is the lower one of both. Or a broadcast stream, for a `KeyedBroadcastProcessFunction`: the watermark is
                this stream's; in each batch the broadcast records are processed before the keyed ones.

        Raises:
            InvalidTopologyError: The other stream is of another environment.
        """
        if other.builder is not self._builder:
            message = "streams of two environments cannot be connected"
            raise InvalidTopologyError(message)
        return BroadcastConnectedStream(self, other) if isinstance(other, BroadcastStream) else other._second_of(self)

    def _second_of(self, first: KeyedStream) -> ConnectedStreams:
        times = self._timestamps
        column, bound_ms = (times.column, times.out_of_orderness_ms) if times else (None, 0)
        return ConnectedStreams(first, SecondInput(self._node, self.schema, self._key_columns, column, bound_ms))

    def window(self, assigner: WindowAssigner) -> WindowedStream:
        """Cuts the records of each key into windows: `TumblingWindows`, `SlidingWindows` or `SessionWindows`.

        Raises:
            InvalidTopologyError: The windows go by event time, and the stream has no timestamps.
        """
        if assigner.time_domain is TimeDomain.EVENT and self._timestamps is None:
            message = "windows by event time need a stream with timestamps: see with_timestamps"
            raise InvalidTopologyError(message)
        return WindowedStream(self, assigner)

    @property
    def schema(self) -> pa.Schema:
        return self._builder.schema(self._node)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._key_columns

    @property
    def key_schema(self) -> pa.Schema:
        return key_schema(self.schema, self._key_columns)

    def windowed(self, logic: OperatorLogic, schema: pa.Schema, side_outputs: Iterable[OutputTag]) -> DataStream:
        """Adds an operator over windows; called by WindowedStream."""
        return self._operator(logic, schema, None, side_outputs)

    def connected(
        self,
        logic: OperatorLogic,
        schema: pa.Schema,
        side_outputs: Iterable[OutputTag],
        *,
        broadcast: NodeId | None = None,
        second: SecondInput | None = None,
    ) -> DataStream:
        """Adds an operator over two streams; called by what `connect` gives."""
        return self._operator(logic, schema, None, side_outputs, broadcast=broadcast, second=second)

    @property
    def builder(self) -> TopologyBuilder:
        """The graph that it is in."""
        return self._builder

    def _operator(
        self,
        logic: OperatorLogic,
        schema: pa.Schema,
        timestamps: Timestamps | None,
        side_outputs: Iterable[OutputTag] = (),
        *,
        broadcast: NodeId | None = None,
        second: SecondInput | None = None,
    ) -> DataStream:
        """Adds the operator; `timestamps` are those of its output."""
        node = self._builder.add_operator(
            self._node,
            key_columns=self._key_columns,
            logic=logic,
            schema=schema,
            timestamp_column=self._timestamps.column if self._timestamps else None,
            out_of_orderness_ms=self._timestamps.out_of_orderness_ms if self._timestamps else 0,
            side_outputs=side_outputs,
            broadcast=broadcast,
            second=second,
        )
        return self._stream_of(node, timestamps)
