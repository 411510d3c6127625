"""The ranges of a batch are planned before it runs, complete in themselves, and dealt out at any parallelism."""

from __future__ import annotations

import json
import pickle
import threading
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from keyscale.jobs.errors import NotPicklableError, SourceFunctionError, SourcePositionsError
from keyscale.jobs.operators.failures import CarriedFailure, origin_of, typed_failure
from keyscale.jobs.sources.positions import BatchPositions, SplitRange, dealt, limited, next_positions, within
from keyscale.jobs.sources.source import Loss, Source
from keyscale.jobs.sources.source_reader import RECORDS_LOST, SourceReader, streaming_frame

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import SparkSession

    from keyscale.jobs.sources.source import Position

counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50))


class Lists(Source):
    """A source of lists that a test lets grow. It begins after the first records."""

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
    """Plans a batch and reads it. Positions go through JSON, as in Spark, and the reader through pickle."""
    end = json.loads(json.dumps(of.latestOffset(start, of.getDefaultReadLimit())))
    return end, values_between(of, start, end)


def values_between(of: SourceReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    worker = pickle.loads(pickle.dumps(of))  # noqa: S301 - pickled here
    parts = [worker.read(part) for part in of.partitions(start, end)]
    return sorted(value for part in parts for found in part for value in found["value"].to_pylist())


def test_a_source_is_read_batch_after_batch_and_no_empty_batch_is_planned() -> None:
    source = Lists()
    source.lists = {"a": [9], "b": []}
    planner = reader(source)
    first, values = batch(planner, planner.initialOffset())
    assert values == []  # it begins after the first records: a position that must be kept
    source.lists["a"] += [1, 2]
    source.lists["b"] += [3]
    second, values = batch(planner, first)
    assert values == [1, 2, 3]
    assert planner.latestOffset(second, ReadAllAvailable()) is second


def test_a_batch_is_the_same_again_from_its_plan_alone() -> None:
    """This holds for the first batch, too, whose beginning Spark does not store."""
    source = Lists()
    source.lists = {"a": [9]}
    planner = reader(source)
    planned, _ = batch(planner, planner.initialOffset())
    source.lists["a"] += [1, 2]
    planned, values = batch(planner, planned)
    source.lists["a"] += [3]
    restarted = reader(source, readers=5)
    assert values_between(restarted, restarted.initialOffset(), planned) == values == [1, 2]


def test_splits_that_are_added_later_are_read_from_their_beginning() -> None:
    source = Lists()
    source.lists = {"a": [9]}
    planner = reader(source)
    planned, _ = batch(planner, planner.initialOffset())
    source.lists["late"] = [7, 8]
    planned, values = batch(planner, planned)
    assert values == [7, 8]
    assert BatchPositions.from_json(planned).reached == {"a": 1, "late": 2}


class SeldomDiscovered(Lists):
    """Lists that the planner asks for new splits as seldom as by default."""

    discovery_interval_ms = Source.discovery_interval_ms


def test_a_split_that_was_just_found_is_read_once_although_the_next_look_for_new_splits_is_far_away() -> None:
    source = SeldomDiscovered()
    source.lists = {"a": [1, 2]}
    planner = reader(source)
    planned, values = batch(planner, BatchPositions({"known": (0, 0)}).to_json())
    assert values == [1, 2]
    source.lists["a"] += [3]
    planned, values = batch(planner, planned)
    assert values == [3]
    assert planner.latestOffset(planned, ReadAllAvailable()) is planned


def test_new_splits_are_found_when_the_interval_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    source, now_s = SeldomDiscovered(), 100.0
    monkeypatch.setattr("keyscale.jobs.sources.source_reader.time.monotonic", lambda: now_s)
    planner = reader(source)
    planned, _ = batch(planner, BatchPositions({"known": (0, 0)}).to_json())
    source.lists = {"a": [1]}
    now_s += 29.9
    planned, values = batch(planner, planned)
    assert values == []
    now_s += 0.1
    _, values = batch(planner, planned)
    assert values == [1]


@pytest.mark.parametrize("kind", [Lists, SeldomDiscovered])
def test_a_job_that_goes_back_reads_from_its_positions_again_and_not_from_the_present_end(kind: type[Lists]) -> None:
    """The source begins after the first records. A job that goes back has begun already."""
    source = kind()
    source.lists = {"a": [9]}
    planner = reader(source)
    begun, _ = batch(planner, planner.initialOffset())
    source.lists["a"] += [1, 2]
    savepoint, _ = batch(planner, begun)
    source.lists["a"] += [3, 4]
    batch(planner, savepoint)
    for of in (planner, reader(source)):
        assert batch(of, savepoint)[1] == [3, 4]
        assert batch(of, begun)[1] == [1, 2, 3, 4]
    stateless = reader(source)
    begun_again, values = batch(stateless, stateless.initialOffset())
    assert (values, BatchPositions.from_json(begun_again).reached) == ([], {"a": 5})


def test_a_batch_keeps_the_limit_and_all_records_are_read_in_the_end() -> None:
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


def test_a_drain_reads_all_records_whatever_the_limit() -> None:
    source = Lists()
    planner = reader(source, limit=1)
    source.lists = {"a": []}
    at, _ = batch(planner, planner.initialOffset())
    source.lists["a"] += range(9)
    everything = planner.latestOffset(at, ReadAllAvailable())
    assert values_between(planner, at, everything) == list(range(9))


class Opaque(Lists):
    """The same lists, with positions that the source cannot compare."""

    def records_between(self, start: Position, end: Position) -> int | None:  # noqa: ARG002 - as the contract
        return None


@pytest.mark.parametrize(("kind", "sizes"), [(Lists, [4, 4, 2]), (Opaque, [10])])
def test_a_drained_source_is_read_up_to_where_it_ended_in_batches_of_the_limit(
    kind: type[Lists], sizes: list[int]
) -> None:
    source = kind()
    source.lists = {"a": [], "b": []}
    first = reader(source)
    at, _ = batch(first, first.initialOffset())
    source.lists["a"] += range(7)
    source.lists["b"] += range(10, 13)
    drained = reader(source, limit=4)
    drained.prepareForTriggerAvailableNow()
    seen: list[list[int]] = []
    for _ in sizes:
        at, values = batch(drained, at)
        seen.append(values)
        source.lists["a"] += [99, 99, 99]
        source.lists[f"new-{len(seen)}"] = [99]
    assert [len(values) for values in seen] == sizes
    assert sorted(value for values in seen for value in values) == [*range(7), *range(10, 13)]
    assert drained.latestOffset(at, ReadMaxRows(4)) is at, "it reads what came later"


def test_a_drain_reads_a_split_that_it_is_the_first_to_find() -> None:
    source = Lists()
    source.lists = {"a": []}
    first = reader(source)
    at, _ = batch(first, first.initialOffset())
    source.lists = {"a": [1], "late": [7, 8]}
    drained = reader(source, limit=10)
    drained.prepareForTriggerAvailableNow()
    _, values = batch(drained, at)
    assert sorted(values) == [1, 7, 8]


def test_the_backlog_after_a_planned_batch_is_reported_if_the_source_can_tell() -> None:
    source = Lists()
    source.lists = {"a": [], "b": []}
    planner = reader(source, limit=4)
    assert planner.reportLatestOffset() is None
    at, _ = batch(planner, planner.initialOffset())
    source.lists = {"a": list(range(7)), "b": list(range(5))}
    at = planner.latestOffset(at, ReadMaxRows(4))
    assert planner.reportLatestOffset() == {"records_behind": 8}
    planner.latestOffset(at, ReadAllAvailable())
    assert planner.reportLatestOffset() == {"records_behind": 0}
    opaque = Opaque()
    opaque.lists = {"a": [1]}
    planner = reader(opaque, limit=4)
    planner.latestOffset(planner.initialOffset(), ReadMaxRows(4))
    assert planner.reportLatestOffset() is None


class Losing(Lists):
    """Lists that have lost their first records."""

    def losses(self, ranges: Mapping[str, tuple[Position, Position]]) -> Mapping[str, Loss]:
        return {split: Loss(end, None) for split, (_, end) in ranges.items()}


def test_only_a_batch_that_an_earlier_run_has_planned_is_compared_with_what_the_source_has_lost() -> None:
    source = Losing()
    source.lists = {"a": []}
    planner = reader(source)
    at, _ = batch(planner, planner.initialOffset())
    source.lists["a"] += [1, 2]
    planned, values = batch(planner, at)
    assert values == [1, 2], "the plan is as new as the comparison would be"
    with pytest.raises(CarriedFailure, match=r"SOURCE_RECORDS_LOST.* 1 split that .* 'a'"):
        reader(source).partitions(at, planned)


class PartlyLost(Lists):
    """Lists whose first records expire; the job then goes on with what is left."""

    lost_records = "skip"

    def __init__(self) -> None:
        super().__init__()
        self.lost: dict[str, Loss] = {}

    def losses(self, ranges: Mapping[str, tuple[Position, Position]]) -> Mapping[str, Loss]:
        return {split: loss for split, loss in self.lost.items() if split in ranges}


def test_a_batch_reads_what_is_left_of_its_splits_and_counts_what_is_lost() -> None:
    source = PartlyLost()
    source.lists = {"a": [], "b": [], "c": []}
    planner = reader(source)
    begun, _ = batch(planner, planner.initialOffset())
    source.lists = {"a": [1, 2, 3], "b": [4, 5], "c": [6]}
    source.lost = {"a": Loss(2, 2), "b": Loss(2, None)}
    planned, values = batch(planner, begun)
    assert values == [3, 6]
    assert BatchPositions.from_json(planned).reached == {"a": 3, "b": 2, "c": 1}
    assert (planner.reportLatestOffset() or {})[RECORDS_LOST] == 3, "an unknown number counts as one"
    assert RECORDS_LOST not in (reader(source).reportLatestOffset() or {})


def test_records_left_over_by_rounding_go_to_the_split_that_was_cut_most() -> None:
    assert limited(dict.fromkeys("abc", 0), {"a": 4, "b": 7, "c": 9}, 7) == {"a": 1, "b": 3, "c": 3}


def test_positions_of_another_kind_of_source_are_refused() -> None:
    planner = reader(Lists())
    with pytest.raises(Exception, match="SOURCE_POSITIONS_INVALID") as failure:
        planner.latestOffset({"events": {"0": 12}}, ReadAllAvailable())
    assert isinstance(typed_failure(failure.value), SourcePositionsError)


def test_a_source_that_plans_an_undiscovered_split_is_refused() -> None:
    with pytest.raises(SourcePositionsError, match="'b'"):
        next_positions(BatchPositions(), {"a": 0}, {"a": 1, "b": 2})


def test_an_exception_of_a_source_is_reported_in_full() -> None:
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
    assert "a-record" in str(error)
    assert "a-record" in str(origin_of(error).user_traceback).splitlines()[-1]
    assert "in read" in str(origin_of(error).user_traceback)


def test_a_source_that_cannot_be_sent_to_workers_is_refused_by_the_attributes_name() -> None:
    source = Lists()
    source.lists["a"] = cast("Any", threading.Lock())
    with pytest.raises(NotPicklableError, match=r"^source Lists .* because of Lists\.lists\['a'\]: Type"):
        streaming_frame(cast("SparkSession", None), source)


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


@given(counts, st.integers(0, 100))
def test_splits_share_a_limit_in_proportion_to_what_waits_in_them(backlog: dict[str, int], limit: int) -> None:
    taken = limited(dict.fromkeys(backlog, 0), backlog, limit)
    total = sum(backlog.values())
    if limit < total:
        for name, waiting in backlog.items():
            assert abs(taken[name] - limit * waiting / total) < 1


def test_splits_of_the_same_hours_advance_together() -> None:
    positions, ends = {"busy": 0, "quiet": 0}, {"busy": 1000, "quiet": 100}
    while positions != ends:
        positions = limited(positions, ends, 100)
        assert abs(positions["busy"] / 1000 - positions["quiet"] / 100) < 0.02


def test_a_small_split_does_not_starve_beside_a_large_one_that_grows() -> None:
    positions, ends = {"large": 0, "small": 0}, {"large": 100_000, "small": 5}
    for batch in range(1, 51):
        ends["large"] = 100_000 * batch
        positions = limited(positions, ends, 100)
    assert positions["small"] == 5


class Expiring(Lists):
    """The same lists, whose first records expire."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = {"a": [1, 2]}
        self.first: Any = {"a": 1}
        self.asked = 0

    def earliest(self, splits: Collection[str]) -> Mapping[str, Position]:
        self.asked += 1
        if isinstance(self.first, Exception):
            raise self.first
        return {split: self.first[split] for split in splits}


def test_a_source_is_asked_once_a_minute_for_what_it_still_has(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("keyscale.jobs.sources.source_reader.time.monotonic", lambda: now)
    source = Expiring()
    planner = reader(source)
    at, _ = batch(planner, planner.initialOffset())
    assert planner.reportLatestOffset() == {"records_behind": 0, "earliest": {"a": 1}}
    source.first = {"a": 2}
    at, _ = batch(planner, at)
    assert (source.asked, (planner.reportLatestOffset() or {})["earliest"]) == (1, {"a": 1})
    now += 61
    at, _ = batch(planner, at)
    assert (source.asked, (planner.reportLatestOffset() or {})["earliest"]) == (2, {"a": 2})
    for answer in (ValueError("no answer"), {"a": object()}, {"a": "text"}):
        source.first = answer
        source.lists["a"].append(3)
        now += 61
        at, values = batch(planner, at)
        assert values == [3], "a failure of the question fails no batch"
        assert "earliest" not in (planner.reportLatestOffset() or {}), "what it still has is no longer known"
    batch(planner, at)
    assert source.asked == 5, "a source that fails is not asked more often"


def test_a_source_is_asked_once_a_minute_how_long_it_keeps_records(monkeypatch: pytest.MonkeyPatch) -> None:
    now, answers = 100.0, iter([9000, ValueError("no answer"), 8000, None])
    monkeypatch.setattr("keyscale.jobs.sources.source_reader.time.monotonic", lambda: now)

    def retention_ms(_: Lists) -> int | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Lists, "retention_ms", retention_ms)
    source = Lists()
    source.lists = {"a": [1]}
    planner = reader(source)
    at, _ = batch(planner, planner.initialOffset())
    at, _ = batch(planner, at)
    assert (planner.reportLatestOffset() or {})["retention_ms"] == 9000
    for known in (9000, 8000, None):
        now += 61
        at, _ = batch(planner, at)
        assert (planner.reportLatestOffset() or {}).get("retention_ms") == known


def test_a_source_that_does_not_say_what_it_still_has_or_has_too_many_splits_is_not_reported() -> None:
    source = Lists()
    source.lists = {"a": [1]}
    silent = reader(source)
    batch(silent, silent.initialOffset())
    assert silent.reportLatestOffset() == {"records_behind": 0}
    many = Expiring()
    many.lists = {str(number): [] for number in range(1001)}
    planner = reader(many)
    batch(planner, planner.initialOffset())
    assert (many.asked, planner.reportLatestOffset()) == (0, {"records_behind": 0})


def test_a_drain_reads_only_splits_that_the_source_still_has() -> None:
    def between(start: Position, end: Position) -> int:
        return int(cast("int", end)) - int(cast("int", start))

    assert within({"a": 7, "b": 3}, {"a": 5, "b": 9, "gone": 4}, between) == {"a": 5, "b": 3}
