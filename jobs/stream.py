"""Streams: how a job's graph is written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructType

from jobs.aggregate import Aggregate, Reduce, keyed_schema
from jobs.batch_function import KeyedBatchFunction, ProcessBatch
from jobs.deduplicate import Deduplicate
from jobs.errors import InvalidSchemaError, InvalidTopologyError, UnknownColumnError
from jobs.process import Process
from jobs.topology import check_column, key_schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from pyspark.sql import Column, DataFrame, SparkSession

    from jobs.functions import KeyedProcessFunction, Row
    from jobs.runtime.body import OperatorLogic
    from jobs.sinks import Sink
    from jobs.topology import NodeId, TopologyBuilder
    from state.descriptors import AggregateFunction
    from state.ttl import Ttl

Schema: TypeAlias = Mapping[str, str] | str | StructType | pa.Schema
"""An output schema: {"column": "Spark type"}, a DDL string, a Spark or an Arrow schema."""


class DataStream:
    """A stream of records. Made by `StreamEnvironment.stream` and by the methods here."""

    def __init__(self, spark: SparkSession, builder: TopologyBuilder, node: NodeId, timestamp: str | None) -> None:
        self._spark = spark
        self._builder = builder
        self._node = node
        self._timestamp = timestamp

    @property
    def columns(self) -> list[str]:
        return list(self._schema.names)

    def uid(self, uid: str) -> Self:
        """Names the stateful operator that puts out this stream: its state is found again by this name."""
        self._builder.name(self._node, uid)
        return self

    def with_timestamps(self, column: str) -> DataStream:
        """Takes each record's event time from a column: a timestamp, or milliseconds since the epoch."""
        check_column(self._schema, column, "timestamp")
        return DataStream(self._spark, self._builder, self._node, column)

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
        timestamp = self._timestamp if self._timestamp in schema.names else None
        return self._next(self._builder.add_transform(self._node, function, schema), timestamp)

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
        return KeyedStream(self._spark, self._builder, self._node, columns, self._timestamp)

    def sink_to(self, sink: Sink) -> StreamSink:
        """Ends a branch of the job. The sink needs a uid, too."""
        return StreamSink(self._builder, self._builder.add_sink(self._node, sink))

    @property
    def _schema(self) -> pa.Schema:
        return self._builder.schema(self._node)

    def _next(self, node: NodeId, timestamp: str | None) -> DataStream:
        return DataStream(self._spark, self._builder, node, timestamp)


class StreamSink:
    """A sink in the graph, to be named."""

    def __init__(self, builder: TopologyBuilder, node: NodeId) -> None:
        self._builder = builder
        self._node = node

    def uid(self, uid: str) -> Self:
        """Names the sink: with the batch's number it is the key under which output is written once."""
        self._builder.name(self._node, uid)
        return self


class KeyedStream:
    """A stream partitioned by key: what stateful operators work on."""

    def __init__(
        self,
        spark: SparkSession,
        builder: TopologyBuilder,
        node: NodeId,
        key_columns: tuple[str, ...],
        timestamp: str | None,
    ) -> None:
        self._spark = spark
        self._builder = builder
        self._node = node
        self._key_columns = key_columns
        self._timestamp = timestamp

    def process(self, function: KeyedProcessFunction | KeyedBatchFunction, *, output: Schema) -> DataStream:
        """Runs a function over the records, with the state of their keys. Give the result a `.uid(...)`.

        Records of one key are processed in their order within a partition of the batch, and batch after batch.

        Args:
            function: Pickled into each subtask. A KeyedBatchFunction is given whole Arrow batches: the fast path.
            output: Columns and types of the records that it puts out.

        Raises:
            InvalidSchemaError: `output` is not a schema.
        """
        logic = ProcessBatch(function) if isinstance(function, KeyedBatchFunction) else Process(function)
        return self._operator(logic, arrow_schema(output), None)

    def reduce(self, function: Callable[[Row, Row], Any], *, ttl: Ttl | None = None) -> DataStream:
        """Reduces the records of each key into one, and puts out the new one after each. Give the result a `.uid(...)`.

        Args:
            function: From what the key has and a further record to what it has then: a row, a tuple or a dict of all
                columns. A key's first record is what it has first.
            ttl: How long what a key has is kept after its last record; for ever if None.
        """
        return self._operator(Reduce(function, ttl), self._builder.schema(self._node), self._timestamp)

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
        key = key_schema(self._builder.schema(self._node), self._key_columns)
        schema = keyed_schema(key, arrow_schema(output))
        return self._operator(Aggregate(function, accumulator, ttl), schema, None)

    def deduplicate(self, *, ttl: Ttl | None = None) -> DataStream:
        """Lets the first record of each key through, and drops later ones. Give the result a `.uid(...)`.

        Args:
            ttl: How long a key is remembered; for ever if None.
        """
        return self._operator(Deduplicate(ttl), self._builder.schema(self._node), self._timestamp)

    def _operator(self, logic: OperatorLogic, schema: pa.Schema, timestamp: str | None) -> DataStream:
        node = self._builder.add_operator(
            self._node, key_columns=self._key_columns, logic=logic, schema=schema, timestamp_column=self._timestamp
        )
        return DataStream(self._spark, self._builder, node, timestamp)


def arrow_schema(declared: Schema) -> pa.Schema:
    """An output schema in any of its forms as Arrow's.

    Raises:
        InvalidSchemaError: It is none.
    """
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, Mapping):
        declared = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in declared.items())
    if isinstance(declared, str):
        try:
            declared = DataType.fromDDL(declared)
        except ParseException as refusal:
            message = f"an output schema cannot be read: {str(refusal).strip().splitlines()[0]}"
            raise InvalidSchemaError(message) from refusal
    if not isinstance(declared, StructType):
        message = f"an output schema is declared as a {type(declared).__name__}"
        raise InvalidSchemaError(message)
    return to_arrow_schema(declared, timezone="UTC")
