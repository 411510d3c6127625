"""Streams: the objects that a script declares a job's graph with."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyscale.state.doors.keyed import TimeDomain, check_ttl, check_type

from ..errors import InvalidTopologyError, UnknownColumnError
from ..functions.batch_function import KeyedBatchFunction
from ..functions.broadcast_function import KeyedBroadcastProcessFunction
from ..functions.given_function import check_aggregation, check_callable, check_function, check_sink
from ..functions.process_function import KeyedCoProcessFunction, KeyedProcessFunction
from ..functions.windows import ProcessWindowFunction, SessionWindows
from ..graph.nodes import DAY_MS, SecondInput, Timestamps, union_timestamps
from ..graph.schemas import Schema, arrow_schema, check_column, key_schema, keyed_schema
from ..graph.topology import dead_letter_tag
from ..operators.aggregate import Aggregate, Reduce
from ..operators.approximate_deduplicate import ApproximateDeduplicate
from ..operators.batch_operator import ProcessBatch
from ..operators.broadcast_operator import BroadcastProcess
from ..operators.co_process_operator import CoProcess
from ..operators.deduplicate import Deduplicate
from ..operators.operator_contract import SPLIT_COLUMN
from ..operators.process_operator import Process
from ..operators.window_contents import Aggregated, Collected, Reduced
from ..operators.window_operator import WINDOW_COLUMNS, Windowing
from ..sources.carried_split import can_name_splits, carrying, with_split
from ..spark_internals.arrow_schemas import arrow_schema_of, spark_schema_of
from ..spark_internals.read_once import reads_once
from ..transform_with_state.initial_state import InitialState
from ..transform_with_state.processor_operator import TransformWithState
from ..transform_with_state.record_form import RecordForm
from ..transform_with_state.time_mode import TimeMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from pyspark.sql import Column, DataFrame, SparkSession

    from keyscale.state.doors.keyed import AggregateFunction, MapStateDescriptor, Ttl

    from ..functions.process_function import (
        OutputTag,
        Row,
    )
    from ..functions.windows import WindowAssigner
    from ..graph.nodes import NodeId
    from ..graph.topology import TopologyBuilder
    from ..operators.bloom_filter import BloomFilter
    from ..operators.operator_contract import OperatorLogic
    from ..operators.window_contents import ContentsLogic
    from ..sinks.sink import Sink


logger = logging.getLogger(__name__)


class DataStream:
    """A stream of records. `StreamEnvironment.stream` and the methods of streams create it."""

    def __init__(
        self,
        spark: SparkSession,
        builder: TopologyBuilder,
        node: NodeId,
        timestamps: Timestamps | None,
        split_columns: tuple[str, ...] = (),
        *,
        carries_split: bool = False,
    ) -> None:
        self._spark = spark
        self._builder = builder
        self._node = node
        self._timestamps = timestamps
        self._split_columns = split_columns
        self._carries_split = carries_split

    @property
    def columns(self) -> list[str]:
        return list(self._schema.names)

    def uid(self, uid: str) -> Self:
        """Names the source or the stateful operator that emits this stream.

        A later run finds an operator's state, and a source's positions, by this name. A job with several sources needs
        a name for each.
        """
        self._builder.name(self._node, uid)
        return self

    def with_timestamps(
        self,
        column: str,
        *,
        max_out_of_orderness_ms: int = 0,
        idle_after_ms: int | None = None,
        split: str | Sequence[str] | None = None,
        max_ahead_ms: int | None = DAY_MS,
    ) -> DataStream:
        """Takes each record's event time from a column.

        The column holds a timestamp, or milliseconds since the epoch.

        An operator's watermark is the latest event time of all records that it has received, minus the bound, minus
        one. It advances between batches and is the same in all subtasks. If records come from several sources, the
        watermark follows the source that is furthest behind; a source without any record yet holds it back.

        If columns identify a record's split, such as a topic's partition, each split with records has its own
        watermark, and the source's watermark is the earliest of the splits' watermarks. So records of a partition that
        lags are not late because another partition is ahead.

        Args:
            column: The column. A record with null in it has no event time.
            max_out_of_orderness_ms: How much older than an earlier record a record may be without being late.
            idle_after_ms: After this time without records, a source, or a split of it, no longer holds back the
                watermark; None for never.
            split: The columns that name the split; () for one watermark per source. By default the split columns of the
                source, if the source has any (a KafkaSource has `topic` and `partition`), also if a select drops them.
            max_ahead_ms: How far a record's event time may be ahead of the processing time, by default a day. A record
                further ahead does not advance the watermark, and windows treat it as late. None for no limit.

        Raises:
            InvalidTopologyError: The column is unknown, a bound is negative, or idle_after_ms is not above zero.
        """
        named = (split,) if isinstance(split, str) else split
        if named is None:
            named = self._split_columns if self._carries_split or self._shows_split(self.columns) else ()
        timestamps = Timestamps(column, max_out_of_orderness_ms, idle_after_ms, tuple(named), max_ahead_ms)
        is_carried = self._carries_split and timestamps.split_columns == self._split_columns
        node = self._builder.add_timestamps(self._node, timestamps, carries_split=is_carried)
        return self._next(node, timestamps, self._split_columns, carries_split=self._carries_split)

    def union(self, *others: DataStream) -> DataStream:
        """Returns the union of this stream and other streams.

        A later transform is called once per source, with the records of that source.

        Raises:
            UnionSchemaError: The streams' columns differ in name, type or order.
            UnionTimestampsError: The event times are in different columns, or only some streams have any.
            InvalidTopologyError: A stream belongs to another environment.
        """
        streams = (self, *others)
        if any(stream._builder is not self._builder for stream in streams):
            raise InvalidTopologyError("streams of two environments cannot be united")
        node = self._builder.add_union([stream._node for stream in streams])
        splits = {stream._split_columns for stream in streams}
        return self._next(
            node,
            union_timestamps([stream._timestamps for stream in streams]),
            splits.pop() if len(splits) == 1 else (),
            carries_split=any(stream._carries_split for stream in streams),
        )

    def broadcast(self, *descriptors: MapStateDescriptor) -> BroadcastStream:
        """Sends every record to every subtask of a connected operator.

        `KeyedStream.connect` connects the result. The driver collects each batch and sends it with the tasks, so
        batches must be small: rules, settings, models.

        Args:
            descriptors: The broadcast states that these records may change and that the keyed stream's records may
                read.
        """
        return BroadcastStream(self._builder, self._node, descriptors)

    def get_side_output(self, tag: OutputTag) -> DataStream:
        """Returns the records that this operator emits to a side output.

        Raises:
            InvalidTopologyError: This is not an operator's output, or the operator does not declare the side output.
        """
        return self._next(self._builder.add_side_output(self._node, tag), None)

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> DataStream:
        """Applies a stateless Spark step to every batch.

        Args:
            function: Takes a DataFrame and returns one. It runs on the driver; it is first called now, with an empty
                DataFrame. It must not run an action, such as a count. Behind an operator, a step that does not read
                all partitions once (limit, sort, join, union, coalesce) gets a cached DataFrame, which takes memory or
                disk of the executors.

        Raises:
            UnknownColumnError: The function names a column that is not in the stream.
            InvalidTopologyError: Spark refuses the function's plan, or the function returned no DataFrame.
        """
        return self._step(function, carrying(function))

    def _step(
        self, function: Callable[[DataFrame], DataFrame], with_split_kept: Callable[[DataFrame], DataFrame]
    ) -> DataStream:
        """Adds a stateless step.

        `with_split_kept` is the same step for frames with the hidden column.
        """
        empty = self._spark.createDataFrame([], spark_schema_of(self._schema))
        try:
            result = function(empty)
            schema = arrow_schema_of(result.schema)
        except AnalysisException as refusal:
            kind = UnknownColumnError if "UNRESOLVED_COLUMN" in str(refusal.getCondition()) else InvalidTopologyError
            raise kind(f"Spark refuses a transform: {str(refusal).splitlines()[0]}") from refusal
        timestamps = self._timestamps if self._timestamps and self._timestamps.column in schema.names else None
        if timestamps is not None and timestamps.split_columns != self._split_columns:
            for name in timestamps.split_columns:
                check_column(schema, name, "split")
        carried = self._step_with_split(with_split_kept, empty, schema)
        if carried is None and self._carries_split:
            plain = function

            def function(frame: DataFrame) -> DataFrame:
                return plain(frame.drop(SPLIT_COLUMN))

        node = self._builder.add_transform(
            self._node,
            carried or function,
            schema,
            reads_once=reads_once(result),
            carries_split=carried is not None,
        )
        return self._next(node, timestamps, self._split_columns, carries_split=carried is not None)

    def _step_with_split(
        self, kept: Callable[[DataFrame], DataFrame], empty: DataFrame, schema: pa.Schema
    ) -> Callable[[DataFrame], DataFrame] | None:
        """Returns a step that carries records' splits in the hidden column.

        Returns None if the column is not needed, or if the step cannot carry it.
        """
        columns, step = self._split_columns, kept
        if not self._carries_split:
            begins = columns and self._shows_split(self.columns) and not self._shows_split(schema.names)
            if not begins or not can_name_splits(empty.schema, columns):
                return None

            def step(frame: DataFrame) -> DataFrame:
                return kept(with_split(frame, columns))

        try:
            step(with_split(empty, ()) if self._carries_split else empty)
        except (AnalysisException, InvalidTopologyError):
            logger.warning("a transform loses the splits of its records: their source has one watermark from there on")
            return None
        return step

    def _shows_split(self, names: Sequence[str]) -> bool:
        return set(self._split_columns) <= set(names)

    def where(self, condition: Column | str) -> DataStream:
        def filtered(frame: DataFrame) -> DataFrame:
            return frame.where(condition)

        return self._step(filtered, filtered)

    def select(self, *columns: Column | str) -> DataStream:
        return self._step(
            lambda frame: frame.select(*columns), lambda frame: frame.select(*columns, F.col(SPLIT_COLUMN))
        )

    def with_column(self, name: str, column: Column | str) -> DataStream:
        """Adds a column, or replaces the column of this name.

        Args:
            name: The name of the column.
            column: A Spark column, or an SQL expression over the stream's columns, such as "amount * 2".
        """

        def with_column(frame: DataFrame) -> DataFrame:
            return frame.withColumn(name, F.expr(column) if isinstance(column, str) else column)

        return self._step(with_column, with_column)

    def key_by(self, *columns: str) -> KeyedStream:
        """Partitions the stream by key.

        All records of a key go to one subtask and share one state. A key may be null.

        Raises:
            UnknownColumnError: A column is not in the stream.
            InvalidKeyError: A column's type cannot be a key.
        """
        key_schema(self._schema, columns)
        return KeyedStream(self, columns)

    def sink_to(self, sink: Sink) -> StreamSink:
        """Ends a branch of the job with a sink.

        Give the result a `.uid(...)`.

        Raises:
            InvalidTopologyError: The sink is a class, a function or a path.
        """
        check_sink(sink)
        return StreamSink(self._builder, self._builder.add_sink(self._node, sink))

    def get_dead_letters(self) -> DataStream:
        """Returns the records on which this stream's function failed.

        The column `error` holds the exception.

        Raises:
            InvalidTopologyError: This is not the output of an operator with `dead_letters=True`.
        """
        return self._next(self._builder.add_dead_letters(self._node), None)

    @property
    def _schema(self) -> pa.Schema:
        return self._builder.schema(self._node)

    def _next(
        self,
        node: NodeId,
        timestamps: Timestamps | None,
        split_columns: tuple[str, ...] = (),
        *,
        carries_split: bool = False,
    ) -> DataStream:
        return DataStream(self._spark, self._builder, node, timestamps, split_columns, carries_split=carries_split)


class KeyedStream:
    """A stream partitioned by key, the input of stateful operators.

    `DataStream.key_by` creates it.
    """

    def __init__(self, stream: DataStream, key_columns: tuple[str, ...]) -> None:
        self._stream = stream
        self._builder = stream._builder
        self._node = stream._node
        self._key_columns = key_columns
        self._timestamps = stream._timestamps

    def process(
        self,
        function: KeyedProcessFunction | KeyedBatchFunction,
        *,
        output: Schema,
        side_outputs: Iterable[OutputTag] = (),
        dead_letters: bool = False,
    ) -> DataStream:
        """Runs a function over the records, with the state of their keys.

        Give the result a `.uid(...)`. Records of a key are processed batch after batch, and within a partition of a
        batch in their order.

        Args:
            function: The function; it is pickled into each subtask. A KeyedBatchFunction takes whole Arrow batches,
                which is the fast path.
            output: Columns and types of the emitted records.
            side_outputs: Further outputs, which `context.output` emits to and `get_side_output` returns.
            dead_letters: Whether a record on which `process_element` raises becomes a dead letter, without any effect
                on state, timers and outputs, instead of failing the batch; `get_dead_letters` returns these records. An
                exception in `on_timer` still fails the batch.

        Raises:
            InvalidSchemaError: `output` is not a schema.
            InvalidTopologyError: `dead_letters` is set for a KeyedBatchFunction.
        """
        if isinstance(function, KeyedBatchFunction):
            if dead_letters:
                raise InvalidTopologyError("a KeyedBatchFunction has no dead letters: it takes many records at once")
            return self._operator(ProcessBatch(function), arrow_schema(output), None, side_outputs)
        check_function(function, KeyedProcessFunction, KeyedBatchFunction)
        diverted = dead_letter_tag(self.schema)
        logic = Process(function, diverted.name if dead_letters else None)
        tags = [*side_outputs, diverted] if dead_letters else side_outputs
        return self._operator(logic, arrow_schema(output), None, tags)

    def reduce(self, function: Callable[[Row, Row], Any], *, ttl: Ttl | None = None) -> DataStream:
        """Reduces the records of each key, and emits every intermediate result.

        Give the result a `.uid(...)`.

        Args:
            function: Combines the key's reduced record and a further record into the new reduced record: a row, a tuple
                or a dict of all columns. The first reduced record is the key's first record.
            ttl: How long a reduced record is kept after its key's last record; None to keep it forever.
        """
        check_callable(function)
        check_ttl(ttl)
        return self._operator(Reduce(function, ttl), self._builder.schema(self._node), self._timestamps)

    def aggregate(
        self, function: AggregateFunction, *, accumulator: pa.DataType, output: Schema, ttl: Ttl | None = None
    ) -> DataStream:
        """Aggregates the records of each key, and emits every intermediate result.

        Give the result a `.uid(...)`. Each record emits its key and the current result.

        Args:
            function: `add` takes each record as a Row; `get_result` returns the columns of `output` as a dict or a
                tuple.
            accumulator: The accumulator's Arrow type, such as `pa.struct([("count", pa.int64())])` for a dict.
            output: The columns of the result. The key's columns are put before them automatically.
            ttl: How long an accumulator is kept after its key's last record; None to keep it forever.

        Raises:
            InvalidSchemaError: `output` is not a schema, or has a column of the key.
        """
        check_aggregation(function)
        check_type(accumulator, "the accumulator")
        check_ttl(ttl)
        schema = keyed_schema(self.key_schema, arrow_schema(output))
        return self._operator(Aggregate(function, accumulator, ttl), schema, None)

    def deduplicate(
        self, *, ttl: Ttl | None = None, hashed: bool = False, approximate: BloomFilter | None = None
    ) -> DataStream:
        """Emits the first record of each key and drops later records.

        Give the result a `.uid(...)`. Deduplication is exact by default. Two other forms use fewer bytes per key but
        sometimes drop a record with a new key. No form emits a second record of a key that it remembers. Each form
        refuses the state of another form.

        Args:
            ttl: How long a key is remembered; None for forever.
            hashed: Whether to store the 64-bit hash of a key instead of the key: 11 bytes with the key group, however
                long the key is. A record is lost if its key has the same hash as another remembered key: among n keys
                with a probability of at most n²/2⁶⁵. That is 1 in 37 million for a million keys and 1 in 37 for a
                billion; for 10 billion keys, expect 3 lost records. A key is compared only with those of its key group,
                so these probabilities are divided by the number of key groups.
            approximate: Keep one Bloom filter per key group. With an error of 1 % and a TTL it takes 11 bits per key
                and generation, in two generations. A record with a new key is lost with a probability of at most
                `error_rate`, as long as at most `capacity` keys arrive per TTL; with twice as many keys, 12 to 100
                times as often. Keys are remembered for at least the TTL and less than twice the TTL. Capacity, error
                rate and TTL cannot be changed later.

        Raises:
            InvalidTopologyError: Both forms are chosen.
        """
        if hashed and approximate is not None:
            raise InvalidTopologyError("choose either hashed or approximate deduplication")
        check_ttl(ttl)
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
        """Runs an unchanged Spark `StatefulProcessor` on Keyscale's state.

        Give the result a `.uid(...)`. This corresponds to Spark's `groupBy(...).transformWithState(...)`, or with
        `pandas=True` to `transformWithStateInPandas`; the guide lists the differences. The result has no event time:
        assign it with `with_timestamps`.

        Args:
            processor: The processor; it is pickled into each subtask.
            output: Columns and types of the emitted records.
            time_mode: `None`, `ProcessingTime` or `EventTime`. Event time needs a stream with timestamps.
            output_mode: `Append` or `Update`, which mean the same here.
            initial_state: Rows for `handleInitialState`, given once, before any record. They have the key's columns and
                take at most 16 MB.
            pandas: Whether the processor takes and returns pandas DataFrames instead of Rows.

        Raises:
            InvalidSchemaError: `output` is not a schema.
            InvalidTopologyError: A mode is unknown, the stream lacks timestamps, or the initial state does not fit.
        """
        check_function(processor, StatefulProcessor)
        mode = TimeMode.of(time_mode)
        if output_mode.lower() not in {"append", "update"}:
            raise InvalidTopologyError(f"the output mode is {output_mode!r}; it must be Append or Update")
        if mode is TimeMode.EVENT_TIME and self._timestamps is None:
            raise InvalidTopologyError("the time mode EventTime needs a stream with timestamps: see with_timestamps")
        initial = None if initial_state is None else InitialState.of(initial_state.toArrow(), self.key_schema)
        logic = TransformWithState(processor, mode, RecordForm.PANDAS if pandas else RecordForm.ROWS, initial)
        return self._operator(logic, arrow_schema(output), None)

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...
    @overload
    def connect(self, other: KeyedStream) -> ConnectedStreams: ...
    def connect(self, other: BroadcastStream | KeyedStream) -> BroadcastConnectedStream | ConnectedStreams:
        """Connects another stream with this one, for one function over both.

        Args:
            other: A keyed stream, for a `KeyedCoProcessFunction`. Keys are compared by value; the key columns may have
                other names. The watermark is the lower of the two watermarks. Or a broadcast stream, for a
                `KeyedBroadcastProcessFunction`. The watermark is this stream's; in each batch the broadcast records are
                processed before the keyed records.

        Raises:
            InvalidTopologyError: The other stream belongs to another environment.
        """
        if other._builder is not self._builder:
            raise InvalidTopologyError("streams of two environments cannot be connected")
        return BroadcastConnectedStream(self, other) if isinstance(other, BroadcastStream) else other._second_of(self)

    def _second_of(self, first: KeyedStream) -> ConnectedStreams:
        times = self._timestamps
        second = SecondInput(self._node, self.schema, self._key_columns)
        if times is not None:
            second = replace(
                second,
                timestamp_column=times.column,
                out_of_orderness_ms=times.out_of_orderness_ms,
                max_ahead_ms=times.max_ahead_ms,
            )
        return ConnectedStreams(first, second)

    def window(self, assigner: WindowAssigner) -> WindowedStream:
        """Assigns the records of each key to windows: `TumblingWindows`, `SlidingWindows` or `SessionWindows`.

        Raises:
            InvalidTopologyError: The windows use event time, and the stream has no timestamps.
        """
        if assigner.time_domain is TimeDomain.EVENT and self._timestamps is None:
            raise InvalidTopologyError("windows by event time need a stream with timestamps: see with_timestamps")
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
        """Adds an operator.

        `timestamps` describes the event time of its output.
        """
        node = self._builder.add_operator(
            self._node,
            key_columns=self._key_columns,
            logic=logic,
            schema=schema,
            timestamp_column=self._timestamps.column if self._timestamps else None,
            out_of_orderness_ms=self._timestamps.out_of_orderness_ms if self._timestamps else 0,
            max_ahead_ms=self._timestamps.max_ahead_ms if self._timestamps else None,
            side_outputs=side_outputs,
            broadcast=broadcast,
            second=second,
        )
        return self._stream._next(node, timestamps)


class WindowedStream:
    """A keyed stream in windows. `KeyedStream.window` creates it.

    A window is emitted when it is complete: when the watermark, or the processing time, reaches its last millisecond.
    Each output record has the key's columns, `window_start` and `window_end` (milliseconds since the epoch), and the
    declared columns.
    """

    def __init__(self, stream: KeyedStream, assigner: WindowAssigner) -> None:
        self._stream = stream
        self._assigner = assigner
        self._allowed_lateness_ms = 0
        self._late_tag: OutputTag | None = None
        self._early_every_ms: int | None = None

    def allowed_lateness(self, lateness_ms: int) -> Self:
        """Keeps complete windows for some time to include late records.

        Each late record makes its window fire again.

        Raises:
            InvalidTopologyError: The time is negative.
        """
        if lateness_ms < 0:
            raise InvalidTopologyError(f"the allowed lateness cannot be {lateness_ms} ms")
        self._allowed_lateness_ms = lateness_ms
        return self

    def side_output_late_data(self, tag: OutputTag) -> Self:
        """Emits records that arrive after their windows to a side output.

        Records without event time, or too far ahead of the clock, are emitted there too.

        Args:
            tag: The side output; its schema is this stream's schema.
        """
        self._late_tag = tag
        return self

    def early_firing(self, every_ms: int) -> Self:
        """Emits current results of incomplete windows periodically.

        The interval is processing time.

        Raises:
            InvalidTopologyError: The interval is not above zero.
        """
        if every_ms <= 0:
            raise InvalidTopologyError(f"windows cannot fire every {every_ms} ms")
        self._early_every_ms = every_ms
        return self

    def reduce(self, function: Callable[[Row, Row], Any]) -> DataStream:
        """Reduces the records of each window to one emitted record.

        Give the result a `.uid(...)`.
        """
        check_callable(function)
        whole = self._stream.schema
        key = self._stream.key_columns
        return self._operator(Reduced(function, whole), pa.schema([field for field in whole if field.name not in key]))

    def aggregate(self, function: AggregateFunction, *, accumulator: pa.DataType, output: Schema) -> DataStream:
        """Aggregates the records of each window.

        Give the result a `.uid(...)`.

        Args:
            function: As for `KeyedStream.aggregate`; `merge` joins the accumulators of sessions that are merged.
            accumulator: The accumulator's Arrow type.
            output: The columns that `get_result` returns.
        """
        check_aggregation(function, merges=isinstance(self._assigner, SessionWindows))
        check_type(accumulator, "the accumulator")
        return self._operator(Aggregated(function, accumulator), arrow_schema(output))

    def process(self, function: ProcessWindowFunction, *, output: Schema) -> DataStream:
        """Keeps all records of each window and runs a function over them.

        Give the result a `.uid(...)`.
        """
        check_function(function, ProcessWindowFunction)
        return self._operator(Collected(function, self._stream.schema), arrow_schema(output))

    def _operator(self, contents: ContentsLogic, results: pa.Schema) -> DataStream:
        logic = Windowing(
            self._assigner,
            contents,
            allowed_lateness_ms=self._allowed_lateness_ms,
            late_output=None if self._late_tag is None else self._late_tag.name,
            early_every_ms=self._early_every_ms,
        )
        columns = keyed_schema(WINDOW_COLUMNS, results)
        schema = keyed_schema(self._stream.key_schema, columns)
        return self._stream._operator(logic, schema, None, () if self._late_tag is None else (self._late_tag,))


class BroadcastStream:
    """A stream that sends all records to every subtask of an operator.

    `DataStream.broadcast` creates it.
    """

    def __init__(self, builder: TopologyBuilder, node: NodeId, descriptors: tuple[MapStateDescriptor, ...]) -> None:
        self._builder = builder
        self._node = node
        self._descriptors = descriptors


class ConnectedStreams:
    """Two connected keyed streams. `KeyedStream.connect` creates it."""

    def __init__(self, first: KeyedStream, second: SecondInput) -> None:
        self._first = first
        self._second = second

    def process(
        self, function: KeyedCoProcessFunction, *, output: Schema, side_outputs: Iterable[OutputTag] = ()
    ) -> DataStream:
        """Runs a function over both streams, with shared state per key.

        Give the result a `.uid(...)`.

        Args:
            function: The function; it is pickled into each subtask.
            output: Columns and types of the emitted records.
            side_outputs: Further outputs of the function.

        Raises:
            InvalidSchemaError: `output` is not a schema.
            InvalidKeyError: The keys of the streams have different types.
        """
        check_function(function, KeyedCoProcessFunction)
        return self._first._operator(CoProcess(function), arrow_schema(output), None, side_outputs, second=self._second)


class BroadcastConnectedStream:
    """A keyed stream connected with a broadcast stream. `KeyedStream.connect` creates it."""

    def __init__(self, keyed: KeyedStream, broadcast: BroadcastStream) -> None:
        self._keyed = keyed
        self._broadcast = broadcast

    def process(
        self, function: KeyedBroadcastProcessFunction, *, output: Schema, side_outputs: Iterable[OutputTag] = ()
    ) -> DataStream:
        """Runs a function over the records of both streams.

        Give the result a `.uid(...)`.

        Args:
            function: The function; it is pickled into each subtask.
            output: Columns and types of the emitted records.
            side_outputs: Further outputs of the function.

        Raises:
            InvalidSchemaError: `output` is not a schema.
        """
        check_function(function, KeyedBroadcastProcessFunction)
        logic = BroadcastProcess(function, self._broadcast._descriptors)
        node = self._broadcast._node
        return self._keyed._operator(logic, arrow_schema(output), None, side_outputs, broadcast=node)


class StreamSink:
    """A sink in the graph. `DataStream.sink_to` creates it."""

    def __init__(self, builder: TopologyBuilder, node: NodeId) -> None:
        self._builder = builder
        self._node = node

    def uid(self, uid: str) -> Self:
        """Names the sink.

        Name and batch number form the key under which output is written exactly once.
        """
        self._builder.name(self._node, uid)
        return self
