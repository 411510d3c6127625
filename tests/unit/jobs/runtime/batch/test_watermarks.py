"""Watermarks follow from what was committed, never go back, and are the same if a batch runs again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.identifiers import OperatorUid
from keyscale.jobs.errors import TooManySplitsError
from keyscale.jobs.graph.nodes import Timestamps
from keyscale.jobs.graph.topology import Topology, TopologyBuilder
from keyscale.jobs.runtime.batch.watermarks import InputActivity, batch_times, due_subtasks, time_after
from keyscale.jobs.runtime.executor.task import BatchTime
from keyscale.state.documents.job_time import EventTime, JobTime
from keyscale.state.keyed.timer_service import NextTimers

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64())])
FIRST, SECOND = OperatorUid("first"), OperatorUid("second")


@dataclass(frozen=True)
class Logic:
    uses_timers: bool = True

    def stored_key(self, key: pa.Schema) -> pa.Schema:
        return key


def topology(*, second_has_times: bool = False, bound_ms: int = 10) -> Topology:
    builder = TopologyBuilder()
    source = builder.add_source(cast("Any", None), SCHEMA)
    logic = cast("Any", Logic())
    before = builder.add_operator(
        source, key_columns=("key",), logic=logic, schema=SCHEMA, timestamp_column="at", out_of_orderness_ms=bound_ms
    )
    builder.name(before, FIRST)
    between = builder.add_timestamps(before, Timestamps("at")) if second_has_times else before
    after = builder.add_operator(between, key_columns=("key",), logic=logic, schema=SCHEMA, timestamp_column="at")
    builder.name(after, SECOND)
    builder.name(builder.add_sink(after, cast("Any", None)), "sink")
    return builder.build()


def two_sources(*, idle_after_ms: int | None = None) -> Topology:
    """Sources "left" (bound 0) and "right" (bound 5) are one stream to operator "first", with "second" after it."""
    builder = TopologyBuilder()
    logic = cast("Any", Logic())
    sources = [builder.add_source(cast("Any", None), SCHEMA) for _ in range(2)]
    timed = [
        builder.add_timestamps(source, Timestamps("at", bound_ms, idle_after_ms))
        for source, bound_ms in zip(sources, (0, 5), strict=True)
    ]
    for source, uid in zip(timed, ("left", "right"), strict=True):
        builder.name(source, uid)
    last = builder.add_union(timed)
    for uid in (FIRST, SECOND):
        last = builder.add_operator(last, key_columns=("key",), logic=logic, schema=SCHEMA, timestamp_column="at")
        builder.name(last, uid)
    builder.name(builder.add_sink(last, cast("Any", None)), "sink")
    return builder.build()


def in_splits(*, idle_after_ms: int | None = None, columns: tuple[str, ...] = ("part",)) -> Topology:
    """Operator "first" reads the only source, in splits by its columns; "second" reads its output."""
    builder = TopologyBuilder()
    logic = cast("Any", Logic())
    schema = pa.schema([*SCHEMA, ("part", pa.string()), ("shard", pa.int32())])
    source = builder.add_source(cast("Any", None), schema)
    last = builder.add_timestamps(source, Timestamps("at", 0, idle_after_ms, columns))
    for uid in (FIRST, SECOND):
        last = builder.add_operator(last, key_columns=("key",), logic=logic, schema=SCHEMA, timestamp_column="at")
        builder.name(last, uid)
    builder.name(builder.add_sink(last, cast("Any", None)), "sink")
    return builder.build()


@dataclass
class Batches:
    """Batches of two sources; each takes a second, and begins a second after the end of the one before."""

    graph: Topology
    time: JobTime = field(default_factory=JobTime)
    activity: InputActivity = field(default_factory=InputActivity)
    now_ms: int = 0

    def run(self, **latest: int) -> int | None:
        """Runs a batch with records of some sources up to these times; returns the watermark of its timers."""
        times = batch_times(self.graph, self.time, self.now_ms, self.activity)
        of_origins = {FIRST: latest, SECOND: {"operator:first": max(latest.values())}} if latest else {}
        latest_ms = {uid: max(origins.values()) for uid, origins in of_origins.items()}
        self.time = time_after(self.time, times, latest_ms, of_spark=True, of_origins={FIRST: latest})
        self.activity.ran(self.now_ms, self.now_ms + 1000, {FIRST: latest})
        self.now_ms += 2000
        assert times[SECOND].timers_ms == times[FIRST].timers_ms
        return times[FIRST].timers_ms

    def run_splits(self, **latest: int) -> int | None:
        """As `run`, with records of some splits of the only source."""
        (arrival,) = self.graph.arrivals(self.graph.operators[0])
        times = batch_times(self.graph, self.time, self.now_ms, self.activity)
        of_splits = {FIRST: {arrival.splits_name: latest}}
        latest_ms = {FIRST: max(latest.values(), default=None)}
        self.time = time_after(self.time, times, latest_ms, of_spark=True, of_splits=of_splits)
        self.time = msgspec.json.decode(msgspec.json.encode(self.time), type=JobTime)
        self.activity.ran(self.now_ms, self.now_ms + 1000, {}, of_splits)
        self.now_ms += 2000
        assert times[SECOND].timers_ms == times[FIRST].timers_ms
        return times[FIRST].timers_ms

    def wait(self, ms: int) -> int | None:
        """Returns the watermark after some time without any input."""
        self.now_ms += ms
        self.activity.waited(self.now_ms)
        return batch_times(self.graph, self.time, self.now_ms, self.activity)[FIRST].timers_ms


def test_the_watermark_is_the_latest_event_time_less_the_bound_and_one() -> None:
    time = JobTime({FIRST: EventTime(100, None)})
    assert batch_times(topology(bound_ms=10), time, 0)[FIRST].timers_ms == 89
    assert batch_times(topology(), JobTime(), 0)[FIRST].timers_ms is None


def test_with_a_larger_bound_than_before_the_watermark_stays() -> None:
    time = JobTime({FIRST: EventTime(100, 89)})
    assert batch_times(topology(bound_ms=50), time, 0)[FIRST].timers_ms == 89


def test_of_several_sources_the_earliest_watermark_counts() -> None:
    batches = Batches(two_sources())
    assert batches.run(left=100) is None
    assert batches.run(right=50) is None
    assert batches.run(left=200) == 50 - 5 - 1
    assert batches.run(right=300) == 44
    assert batches.run() == 199


def test_a_source_without_records_holds_the_watermark_unless_it_may_be_idle() -> None:
    batches = Batches(two_sources())
    batches.run(left=100, right=50)
    assert batches.wait(10_000_000) == 44


def test_an_idle_source_does_not_hold_the_watermark_until_it_has_records_again() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    assert batches.run(left=100, right=50) is None
    assert [batches.run(left=200 + number) for number in range(5)] == [44, 44, 44, 201, 202]
    assert batches.run(left=300, right=210) == 203
    assert batches.run() == 204, "the idle source is back, and holds the watermark again"


def test_a_source_that_was_idle_does_not_hold_back_the_others_while_it_catches_up() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    batches.run(left=100, right=50)
    for _ in range(3):
        batches.run(left=300)
    assert batches.run(left=300) == 299
    assert batches.run(left=400, right=60) == 299
    assert batches.run(left=500, right=200) == 399, "the right one is still behind what has been reached"
    assert batches.run(left=500, right=510) == 499
    assert batches.run(left=900, right=520) == 499, "in step again, it counts"
    assert batches.run() == 520 - 5 - 1


def test_a_source_that_was_idle_counts_again_as_soon_as_it_has_reached_the_watermark() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    batches.run(left=100, right=50)
    for _ in range(3):
        batches.run(left=300)
    assert batches.run(left=400, right=299 + 5 + 1) == 299
    assert batches.run(left=500) == 299


def test_of_several_splits_the_earliest_watermark_counts() -> None:
    batches = Batches(in_splits())
    assert batches.run_splits(a=100, b=40) is None
    assert batches.run_splits(a=900) == 39
    assert batches.run_splits(b=60) == 39
    assert batches.run_splits(b=1000) == 59
    assert batches.run_splits() == 899


def test_an_idle_split_does_not_hold_the_watermark_nor_while_it_catches_up() -> None:
    batches = Batches(in_splits(idle_after_ms=5000))
    assert [batches.run_splits(a=at, **({"b": 40} if at == 100 else {})) for at in (100, 200, 300, 400, 500)] == [
        None, 39, 39, 39, 399,
    ]  # fmt: skip
    assert batches.run_splits(a=600, b=50) == 499
    assert batches.run_splits(a=700, b=800) == 599
    assert batches.run_splits() == 699


def test_a_job_whose_history_knows_no_splits_goes_on_from_its_watermark() -> None:
    batches = Batches(in_splits(), JobTime({FIRST: EventTime(100, 99)}))
    assert batches.run_splits(a=50, b=500) == 99
    assert batches.run_splits(a=300) == 99
    assert batches.run_splits() == 299


def test_splits_by_other_columns_are_other_splits() -> None:
    batches = Batches(in_splits())
    batches.run_splits(a=100, b=40)
    batches.run_splits(a=200)
    batches.graph = in_splits(columns=("part", "shard"))
    batches.run_splits(**{"a/1": 300})
    assert batches.run_splits() == 299


def test_a_split_that_gets_another_name_goes_on_where_it_was() -> None:
    batches = Batches(in_splits(columns=("part", "shard")))
    batches.run_splits(**{"a/b/0": 100, "c/0": 500})
    assert batches.run_splits(**{"a\\/b/0": 90}) == 99, "its time was 100"
    batches.run_splits(**{"a\\/b/0": 300})
    assert batches.run_splits() == 299, "no time stays under its earlier name"


def test_more_splits_than_a_commit_can_hold_are_refused() -> None:
    batches = Batches(in_splits())
    with pytest.raises(TooManySplitsError, match="10000"):
        batches.run_splits(**{f"key-{number}": 1 for number in range(10_001)})


def test_a_long_batch_makes_no_source_idle() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    batches.run(left=100, right=50)
    batches.activity.ran(batches.now_ms, batches.now_ms + 60_000, {FIRST: {"left": 1}})
    batches.now_ms += 60_000
    assert batches.run() == 44


def test_a_long_batch_makes_no_split_with_records_in_it_idle() -> None:
    batches = Batches(in_splits(idle_after_ms=5000))
    batches.run_splits(a=100, b=40)
    (arrival,) = batches.graph.arrivals(batches.graph.operators[0])
    batches.activity.ran(batches.now_ms, batches.now_ms + 60_000, {}, {FIRST: {arrival.splits_name: {"b": 40}}})
    batches.now_ms += 60_000
    assert batches.run_splits(a=200) == 39
    assert batches.run_splits() == 39


def test_a_job_that_was_down_for_long_has_no_idle_sources() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    batches.run(left=100, right=50)
    batches.now_ms, batches.activity = 3_600_000, InputActivity()
    assert batches.run(left=500) == 44
    assert batches.run(left=600) == 44


def test_when_all_sources_are_idle_the_latest_watermark_counts() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    batches.run(left=100, right=50)
    assert batches.wait(2000) == 44
    assert batches.wait(3000) == 99


def test_the_event_times_of_each_source_are_in_the_log() -> None:
    batches = Batches(two_sources())
    batches.run(left=100, right=50)
    batches.time = msgspec.json.decode(msgspec.json.encode(batches.time), type=JobTime)
    batches.run(right=80)
    assert batches.run() == 74


def test_the_stored_form_of_an_operator_with_one_source_has_no_origins() -> None:
    assert msgspec.json.encode(EventTime(5, 4)) == b'{"latest_ms":5,"watermark_ms":4}'


def test_records_are_processed_at_the_watermark_that_fired_the_timers_of_the_batch_before() -> None:
    graph, time = topology(second_has_times=True), JobTime()
    times = batch_times(graph, time, 1)
    assert times[FIRST] == BatchTime(1, None, None)
    time = time_after(time, times, {FIRST: 100, SECOND: 40}, of_spark=True)
    times = batch_times(graph, time, 2)
    assert times[FIRST] == BatchTime(2, None, 89)
    assert times[SECOND] == BatchTime(2, None, 39)
    time = time_after(time, times, {FIRST: 90, SECOND: None}, of_spark=False)
    assert batch_times(graph, time, 3)[FIRST] == BatchTime(3, 89, 89)
    assert time.time_batches == 1


def test_an_operator_without_timestamps_of_its_own_has_the_watermark_of_the_one_before_it() -> None:
    graph = topology(second_has_times=False)
    time = time_after(JobTime(), batch_times(graph, JobTime(), 1), {FIRST: 100}, of_spark=True)
    assert batch_times(graph, time, 2)[SECOND] == BatchTime(2, None, 89)


@given(st.lists(st.tuples(st.none() | st.integers(0, 1000), st.integers(0, 100)), max_size=20))
def test_watermarks_never_go_back(batches: list[tuple[int | None, int]]) -> None:
    def placed(watermark: int | None) -> float:
        return float("-inf") if watermark is None else watermark

    time, before = JobTime(), placed(None)
    for latest, bound_ms in batches:
        times = batch_times(topology(second_has_times=False, bound_ms=bound_ms), time, 0)
        assert before <= placed(times[FIRST].records_ms) <= placed(times[FIRST].timers_ms)
        before = placed(times[FIRST].timers_ms)
        time = time_after(time, times, {FIRST: latest}, of_spark=True)


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_processing_time_never_goes_back_whatever_the_clocks_of_the_drivers_say(clocks: list[int]) -> None:
    time = JobTime()
    for now_ms in clocks:
        times = batch_times(topology(), time, now_ms)
        assert {each.processing_ms for each in times.values()} == {max(now_ms, time.processing_ms)}
        time = time_after(time, times, {}, of_spark=True)
        time = msgspec.json.decode(msgspec.json.encode(time), type=JobTime)
    assert time.processing_ms == max(clocks, default=0)


def test_subtasks_are_due_by_either_time_or_if_their_timers_are_not_known() -> None:
    node = topology(second_has_times=False).operators[0]
    timers = [None, NextTimers(), NextTimers(10, None), NextTimers(11, None), NextTimers(None, 5), NextTimers(11, 6)]
    assert due_subtasks(node, BatchTime(5, None, 10), timers) == (True, False, True, False, True, False)
    assert due_subtasks(node, BatchTime(0, None, None), [NextTimers(-5, None)]) == (False,)
