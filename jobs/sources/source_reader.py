"""Reads a source as a streaming DataFrame.

Spark plans and runs it through its Python data source API.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructField, StructType

from keyscale.errors import KeyscaleError
from keyscale.units import counted

from ..errors import SourceFunctionError, SourceRecordsLostError
from ..graph.picklable import check_picklable
from ..graph.schemas import arrow_schema
from ..operators.failures import CarriedFailure, TaskOrigin, exception_line, user_traceback
from ..protocol.messages import REPORTED_SPLITS_MAX
from ..protocol.source_retention import comparable_positions
from ..spark_internals.arrow_schemas import arrow_schema_of, spark_schema_of
from ..spark_internals.function_copies import pickled
from .positions import (
    BatchPositions,
    dealt,
    next_positions,
    records_behind,
    with_discovered,
    within,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from .positions import SplitRange
    from .source import Loss, Position, Source

RECORDS_BEHIND = "records_behind"
"""The key, in a Python source's report, of the number of records left after the planned batch; absent if unknown."""
RECORDS_LOST = "records_lost"
"""The key, in the report, of the number of records lost since the query began; absent if no records were lost."""
EARLIEST = "earliest"
"""The key, in the report, of the earliest position of each split that the source still has; absent if unknown."""
RETENTION_MS = "retention_ms"
"""The key, in the report, of the time for which the source keeps a record; absent if unknown."""
EARLIEST_INTERVAL_MS = 60_000
"""Minimum time between two requests for the earliest positions and the retention."""

logger = logging.getLogger(__name__)

_SPLIT_MARK = "keyscale.split"

_numbers = itertools.count()
_copies: dict[str, bytes] = {}
"""Each source as it was pickled, by the name of its streams."""


def streaming_frame(
    spark: SparkSession, source: Source, *, max_records_per_batch: int | None = None, readers: int | None = None
) -> DataFrame:
    """Returns a streaming DataFrame of a source's records.

    Pass it to `env.stream` or to Spark's own streaming.

    Args:
        spark: The Spark session.
        source: The source; it is pickled as it is now.
        max_records_per_batch: Maximum number of records in a batch; None for no limit.
        readers: Maximum number of tasks that read; by default as many as the session runs at the same time.

    Raises:
        InvalidSchemaError: The source's schema is not a schema.
        NotPicklableError: The source holds something that cannot be sent to Python workers.
    """
    check_picklable(source, f"source {type(source).__name__}")
    copy = pickled(source)
    schema = _marked(spark_schema_of(arrow_schema(source.schema)), source.split_columns)
    at_once = readers or spark.sparkContext.defaultParallelism
    name = f"keyscale-{type(source).__name__}-{next(_numbers)}"
    _copies[name] = copy
    spark.dataSource.register(_data_source(name, schema, SourceReader(source, schema, max_records_per_batch, at_once)))
    return spark.readStream.format(name).load()


def source_of(stream: str) -> Source | None:
    """Returns a copy of the source that a stream reads.

    Returns None for a stream of Spark's own, and for a source that cannot be copied here.
    """
    copy = _copies.get(stream)
    try:
        return None if copy is None else pickle.loads(copy)  # noqa: S301 - ours
    except Exception:  # a user's code may raise anything
        logger.warning("the records that wait in a source are not counted", exc_info=True)
        return None


def split_columns_of(schema: StructType) -> tuple[str, ...]:
    """Returns the columns of a frame that identify its source's splits.

    Returns none unless the frame still has all of them.
    """
    marked = {
        tuple(field.metadata[_SPLIT_MARK]): field.name for field in schema.fields if _SPLIT_MARK in field.metadata
    }
    return tuple(marked[mark] for mark in sorted(marked)) if {(len(marked))} == {number for _, number in marked} else ()


def _marked(schema: StructType, split_columns: Sequence[str]) -> StructType:
    """Marks the columns that identify splits.

    Each mark holds the column's place and the number of marked columns; selects and renames keep the marks.
    """
    marks = {name: {_SPLIT_MARK: [place, len(split_columns)]} for place, name in enumerate(split_columns)}
    return StructType(
        [StructField(each.name, each.dataType, each.nullable, marks.get(each.name)) for each in schema.fields]
    )


def _data_source(source_name: str, source_schema: StructType, source_reader: SourceReader) -> type[DataSource]:
    """Returns a new data source class for each source.

    Spark creates the instances itself and passes only text options to them.
    """

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
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[SplitRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class SourceReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's interface to a source.

    Plans in a process beside the driver, and reads in the executors' workers. Spark stores the result of `latestOffset`
    and passes it back after a restart; the commit log holds it before a batch runs.
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
        self._is_draining = False
        self._ends: Mapping[str, Position] | None = None
        self._records_behind: int | None = None
        self._records_lost = 0
        self._earliest: dict[str, Any] = {}
        self._retention_ms: int | None = None
        self._earliest_asked_at: float | None = None
        self._planned: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return BatchPositions().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Ends the query where its input ends at the next planning.

        Spark plans the next batch at once.
        """
        self._is_draining = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Plans the next batch after `start`.

        Returns `start` itself if there is nothing to read.
        """
        with _failures_carried():
            before = BatchPositions.from_json(start)
            discovered = {} if self._ends is not None else self._new_splits(before.reached)
            positions = with_discovered(before.reached, discovered)
            if self._is_draining and self._ends is None:
                self._ends = self._source.latest(positions, None)
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            latest = self._source.latest(positions, most)
            ends = latest if most is None else self._source.latest(positions, None)
            if self._ends is not None:
                ends = self._ends
                latest = within(latest, ends, self._source.records_between)
            following = next_positions(before, positions, latest)
            self._records_behind = records_behind(following.reached, ends, self._source.records_between)
            self._ask_for_retention(positions)
        self._planned = start if following is before else following.to_json()
        return self._planned

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Returns the metrics that Spark's progress carries as the latest offset."""
        lost = {RECORDS_LOST: self._records_lost} if self._records_lost else {}
        behind = {} if self._records_behind is None else {RECORDS_BEHIND: self._records_behind}
        earliest = {EARLIEST: self._earliest} if self._earliest else {}
        retention = {} if self._retention_ms is None else {RETENTION_MS: self._retention_ms}
        return lost | behind | earliest | retention or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: ARG002 - see `end`
        with _failures_carried():
            ranges = BatchPositions.from_json(end).ranges()
            if self._source.lost_records == "skip":
                ranges = self._left_of(ranges)
            elif end != self._planned:
                self._check_there(ranges)
        return [_Ranges(part) for part in dealt(ranges, self._readers)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Ranges)  # noqa: S101 - Spark passes on the result of `partitions`
        # Spark compares schemas literally.
        schema = arrow_schema_of(self._schema)
        with _failures_carried():
            for each in partition.ranges:
                for batch in self._source.read(each.split, each.start, each.end):
                    if batch.num_rows:
                        yield batch.select(schema.names).cast(schema)

    def stop(self) -> None:
        self._source.close()

    def _check_there(self, ranges: Sequence[SplitRange]) -> None:
        """Checks that the source still has the ranges of a planned batch.

        An earlier run has planned the batch.

        Raises:
            SourceRecordsLostError: The source has lost records of the ranges.
        """
        losses = self._losses(ranges)
        if losses:
            raise SourceRecordsLostError(
                f"the source no longer has all records of {counted(len(losses), 'split')} that a batch was planned to"
                f" read, such as {min(losses)!r}"
            )

    def _losses(self, ranges: Sequence[SplitRange]) -> Mapping[str, Loss]:
        return self._source.losses({each.split: (each.start, each.end) for each in ranges}) if ranges else {}

    def _left_of(self, ranges: Sequence[SplitRange]) -> list[SplitRange]:
        """Returns the ranges that the source still has; counts its losses."""
        losses = self._losses(ranges)
        for split, loss in losses.items():
            number = "an unknown number of" if loss.records is None else loss.records
            logger.warning("the source has lost %s records of split %s before they were read", number, split)
            self._records_lost += 1 if loss.records is None else loss.records
        return without(ranges, losses)

    def _ask_for_retention(self, splits: Collection[str]) -> None:
        """Asks for the earliest positions and the retention.

        Asks at most once per interval. The batch does not need the answers. A retention stays known if the source does
        not answer.
        """
        asked_at = self._earliest_asked_at
        if asked_at is not None and (time.monotonic() - asked_at) * 1000 < EARLIEST_INTERVAL_MS:
            return
        self._earliest = {}
        if len(splits) <= REPORTED_SPLITS_MAX:
            try:
                self._earliest = comparable_positions(self._source.earliest(splits))
            except Exception:  # a user's code may raise anything
                logger.warning("the source did not report which records it still has", exc_info=True)
        try:
            self._retention_ms = self._source.retention_ms()
        except Exception:  # a user's code may raise anything
            logger.warning("the source did not report how long it keeps records", exc_info=True)
        self._earliest_asked_at = time.monotonic()  # a slow answer does not delay every batch

    def _new_splits(self, known: Mapping[str, Position]) -> Mapping[str, Position]:
        now = time.monotonic()
        if self._discovered_at is None or (now - self._discovered_at) * 1000 >= self._source.discovery_interval_ms:
            self._discovered = dict(self._source.discover(known))
            self._discovered_at = now
        return self._discovered


@contextmanager
def _failures_carried() -> Iterator[None]:
    """Preserves error types and user tracebacks on their way through Spark."""
    try:
        yield
    except KeyscaleError as error:
        raise CarriedFailure(error, TaskOrigin()) from None
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        failure = SourceFunctionError(f"the source failed: {exception_line(error)}")
        raise CarriedFailure(failure, TaskOrigin(user_traceback=user_traceback(error))) from None
