"""What a job's script runs in."""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.pandas.types import to_arrow_schema

from jobs.errors import NoEnvironmentError, NotStreamingError
from jobs.sources.stream import streaming_frame
from jobs.stream import DataStream
from jobs.topology import TopologyBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from jobs.sources import Source
    from jobs.topology import Topology
    from jobs.wire import RestartStrategy
    from state.settings import RocksDbSettings


class StreamEnvironment:
    """Where a job is declared and executed; the driver provides it to the script.

    Attributes:
        spark: The session to read sources with.
        parameters: What the job was created with: text by name.
        restart: The restart strategy that the script has set, if any.
    """

    _provided: ClassVar[StreamEnvironment | None] = None

    def __init__(self, spark: SparkSession, parameters: Mapping[str, str], run: Callable[[Topology], None]) -> None:
        """Made by the driver.

        Args:
            spark: The session.
            parameters: The job's parameters.
            run: Runs a topology; returns when the job has ended.
        """
        self.spark = spark
        self.parameters = MappingProxyType(dict(parameters))
        self.restart: RestartStrategy | None = None
        self._run = run
        self._builder = TopologyBuilder()

    @classmethod
    def current(cls) -> StreamEnvironment:
        """The environment of the job that this script declares.

        Raises:
            NoEnvironmentError: The script is not run by a driver.
        """
        if cls._provided is None:
            message = "no job is being declared: this script runs outside a driver"
            raise NoEnvironmentError(message)
        return cls._provided

    @contextmanager
    def provided(self) -> Iterator[None]:
        """Makes this the current environment while a script runs."""
        StreamEnvironment._provided = self
        try:
            yield
        finally:
            StreamEnvironment._provided = None

    def stream(
        self,
        frame: DataFrame,
        *,
        timestamp: str | None = None,
        max_out_of_orderness_ms: int = 0,
        idle_after_ms: int | None = None,
    ) -> DataStream:
        """A stream of the records of a streaming DataFrame: a source of the job.

        A job may have several. Each then needs a `.uid(...)`, by which a later run finds how far it was read.

        Args:
            frame: What `spark.readStream` gave, with any stateless Spark transformations.
            timestamp: A column that holds each record's event time; see `DataStream.with_timestamps`, also for the other two.
            max_out_of_orderness_ms: By how much a record may be older than one that came before it, and not be late.
            idle_after_ms: For how long it must have no records until other sources need not wait for it.

        Raises:
            NotStreamingError: The DataFrame is not a streaming one.
            InvalidTopologyError: Its schema cannot be a stream's.
        """
        if not frame.isStreaming:
            message = "the input is a DataFrame of a fixed content"
            raise NotStreamingError(message)
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        stream = DataStream(self.spark, self._builder, self._builder.add_source(frame, schema), None)
        if timestamp is None:
            return stream
        return stream.with_timestamps(
            timestamp, max_out_of_orderness_ms=max_out_of_orderness_ms, idle_after_ms=idle_after_ms
        )

    def rocksdb_settings(self, settings: RocksDbSettings) -> None:
        """Sets up the stores of the job's state, such as by `RocksDbSettings.of(Profile.FLASH_SSD)`; else they have defaults.

        They apply from the job's next start on, to the state that is there as well. docs/settings.md explains each option.
        """
        self._builder.rocksdb = settings

    def set_restart_strategy(self, strategy: RestartStrategy) -> None:
        """Say whether and when the job is started again after a failure, unless it was created with a strategy."""
        self.restart = strategy

    def read(
        self, source: Source, *, max_records_per_batch: int | None = None, readers: int | None = None
    ) -> DataFrame:
        """A streaming DataFrame of the records of a source in Python, such as a KafkaSource; `stream` takes it.

        Args:
            source: Pickled as it is now.
            max_records_per_batch: How many records a batch has at most; all that there are if None.
            readers: How many tasks read at most; by default as many as run at a time.

        Raises:
            InvalidSchemaError: The source's schema is none.
        """
        return streaming_frame(self.spark, source, max_records_per_batch=max_records_per_batch, readers=readers)

    def execute(self) -> None:
        """Checks the job and runs it; returns when it has ended.

        Raises:
            InvalidTopologyError: What was declared cannot run; nothing has.
        """
        self._run(self._builder.build())
