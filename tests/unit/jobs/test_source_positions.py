"""Where a batch begins and ends is planned before it runs, complete in itself, and dealt out at any parallelism."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from jobs.errors import SourceFunctionError, SourcePositionsError
from jobs.runtime.failures import origin_of, typed_failure
from jobs.sources import Source, limited
from jobs.sources.positions import BatchPositions, SplitRange, dealt, next_positions
from jobs.sources.stream import SourceReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from jobs.sources import Position

counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50))


class Lists(Source):
    """Splits that are lists, which a test lets grow; it begins after what is there at first."""

    discovery_interval_ms = 0
    schema = "split string, value bigint"

    def __init__(self) -> None:
        self.lists: dict[str, list[int]] = {}
        self.broken = False

    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        return {name: 0 if known else len(values) for name, values in self.lists.items() if name not in known}

    def latest(self, positions: Mapping[str, Position], limit: int | None) -> Mapping[str, Position]:
        ends = {name: len(values) for name, values in self.lists.items()}
        return limited({name: int(at) for name, at in positions.items() if isinstance(at, int)}, ends, limit)

    def read(self, split: str, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
        if self.broken:
            raise ValueError(f"{split}-record")
        assert isinstance(start, int)
        assert isinstance(end, int)
        values = self.lists[split][start:end]
        yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.int32()), "split": [split] * len(values)})


def reader(source: Source, *, limit: int | None = None, readers: int = 2) -> SourceReader:
    schema = StructType([StructField("split", StringType()), StructField("value", LongType())])
    return SourceReader(source, schema, limit, readers)


def batch(of: SourceReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Plans a batch and reads it, with positions going through JSON as in Spark, and the reader through a pickle."""
    end = json.loads(json.dumps(of.latestOffset(start, of.getDefaultReadLimit())))
    return end, values_between(of, start, end)


def values_between(of: SourceReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    worker = pickle.loads(pickle.dumps(of))  # noqa: S301 - its own
    parts = [worker.read(part) for part in of.partitions(start, end)]
    return sorted(value for part in parts for found in part for value in found["value"].to_pylist())


def test_a_source_is_read_batch_after_batch_and_a_batch_of_nothing_is_not_planned() -> None:
    source = Lists()
    source.lists = {"a": [9], "b": []}
    planner = reader(source)
    first, values = batch(planner, planner.initialOffset())
    assert values == []  # it begins after what is there: a position that has to be kept
    source.lists["a"] += [1, 2]
    source.lists["b"] += [3]
    second, values = batch(planner, first)
    assert values == [1, 2, 3]
    assert planner.latestOffset(second, ReadAllAvailable()) is second


def test_a_batch_is_the_same_again_from_its_plan_alone() -> None:
    """Also the very first one, of which Spark remembers no beginning."""
    source = Lists()
    source.lists = {"a": [9]}
    planner = reader(source)
    planned, _ = batch(planner, planner.initialOffset())
    source.lists["a"] += [1, 2]
    planned, values = batch(planner, planned)
    source.lists["a"] += [3]
    restarted = reader(source, readers=5)
    assert values_between(restarted, restarted.initialOffset(), planned) == values == [1, 2]


def test_splits_that_come_later_are_read_from_their_beginning() -> None:
    source = Lists()
    source.lists = {"a": [9]}
    planner = reader(source)
    planned, _ = batch(planner, planner.initialOffset())
    source.lists["late"] = [7, 8]
    planned, values = batch(planner, planned)
    assert values == [7, 8]
    assert BatchPositions.from_json(planned).reached == {"a": 1, "late": 2}


def test_a_batch_has_no_more_records_than_allowed_and_all_come_in_the_end() -> None:
    source = Lists()
    planner = reader(source, limit=4)
    source.lists = {"none": []}
    at, _ = batch(planner, planner.initialOffset())
    source.lists = {"none": [], "long": list(range(20)), "short": [100]}
    seen: list[int] = []
    for _ in range(6):
        at, values = batch(planner, at)
        assert 0 < len(values) <= 4
        seen += values
    assert sorted(seen) == [*range(20), 100]
    assert planner.latestOffset(at, ReadMaxRows(4)) is at


def test_a_drain_reads_all_that_is_there_whatever_the_limit() -> None:
    source = Lists()
    planner = reader(source, limit=1)
    source.lists = {"a": []}
    at, _ = batch(planner, planner.initialOffset())
    source.lists["a"] += range(9)
    everything = planner.latestOffset(at, ReadAllAvailable())
    assert values_between(planner, at, everything) == list(range(9))


def test_positions_of_another_kind_of_source_are_refused() -> None:
    planner = reader(Lists())
    with pytest.raises(Exception, match="SOURCE_POSITIONS_INVALID") as failure:
        planner.latestOffset({"events": {"0": 12}}, ReadAllAvailable())
    assert isinstance(typed_failure(failure.value), SourcePositionsError)


def test_a_source_that_reads_what_it_has_not_named_is_refused() -> None:
    with pytest.raises(SourcePositionsError, match="'b'"):
        next_positions(BatchPositions(), {"a": 0}, {"a": 1, "b": 2})


def test_a_source_that_raises_is_told_with_its_traceback_and_without_its_data() -> None:
    source = Lists()
    source.lists = {"a": []}
    planner = reader(source)
    at, _ = batch(planner, planner.initialOffset())
    source.lists["a"] += [1]
    source.broken = True
    with pytest.raises(Exception, match="SOURCE_FAILED") as failure:
        batch(planner, at)
    error = typed_failure(failure.value)
    assert isinstance(error, SourceFunctionError)
    assert "a-record" not in f"{error} {origin_of(error).user_traceback}"
    assert "in read" in str(origin_of(error).user_traceback)


@given(counts, st.integers(1, 9))
def test_every_range_is_dealt_to_one_reader_and_none_is_idle(ends: dict[str, int], readers: int) -> None:
    ranges = BatchPositions({name: (0, end) for name, end in ends.items()}).ranges()
    parts = dealt(ranges, readers)
    assert sorted(each.split for part in parts for each in part) == sorted(each.split for each in ranges)
    assert len(parts) == min(readers, len(ranges))
    assert max(map(len, parts), default=0) - min(map(len, parts), default=0) <= 1
    assert all(isinstance(each, SplitRange) for part in parts for each in part)


@given(counts, st.integers(0, 100))
def test_a_limit_is_used_up_and_never_exceeded(backlog: dict[str, int], limit: int) -> None:
    taken = limited(dict.fromkeys(backlog, 0), backlog, limit)
    assert all(0 <= taken[name] <= backlog[name] for name in backlog)
    assert sum(taken.values()) == min(limit, sum(backlog.values()))
