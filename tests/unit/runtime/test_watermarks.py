"""Watermarks follow from what was committed, never go back, and are the same for whoever runs a batch again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.body import NextTimers
from jobs.runtime.watermarks import BatchTime, batch_times, due_subtasks, time_after, watermark_ms
from jobs.topology import Topology, TopologyBuilder
from state.identifiers import OperatorUid
from state.job_time import EventTime, JobTime

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64())])
FIRST, SECOND = OperatorUid("first"), OperatorUid("second")


@dataclass(frozen=True)
class Logic:
    uses_timers: bool = True

    def stored_key(self, key: pa.Schema) -> pa.Schema:
        return key


def topology(*, second_has_times: bool, bound_ms: int = 10) -> Topology:
    builder = TopologyBuilder()
    source = builder.add_source(cast("Any", None), SCHEMA)
    logic = cast("Any", Logic())
    before = builder.add_operator(
        source, key_columns=("key",), logic=logic, schema=SCHEMA, timestamp_column="at", out_of_orderness_ms=bound_ms
    )
    builder.name(before, FIRST)
    after = builder.add_operator(
        before, key_columns=("key",), logic=logic, schema=SCHEMA, timestamp_column="at" if second_has_times else None
    )
    builder.name(after, SECOND)
    builder.name(builder.add_sink(after, cast("Any", None)), "sink")
    return builder.build()


def test_the_watermark_is_the_latest_event_time_less_the_bound_and_one() -> None:
    assert watermark_ms(EventTime(100, None), 10) == 89
    assert watermark_ms(EventTime(None, None), 10) is None


def test_a_larger_bound_than_before_holds_the_watermark_where_it_is() -> None:
    assert watermark_ms(EventTime(100, 89), 50) == 89


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
