"""Streams: how a job's graph is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from jobs.connected_streams import BroadcastStream
from jobs.errors import InvalidTopologyError, UnknownColumnError
from jobs.keyed_stream import KeyedStream
from jobs.stream_sink import StreamSink
from jobs.topology import Timestamps, key_schema
from jobs.union_schema import union_timestamps

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from jobs.functions import OutputTag
    from jobs.sinks import Sink
    from jobs.topology import NodeId, TopologyBuilder
    from state.descriptors import MapStateDescriptor


class DataStream:
    """A stream of records. Made by `StreamEnvironment.stream` and by the methods here."""

    def __init__(
        self, spark: SparkSession, builder: TopologyBuilder, node: NodeId, timestamps: Timestamps | None
    ) -> None:
        self._spark = spark
        self._builder = builder
        self._node = node
        self._timestamps = timestamps

    @property
    def columns(self) -> list[str]:
        return list(self._schema.names)

    def uid(self, uid: str) -> Self:
        """Names the source or the stateful operator that puts out this stream: it is found again by this name.

        A job with several sources needs a name for each: how far it was read is found by it.
        """
        self._builder.name(self._node, uid)
        return self

    def with_timestamps(
        self, column: str, *, max_out_of_orderness_ms: int = 0, idle_after_ms: int | None = None
    ) -> DataStream:
        """Takes each record's event time from a column: a timestamp, or milliseconds since the epoch.

        An operator's watermark is the latest event time of all records that it has had, less the bound, and less one. It moves
        between batches, and is the same in all subtasks. Where records come from several sources it is that of the source which is
        the least far; a source that has had no record yet holds it back.

        Args:
            column: The column. A record whose value is null has no event time.
            max_out_of_orderness_ms: By how much a record may be older than one that came before it, and not be late.
            idle_after_ms: For how long a source must have had no records here until the others' watermarks go on without it; for
                ever if None.

        Raises:
            InvalidTopologyError: There is no such column, the bound is negative, or idle_after_ms is not above zero.
        """
        timestamps = Timestamps(column, max_out_of_orderness_ms, idle_after_ms)
        return self._next(self._builder.add_timestamps(self._node, timestamps), timestamps)

    def union(self, *others: DataStream) -> DataStream:
        """This stream and others as one. A transform after it is called on the records of each source by themselves.

        Raises:
            UnionSchemaError: They have not the same columns, in name, type and order.
            UnionTimestampsError: Their event times are in different columns, or some have none.
            InvalidTopologyError: One is of another environment.
        """
        streams = (self, *others)
        if any(stream._builder is not self._builder for stream in streams):
            message = "streams of two environments cannot be one"
            raise InvalidTopologyError(message)
        node = self._builder.add_union([stream._node for stream in streams])
        return self._next(node, union_timestamps([stream._timestamps for stream in streams]))

    def broadcast(self, *descriptors: MapStateDescriptor) -> BroadcastStream:
        """Has every subtask of an operator get every record; to be given to `KeyedStream.connect`.

        A batch of it is collected on the driver and sent along with the tasks, so it has to be small: rules, settings, models.

        Args:
            descriptors: The broadcast states that the records may change, and that the keyed side sees.
        """
        return BroadcastStream(self._builder, self._node, descriptors)

    def get_side_output(self, tag: OutputTag) -> DataStream:
        """The records that the operator which puts out this stream has put into a side output.

        Raises:
            InvalidTopologyError: This is no operator's output, or the side output was not declared.
        """
        return self._next(self._builder.add_side_output(self._node, tag), None)

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> DataStream:
        """Applies a stateless Spark step to every batch.

        Args:
            function: Gets a DataFrame and returns one; it is called on the driver, and first of all now, with an empty
                DataFrame. It must read its input once: no action, no sort, no self-join or self-union.

        Raises:
            UnknownColumnError: It names a column that is not there.
            InvalidTopologyError: Spark refuses it, or it returned no DataFrame.
        """
        empty = self._spark.createDataFrame([], from_arrow_schema(self._schema, prefer_timestamp_ntz=True))
        try:
            result = function(empty)
            schema = to_arrow_schema(result.schema, timezone="UTC")
        except AnalysisException as refusal:
            kind = UnknownColumnError if "UNRESOLVED_COLUMN" in str(refusal.getCondition()) else InvalidTopologyError
            message = f"Spark refuses a transform: {str(refusal).splitlines()[0]}"
            raise kind(message) from refusal
        timestamps = self._timestamps if self._timestamps and self._timestamps.column in schema.names else None
        return self._next(self._builder.add_transform(self._node, function, schema), timestamps)

    def where(self, condition: Column | str) -> DataStream:
        return self.transform(lambda frame: frame.where(condition))

    def select(self, *columns: Column | str) -> DataStream:
        return self.transform(lambda frame: frame.select(*columns))

    def with_column(self, name: str, column: Column) -> DataStream:
        return self.transform(lambda frame: frame.withColumn(name, column))

    def key_by(self, *columns: str) -> KeyedStream:
        """Partitions the stream by key: records of one key meet in one subtask, with one state. A key may be null.

        Raises:
            UnknownColumnError: A column is not in the stream.
            InvalidKeyError: A column's type cannot be a key.
        """
        key_schema(self._schema, columns)
        return KeyedStream(self._next, self._builder, self._node, columns, self._timestamps)

    def sink_to(self, sink: Sink) -> StreamSink:
        """Ends a branch of the job. The sink needs a uid, too."""
        return StreamSink(self._builder, self._builder.add_sink(self._node, sink))

    def get_dead_letters(self) -> DataStream:
        """The records that the function which puts out this stream has failed on, with a column `error`: the kind of exception.

        Raises:
            InvalidTopologyError: This is no operator's output, or its dead letters were not asked for.
        """
        return self._next(self._builder.add_dead_letters(self._node), None)

    @property
    def _schema(self) -> pa.Schema:
        return self._builder.schema(self._node)

    def _next(self, node: NodeId, timestamps: Timestamps | None) -> DataStream:
        return DataStream(self._spark, self._builder, node, timestamps)
