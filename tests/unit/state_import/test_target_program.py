"""The next batch of a job has the watermark that the next batch of the Spark query would have."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.runtime.batch.watermarks import batch_times
from keyscale.jobs.streams.streams import DataStream
from keyscale.state_import.spark_checkpoint import BatchFacts
from keyscale.state_import.target_program import TargetProgram

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def program(bound_ms: int | None, *, of_two: bool = False) -> TargetProgram:
    """A program of two deduplications in a row."""
    builder = TopologyBuilder()

    def stream(uid: str) -> DataStream:
        views = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None).uid(uid)
        return views if bound_ms is None else views.with_timestamps("at", max_out_of_orderness_ms=bound_ms)

    views = stream("views").union(stream("others")) if of_two else stream("views")
    unique = views.key_by("user").deduplicate().uid("first").key_by("user").deduplicate().uid("second")
    unique.sink_to(cast("Any", None)).uid("sink")
    return TargetProgram((), (), builder.build())


@pytest.mark.parametrize("of_two", [False, True])
def test_records_have_sparks_watermark_of_the_last_batch_and_timers_its_next_one(of_two: bool) -> None:
    target = program(3000, of_two=of_two)
    time = target.time_after(BatchFacts(7, 50_000, 80_000, 99_000))
    assert time.processing_ms == 99_000
    times = batch_times(target.topology, time, 0)
    # Keyscale's watermark is the last time that has passed, one millisecond before Spark's.
    assert {(each.records_ms, each.timers_ms) for each in times.values()} == {(49_999, 79_999)}


def test_a_query_without_a_watermark_leaves_the_operators_without_one() -> None:
    assert program(3000).time_after(BatchFacts(7, 0, 0, 99_000)).event_times == {}
    assert program(None).time_after(BatchFacts(7, 0, 0, 99_000)).event_times == {}


def test_the_first_watermark_of_a_query_has_made_no_record_late() -> None:
    target = program(3000)
    times = batch_times(target.topology, target.time_after(BatchFacts(0, 0, 80_000, 99_000)), 0)
    assert {(each.records_ms, each.timers_ms) for each in times.values()} == {(None, 79_999)}
