"""Watermarks follow from what was committed, never go back, and are the same for whoever runs a batch again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.body import NextTimers
from jobs.runtime.watermarks import Activity, BatchTime, batch_times, due_subtasks, time_after
from jobs.topology import Timestamps, Topology, TopologyBuilder
from state.identifiers import OperatorUid
from state.job_time import EventTime, JobTime

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
    """Sources "left" (bound 0) and "right" (bound 5), that are one stream to operator "first", and "second" after it."""
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


@dataclass
class Batches:
    """Batches of two sources, a second each, begun a second after the one before has ended."""

    graph: Topology
    time: JobTime = field(default_factory=JobTime)
    activity: Activity = field(default_factory=Activity)
    now_ms: int = 0

    def run(self, **latest: int) -> int | None:
        """A batch with records of some sources up to these times; gives the watermark that it fires timers with."""
        times = batch_times(self.graph, self.time, self.now_ms, self.activity)
        of_origins = {FIRST: latest, SECOND: {"operator:first": max(latest.values())}} if latest else {}
        latest_ms = {uid: max(origins.values()) for uid, origins in of_origins.items()}
        self.time = time_after(self.time, times, latest_ms, of_spark=True, of_origins={FIRST: latest})
        self.activity.ran(self.now_ms, self.now_ms + 1000, {FIRST: latest})
        self.now_ms += 2000
        assert times[SECOND].timers_ms == times[FIRST].timers_ms
        return times[FIRST].timers_ms

    def wait(self, ms: int) -> int | None:
        """The watermark after some time without any input."""
        self.now_ms += ms
        self.activity.waited(self.now_ms)
        return batch_times(self.graph, self.time, self.now_ms, self.activity)[FIRST].timers_ms


def test_the_watermark_is_the_latest_event_time_less_the_bound_and_one() -> None:
    time = JobTime({FIRST: EventTime(100, None)})
    assert batch_times(topology(bound_ms=10), time, 0)[FIRST].timers_ms == 89
    assert batch_times(topology(), JobTime(), 0)[FIRST].timers_ms is None


def test_a_larger_bound_than_before_holds_the_watermark_where_it_is() -> None:
    time = JobTime({FIRST: EventTime(100, 89)})
    assert batch_times(topology(bound_ms=50), time, 0)[FIRST].timers_ms == 89


def test_of_several_sources_the_one_that_is_the_least_far_says_how_far_the_operator_is() -> None:
    batches = Batches(two_sources())
    assert batches.run(left=100) is None
    assert batches.run(right=50) is None
    assert batches.run(left=200) == 50 - 5 - 1
    assert batches.run(right=300) == 44
    assert batches.run() == 199


def test_a_source_is_waited_for_however_long_unless_it_may_be_idle() -> None:
    batches = Batches(two_sources())
    batches.run(left=100, right=50)
    assert batches.wait(10_000_000) == 44


def test_an_idle_source_is_not_waited_for_until_it_has_records_again() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    assert batches.run(left=100, right=50) is None
    assert [batches.run(left=200 + number) for number in range(5)] == [44, 44, 44, 201, 202]
    assert batches.run(left=300, right=210) == 203
    assert batches.run() == 204, "the idle source is back, and holds the watermark again"


def test_a_batch_that_takes_long_makes_no_source_idle() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    batches.run(left=100, right=50)
    batches.activity.ran(batches.now_ms, batches.now_ms + 60_000, {FIRST: {"left": 1}})
    batches.now_ms += 60_000
    assert batches.run() == 44


def test_a_job_that_was_down_for_long_has_no_idle_sources() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    batches.run(left=100, right=50)
    batches.now_ms, batches.activity = 3_600_000, Activity()
    assert batches.run(left=500) == 44
    assert batches.run(left=600) == 44


def test_when_all_sources_are_idle_the_one_that_is_the_farthest_says_how_far_the_operator_is() -> None:
    batches = Batches(two_sources(idle_after_ms=5000))
    batches.run(left=100, right=50)
    assert batches.wait(2000) == 44
    assert batches.wait(3000) == 99


def test_how_far_each_source_is_survives_in_the_log() -> None:
    batches = Batches(two_sources())
    batches.run(left=100, right=50)
    batches.time = msgspec.json.decode(msgspec.json.encode(batches.time), type=JobTime)
    batches.run(right=80)
    assert batches.run() == 74


def test_an_operator_of_one_source_is_stored_as_it_always_was() -> None:
    assert msgspec.json.encode(EventTime(5, 4)) == b'{"latest_ms":5,"watermark_ms":4}'


def test_a_batch_sees_its_records_at_the_watermark_that_the_one_before_fired_with() -> None:
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


def test_an_operator_without_times_of_its_own_goes_by_the_one_before_it() -> None:
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


def test_subtasks_are_due_by_either_time_or_where_nothing_is_known() -> None:
    node = topology(second_has_times=False).operators[0]
    timers = [None, NextTimers(), NextTimers(10, None), NextTimers(11, None), NextTimers(None, 5), NextTimers(11, 6)]
    assert due_subtasks(node, BatchTime(5, None, 10), timers) == (True, False, True, False, True, False)
    assert due_subtasks(node, BatchTime(0, None, None), [NextTimers(-5, None)]) == (False,)
