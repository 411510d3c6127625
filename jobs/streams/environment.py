"""The environment that a job's script runs in."""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NoReturn

from ..errors import InvalidTopologyError, NoEnvironmentError, NotStreamingError
from ..graph.nodes import DAY_MS
from ..graph.topology import TopologyBuilder
from ..sources.carried_split import with_split_of_source
from ..sources.source_reader import split_columns_of, streaming_frame
from ..spark_internals.arrow_schemas import arrow_schema_of
from .streams import DataStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from keyscale.state.doors.keyed import RocksDbSettings

    from ..functions.subtask_info import FailedRecordPolicy
    from ..graph.topology import Topology
    from ..protocol.specification import RestartStrategy
    from ..sources.source import Source


class _Parameters(dict[str, str]):
    """The job's parameters; a missing parameter raises with the known names."""

    def __missing__(self, name: str) -> NoReturn:
        known = ", ".join(sorted(self)) or "none"
        raise KeyError(f"the job has no parameter {name!r}; it was given: {known}")


class StreamEnvironment:
    """Declares and executes a job. The driver provides it to the script.

    Attributes:
        spark: The Spark session.
        parameters: The parameters that the job was created with, by name.
        restart: The restart strategy that the script has set, if any.
    """

    _provided: ClassVar[StreamEnvironment | None] = None

    def __init__(
        self,
        spark: SparkSession,
        parameters: Mapping[str, str],
        run: Callable[[Topology], None],
        *,
        skip_lost_records: bool = False,
    ) -> None:
        """Creates the environment; the driver does this.

        Args:
            spark: The Spark session.
            parameters: The job's parameters.
            run: Runs a topology, and returns when the job has ended.
            skip_lost_records: Whether Python sources skip lost records, whatever their own setting.
        """
        self.spark = spark
        self.parameters = MappingProxyType(_Parameters(parameters))
        self.restart: RestartStrategy | None = None
        self._run = run
        self._skip_lost_records = skip_lost_records
        self._builder = TopologyBuilder()

    @classmethod
    def current(cls) -> StreamEnvironment:
        """Returns the environment of the job that this script declares.

        Raises:
            NoEnvironmentError: The script is not run by a driver.
        """
        if cls._provided is None:
            raise NoEnvironmentError("no job is being declared: this script runs outside a driver")
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
        split: str | Sequence[str] | None = None,
        max_ahead_ms: int | None = DAY_MS,
    ) -> DataStream:
        """Adds a source: a stream of the records of a streaming DataFrame.

        A job may have several sources. Each then needs a `.uid(...)`, by which a later run finds its positions.

        Args:
            frame: The result of `spark.readStream`, with any stateless Spark transformations.
            timestamp: The column with each record's event time; see `DataStream.with_timestamps`.
            max_out_of_orderness_ms: How much older than an earlier record a record may be without being late.
            idle_after_ms: After this time without records, the source, or a split of it, no longer holds back the
                watermark; None for never.
            split: The columns that name the split of the source that a record comes from; see
                `DataStream.with_timestamps`.
            max_ahead_ms: How far a record's event time may be ahead of the processing time, by default a day; None for
                no limit. See `DataStream.with_timestamps`.

        Raises:
            NotStreamingError: The DataFrame is not a streaming DataFrame.
            InvalidTopologyError: Its schema cannot be a stream's.
        """
        if not frame.isStreaming:
            raise NotStreamingError("the input is a DataFrame with fixed content")
        schema = arrow_schema_of(frame.schema)
        splits = split_columns_of(frame.schema)
        is_carried = False
        if not splits and (found := with_split_of_source(frame)) is not None:
            (frame, splits), is_carried = found, True
        source = self._builder.add_source(frame, schema, splits, carries_split=is_carried)
        stream = DataStream(self.spark, self._builder, source, None, splits, carries_split=is_carried)
        if timestamp is None:
            return stream
        return stream.with_timestamps(
            timestamp,
            max_out_of_orderness_ms=max_out_of_orderness_ms,
            idle_after_ms=idle_after_ms,
            split=split,
            max_ahead_ms=max_ahead_ms,
        )

    def rocksdb_settings(self, settings: RocksDbSettings) -> None:
        """Configures the stores of the job's state, for example with `RocksDbSettings.of(Profile.FLASH_SSD)`.

        The settings apply from the job's next start, also to existing state. docs/local-store.md explains each option.
        """
        self._builder.rocksdb = settings

    def set_restart_strategy(self, strategy: RestartStrategy) -> None:
        """Sets the restart strategy of the job after a failure.

        A strategy that the job was created with takes precedence.
        """
        self.restart = strategy

    def set_batch_interval(self, milliseconds: int) -> None:
        """Sets the minimum time between the starts of two batches.

        A value that the job was created with takes precedence. By default a batch begins as soon as input is available
        and the previous batch has ended.

        Raises:
            InvalidTopologyError: It is negative.
        """
        if milliseconds < 0:
            raise InvalidTopologyError(f"batches cannot begin every {milliseconds} ms")
        self._builder.batch_interval_ms = milliseconds

    def set_failed_records(self, policy: FailedRecordPolicy) -> None:
        """Sets what becomes of a record that an operator fails on.

        The operator has no dead letters. A failed record is a record on which the operator's function raises, whose
        result does not fit the output, or whose key is too large. Functions over whole batches, and a
        StatefulProcessor, always fail the batch, except for large keys.

        Args:
            policy: "fail" fails the batch, which is the default. "drop" drops the record, undoes its effects, and
                counts it in the metric `dead_letters`; the driver's log has the first record of each batch.

        Raises:
            InvalidTopologyError: The policy is something else.
        """
        if policy not in {"fail", "drop"}:
            raise InvalidTopologyError(f"failed records can be 'fail' or 'drop', not {policy!r}")
        self._builder.failed_records = policy

    def read(
        self, source: Source, *, max_records_per_batch: int | None = None, readers: int | None = None
    ) -> DataFrame:
        """Returns a streaming DataFrame of the records of a Python source.

        The source is, for example, a KafkaSource. Pass the result to `stream`.

        Args:
            source: The source; it is pickled as it is now.
            max_records_per_batch: Maximum number of records in a batch; None for no limit.
            readers: Maximum number of tasks that read; by default as many as run at the same time.

        Raises:
            InvalidSchemaError: The source's schema is not a schema.
            NotPicklableError: The source holds something that cannot be sent to Python workers.
        """
        if self._skip_lost_records:
            source = copy(source)
            source.lost_records = "skip"
        return streaming_frame(self.spark, source, max_records_per_batch=max_records_per_batch, readers=readers)

    def execute(self) -> None:
        """Checks the job and runs it. Returns when it has ended.

        Raises:
            InvalidTopologyError: The declared graph cannot run. Nothing has run.
        """
        self._run(self._builder.build())
