"""Sources in Python run in Spark's own streaming: planned beside the driver, read in workers, typed when they fail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale import KafkaSource, Source
from keyscale.jobs.errors import SourceFunctionError, SourceRecordsLostError
from keyscale.jobs.operators.failures import origin_of, typed_failure
from keyscale.jobs.operators.operator_contract import SPLIT_COLUMN
from keyscale.jobs.runtime.batch.batch_metrics import pending_records
from keyscale.jobs.runtime.control.driver_status import DriverStatus
from keyscale.jobs.runtime.driver.backlog import Backlog, Reached
from keyscale.jobs.sources.carried_split import with_split_of_source
from keyscale.jobs.sources.positions import limited
from keyscale.jobs.sources.source_reader import source_of, split_columns_of, streaming_frame
from keyscale.jobs.spark_internals.source_inputs import streams_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from keyscale.jobs.sources.source import Position

pytestmark = pytest.mark.real


class Lines(Source):
    """Files of numbers: a file is a split, a position the number of lines before it."""

    discovery_interval_ms = 0
    schema = "file string, number int"
    split_columns = ("file",)

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)

    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        return {path.name: 0 for path in Path(self._directory).glob("*.txt") if path.name not in known}

    def latest(self, positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        counts = {split: at for split, at in positions.items() if isinstance(at, int)}
        ends = {split: len(self._lines(split)) for split in counts}
        if any(ends[split] < at for split, at in counts.items()):
            message = "a file is shorter than it was"
            raise SourceRecordsLostError(message)
        return limited(counts, ends, limit)

    def read(self, split: str, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        assert isinstance(start, int)
        assert isinstance(end, int)
        numbers = [int(line) for line in self._lines(split)[start:end]]
        yield pa.RecordBatch.from_pydict({"number": numbers, "file": [split] * len(numbers)})

    def _lines(self, split: str) -> list[str]:
        return Path(self._directory, split).read_text().splitlines()


class Reading:
    """A streaming query over `Lines`, and what its batches held."""

    def __init__(self, spark: SparkSession, home: Path, limit: int | None = None) -> None:
        self.spark = spark
        self.input = home / "in"
        self.input.mkdir(exist_ok=True)
        self.checkpoint = home / "checkpoint"
        self.limit = limit
        self.batches: dict[int, list[int]] = {}
        self.splits: dict[int, str] = {}

    def start(self) -> StreamingQuery:
        lines = streaming_frame(self.spark, Lines(self.input), max_records_per_batch=self.limit)
        found = with_split_of_source(lines.select("number"))
        assert found is not None
        self.frame = found[0]
        writer = self.frame.writeStream.foreachBatch(self._note).option("checkpointLocation", str(self.checkpoint))
        return writer.start()

    def write(self, file: str, *numbers: object) -> None:
        with (self.input / file).open("a") as opened:
            opened.writelines(f"{number}\n" for number in numbers)

    @property
    def numbers(self) -> list[int]:
        return sorted(number for batch in self.batches.values() for number in batch)

    def _note(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.collect()
        self.batches[batch_id] = sorted(row.number for row in rows)
        self.splits |= {row.number: row[SPLIT_COLUMN] for row in rows}


def test_a_source_is_read_in_batches_and_a_batch_that_was_planned_is_the_same_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    reading = Reading(spark, tmp_path, limit=3)
    reading.write("a.txt", 1, 2, 3, 4)
    reading.write("b.txt", 10)
    query = reading.start()
    wait_until(lambda: reading.numbers == [1, 2, 3, 4, 10], 120, what="the first files")
    reading.write("c.txt", 20)  # a new split
    wait_until(lambda: reading.numbers == [1, 2, 3, 4, 10, 20], 60, what="the new file")
    query.stop()
    before = dict(reading.batches)
    assert all(len(batch) <= 3 for batch in before.values())
    assert reading.splits == dict.fromkeys((1, 2, 3, 4), "a.txt") | {10: "b.txt", 20: "c.txt"}

    last = max(before)
    # As if it had been planned, and the driver killed; the stop may have come before the commit, too.
    (reading.checkpoint / "commits" / str(last)).unlink(missing_ok=True)
    (reading.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    reading.batches.clear()
    reading.write("a.txt", 5)
    query = reading.start()
    wait_until(lambda: len(reading.batches) >= 2, 120, what="two batches after the restart")
    query.stop()
    assert reading.batches == {last: before[last], last + 1: [5]}


def test_columns_that_name_splits_are_known_through_selects_as_long_as_all_are_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Unmarked(Lines):
        split_columns = ()

    frame = streaming_frame(spark, Lines(tmp_path))
    assert split_columns_of(frame.schema) == ("file",)
    assert split_columns_of(frame.selectExpr("number + 1 AS next", "file AS part").schema) == ("part",)
    assert split_columns_of(frame.select("number").schema) == ()
    assert split_columns_of(streaming_frame(spark, Unmarked(tmp_path)).schema) == ()
    kafka = streaming_frame(spark, KafkaSource("127.0.0.1:1", "clicks"))
    assert split_columns_of(kafka.selectExpr("value", "partition", "topic").schema) == ("topic", "partition")
    assert split_columns_of(kafka.select("value", "partition").schema) == ()


def test_the_progress_of_a_limited_query_reports_how_many_records_its_batches_leave(
    spark: SparkSession, tmp_path: Path
) -> None:
    reading = Reading(spark, tmp_path, limit=3)
    reading.write("a.txt", 1, 2, 3, 4, 5)
    reading.write("b.txt", 10, 11)
    query = reading.start()
    wait_until(lambda: len([each for each in query.recentProgress if each["numInputRows"]]) == 3, 120, what="3 batches")
    query.stop()
    assert [pending_records(each) for each in query.recentProgress if each["numInputRows"]] == [4, 1, 0]
    reading.write("b.txt", 12)
    sources = [source_of(stream) for stream in streams_of([reading.frame, reading.frame])]
    files = {f"offsets/{batch}": (reading.checkpoint / f"offsets/{batch}").read_text() for batch in range(3)}
    status = DriverStatus()
    for committed, left in ((0, 5), (1, 2), (2, 1)):
        Backlog([each for each in sources if each is not None], Reached(files, committed), status).poll()
        assert status.heartbeat().metrics.pending_records == left
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    assert [source_of(stream) for stream in streams_of([rate])] == [None]


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [("not a number", SourceFunctionError), ("", SourceRecordsLostError)],
    ids=["in a task", "in the planner"],
)
def test_a_source_that_fails_ends_the_query_with_the_typed_error(
    spark: SparkSession, tmp_path: Path, spoil: str, kind: type[Exception]
) -> None:
    reading = Reading(spark, tmp_path)
    reading.write("a.txt", 1, 2)
    query = reading.start()
    wait_until(lambda: reading.numbers == [1, 2], 120, what="the first file")
    if spoil:
        reading.write("a.txt", spoil)
    else:
        (reading.input / "a.txt").write_text("1\n")
    wait_until(lambda: not query.isActive, 60, what="the query's end")
    failure = query.exception()
    assert failure is not None
    error = typed_failure(failure)
    assert isinstance(error, kind), failure
    if spoil:
        assert spoil in str(error)
        assert spoil in str(origin_of(error).user_traceback)
        assert "in read" in str(origin_of(error).user_traceback)
