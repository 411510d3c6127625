"""A source as a streaming DataFrame: Spark plans and runs it through its Python data source API."""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from jobs.errors import SourceFunctionError
from jobs.output_schema import arrow_schema
from jobs.runtime.failures import CarriedFailure, TaskOrigin, exception_line, user_traceback
from jobs.sources.positions import BatchPositions, dealt, next_positions, with_discovered
from state.errors import KeyscaleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from jobs.sources.contract import Position, Source
    from jobs.sources.positions import SplitRange

_numbers = itertools.count()


def streaming_frame(
    spark: SparkSession, source: Source, *, max_records_per_batch: int | None = None, readers: int | None = None
) -> DataFrame:
    """A streaming DataFrame of a source's records; `env.stream` takes it, and Spark's own streaming does.

    Args:
        spark: The session.
        source: Pickled as it is now.
        max_records_per_batch: How many records a batch has at most; all that there are if None.
        readers: How many tasks read at most; by default as many as the session runs at a time.

    Raises:
        InvalidSchemaError: The source's schema is none.
    """
    schema = from_arrow_schema(arrow_schema(source.schema), prefer_timestamp_ntz=True)
    at_once = readers or spark.sparkContext.defaultParallelism
    name = f"keyscale-{type(source).__name__}-{next(_numbers)}"
    spark.dataSource.register(_data_source(name, schema, SourceReader(source, schema, max_records_per_batch, at_once)))
    return spark.readStream.format(name).load()


def _data_source(source_name: str, source_schema: StructType, source_reader: SourceReader) -> type[DataSource]:
    """A class of its own for each source, as Spark makes the instances, from options that are only text."""

    class KeyscaleSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_name

        def schema(self) -> StructType:
            return source_schema

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark's name
            return source_reader

    return KeyscaleSource


class _Ranges(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[SplitRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class SourceReader(DataSourceStreamReader):
    """Spark's side of a source: plans in one process beside the driver, and reads in the executors' workers.

    Spark keeps what `latestOffset` returns, and gives it back after any restart; the commit log has it before a batch runs.
    """

    def __init__(
        self, source: Source, schema: StructType, max_records_per_batch: int | None = None, readers: int = 1
    ) -> None:
        self._source = source
        self._schema = schema
        self._limit = max_records_per_batch
        self._readers = readers
        self._discovered: Mapping[str, Position] = {}
        self._discovered_at: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return BatchPositions().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plans the next batch after `start`; `start` itself if there is nothing to read."""
        with _failures_carried():
            before = BatchPositions.from_json(start)
            positions = with_discovered(before.reached, self._new_splits(before.reached))
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            following = next_positions(before, positions, self._source.latest(positions, most))
        return start if following is before else following.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: ARG002 - `end` says it all
        with _failures_carried():
            ranges = BatchPositions.from_json(end).ranges()
        return [_Ranges(part) for part in dealt(ranges, self._readers)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Ranges)  # noqa: S101 - Spark hands on what `partitions` gave
        # Spark compares schemas to the letter.
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with _failures_carried():
            for each in partition.ranges:
                for batch in self._source.read(each.split, each.start, each.end):
                    if batch.num_rows:
                        yield batch.select(schema.names).cast(schema)

    def stop(self) -> None:
        self._source.close()

    def _new_splits(self, known: Mapping[str, Position]) -> Mapping[str, Position]:
        now = time.monotonic()
        if self._discovered_at is None or (now - self._discovered_at) * 1000 >= self._source.discovery_interval_ms:
            self._discovered = dict(self._source.discover(known))
            self._discovered_at = now
        return self._discovered


@contextmanager
def _failures_carried() -> Iterator[None]:
    """Errors on their way through Spark keep their type and lose what may quote a record."""
    try:
        yield
    except KeyscaleError as error:
        raise CarriedFailure(error, TaskOrigin()) from None
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        failure = SourceFunctionError(f"the source failed: {exception_line(error)}")
        raise CarriedFailure(failure, TaskOrigin(user_traceback=user_traceback(error))) from None
