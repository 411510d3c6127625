"""A Python source becomes a stream of Spark's, under a name of its own and with its columns of splits marked."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from keyscale import StreamEnvironment
from keyscale.jobs.errors import NotPicklableError
from keyscale.jobs.sources import source_reader
from keyscale.jobs.sources.source import Source
from keyscale.jobs.sources.source_reader import SourceReader, source_of, split_columns_of, streaming_frame

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from keyscale.jobs.sources.source import Position


class Tides(Source):
    """A source without records."""

    schema = pa.schema([("height", pa.float64()), ("port", pa.string()), ("gauge", pa.int32())])
    split_columns = ("gauge", "port")

    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        return {f"{len(known)}": 0}

    def latest(self, positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        return dict.fromkeys(positions, limit or 7)

    def read(self, split: str, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"gauge": [int(split)], "port": [f"{start}-{end}"], "height": [1.5]})


class Spark:
    """A session that notes the data sources that are registered."""

    def __init__(self) -> None:
        self.registered: list[Any] = []
        self.sparkContext = SimpleNamespace(defaultParallelism=5)
        self.dataSource = SimpleNamespace(register=self.registered.append)
        self.readStream = SimpleNamespace(format=lambda name: SimpleNamespace(load=lambda: name))


def readers(spark: Spark) -> list[SourceReader]:
    made = [kind({}) for kind in spark.registered]
    return [each.streamReader(each.schema()) for each in made]


def test_each_source_has_a_name_and_a_reader_of_its_own() -> None:
    spark: Any = Spark()
    one, other = Tides(), Tides()
    other.lost_records = "skip"
    names = [streaming_frame(spark, one, max_records_per_batch=3, readers=2), streaming_frame(spark, other)]
    assert [kind.name() for kind in spark.registered] == names
    assert len(set(names)) == 2
    assert all(str(name).startswith("keyscale-Tides-") for name in names)
    schema = spark.registered[0]({}).schema()
    assert [(each.name, each.dataType.simpleString()) for each in schema] == [
        ("height", "double"),
        ("port", "string"),
        ("gauge", "int"),
    ]
    assert split_columns_of(schema) == ("gauge", "port")
    limited, free = readers(spark)
    assert [type(each.getDefaultReadLimit()) for each in (limited, free)] == [ReadMaxRows, ReadAllAvailable]
    assert cast("Any", limited.getDefaultReadLimit()).max_rows == 3
    ends = [each.latestOffset(each.initialOffset(), each.getDefaultReadLimit()) for each in (limited, free)]
    assert [end["splits"] for end in ends] == [{"0": [0, 3]}, {"0": [0, 7]}]
    parts = free.partitions(free.initialOffset(), {"version": 1, "splits": {f"{n}": [0, 9] for n in range(8)}})
    assert len(parts) == 5, "as many as tasks run at the same time"
    (batch,) = limited.read(limited.partitions({}, ends[0])[0])
    assert batch.to_pylist() == [{"height": 1.5, "port": "0-3", "gauge": 0}]
    copies: list[Any] = [source_of(str(name)) for name in names]
    assert [copy.lost_records for copy in copies] == ["fail", "skip"]
    assert copies[0] is not one
    assert source_of("FileSource[/in]") is None


def test_a_source_is_taken_as_it_was_when_its_stream_was_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spark: Any = Spark()
    source = Tides()
    name = str(streaming_frame(spark, source))
    source.lost_records = "skip"
    found = source_of(name)
    assert found is not None
    assert found.lost_records == "fail"
    cast("Any", source).lock = threading.Lock()
    with pytest.raises(NotPicklableError, match="source Tides"):
        streaming_frame(spark, source)
    assert len(spark.registered) == 1
    monkeypatch.setitem(source_reader._copies, name, b"no pickle")
    assert source_of(name) is None
    assert "the records that wait in a source are not counted" in caplog.text


def test_a_job_that_skips_lost_records_reads_a_copy_of_its_source_that_does() -> None:
    spark: Any = Spark()
    source = Tides()
    of_job = StreamEnvironment(spark, {}, lambda _: None, skip_lost_records=True)
    name: Any = of_job.read(source, max_records_per_batch=4, readers=6)
    plain: Any = StreamEnvironment(spark, {}, lambda _: None).read(source)
    found = [source_of(each) for each in (name, plain)]
    assert [each.lost_records for each in found if each] == ["skip", "fail"]
    assert source.lost_records == "fail", "the user's own source stays as it is"
    skipping, _ = readers(spark)
    assert cast("Any", skipping.getDefaultReadLimit()).max_rows == 4
    assert (skipping._readers, skipping._source.lost_records) == (6, "skip")
