"""Spark's data source `keyscale-state`: the state in snapshots as DataFrames.

The options follow the words of Spark's own `statestore` source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from keyscale.errors import KeyscaleError

from .key_text import key_of_text
from .state_partition import partitions_of
from .state_reader import KeyedStateTable, StateReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from .state_partition import StatePartition

NAME = "keyscale-state"
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


class StateOptionError(KeyscaleError):
    """An option of the data source is missing or wrong."""

    code = "STATE_SPARK_OPTION_INVALID"
    domain = "user"
    advice = "Set the option as the message says; docs/guide/state-as-data.md lists the options."


def register(spark: SparkSession) -> None:
    """Makes the data source known to a Spark session."""
    spark.dataSource.register(StateDataSource)


def read(spark: SparkSession, location: str) -> dict[tuple[str, str], DataFrame]:
    """Returns a DataFrame per state in a snapshot, by operator and state.

    Raises:
        KeyscaleError: The store does not answer, or the manifest cannot be read.
    """
    register(spark)
    with StateReader.open(location) as reader:
        names = [(table.operator, table.name) for table in reader.tables()]
    source = spark.read.format(NAME).option("path", location)
    return {(uid, name): source.option("operator", uid).option("state", name).load() for uid, name in names}


class StateDataSource(DataSource):
    """The data source, with the options `path`, `operator`, `state`, `key` and `flattenCollectionTypes`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        table = self._table()
        return from_arrow_schema(pa.schema([pa.field(each.name, _spark_type(each.type)) for each in table]))

    def reader(self, schema: StructType) -> StateDataSourceReader:
        return StateDataSourceReader(_Options(self.options), schema)

    def _table(self) -> pa.Schema:
        options = _Options(self.options)
        with StateReader.open(options.path) as reader:
            return reader.table(options.operator, options.state, nested=options.nested).schema


class _Options:
    """The checked options of a read."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self.path, self.operator, self.state = (self._required(name) for name in ("path", "operator", "state"))
        self.key = self._given.get("key")
        flat = self._given.get("flattencollectiontypes", "true").lower()
        if flat not in {"true", "false"}:
            raise StateOptionError("the option flattenCollectionTypes is true or false")
        self.nested = flat == "false"

    def _required(self, name: str) -> str:
        if not self._given.get(name):
            raise StateOptionError(f"the option {name!r} is required")
        return self._given[name]


class _Partition(InputPartition):
    def __init__(self, part: StatePartition) -> None:
        super().__init__(None)
        self.part = part


class StateDataSourceReader(DataSourceReader):
    """Reads the shards of an operator in parallel, or a single key.

    Filters are not pushed down: Spark 4.3 keeps a pushed filter for all later queries of the same DataFrame.
    """

    def __init__(self, options: _Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        parts = partitions_of(options.path, options.operator, options.state, key=self._key(), nested=options.nested)
        return [_Partition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Partition)  # noqa: S101 - from `partitions`
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for batch in partition.part.batches():
            yield from pa.Table.from_batches([batch]).cast(schema).to_batches()

    def _key(self) -> tuple[Any, ...] | None:
        """Returns the key of the option, or None."""
        options = self._options
        if options.key is None:
            return None
        with StateReader.open(options.path) as reader:
            table = reader.table(options.operator, options.state)
            if not isinstance(table, KeyedStateTable):
                raise StateOptionError(f"{options.state!r} is operator state, which has no keys")
            columns = table.stored.key_schema
        return key_of_text(options.key, columns)


def _spark_type(of_type: pa.DataType) -> pa.DataType:
    """Returns the type that Spark has for a column."""
    types = pa.types
    if types.is_timestamp(of_type):
        return pa.timestamp("us", of_type.tz)
    if types.is_fixed_size_binary(of_type):
        return pa.binary()
    if types.is_list(of_type):
        return pa.list_(_spark_type(of_type.value_type))
    if types.is_map(of_type):
        return pa.map_(_spark_type(of_type.key_type), _spark_type(of_type.item_type))
    if types.is_struct(of_type):
        return pa.struct([pa.field(each.name, _spark_type(each.type)) for each in of_type])
    return _WIDER.get(of_type, of_type)
