"""A drain processes all input and fires all event-time timers, those that fired timers register included."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.jobs.functions.process_function import KeyedProcessFunction
from keyscale.jobs.runtime.driver.execution import drain
from tests.support.rehearsal.keyed_rehearsal import SINK, keyed_rehearsal
from tests.support.short_form import short_form

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.rehearsal.rehearsal import Rehearsal

OUTPUT = pa.schema([("key", pa.string()), ("fired", pa.int64())])
FAR_MS = 10**12


class Chain(KeyedProcessFunction):
    """Registers a timer for a record, and further ones when it fires."""

    def __init__(self, links: int) -> None:
        self.links = links

    def process_element(self, row, context):  # noqa: ARG002 - the signature of the base class
        context.timer_service().register_event_time_timer(FAR_MS)

    def on_timer(self, timestamp, context):
        if timestamp < FAR_MS + self.links - 1:
            context.timer_service().register_event_time_timer(timestamp + 1)
        yield context.current_key, timestamp - FAR_MS


def drained(path: Path, links: int) -> Rehearsal:
    job = keyed_rehearsal(path, Chain(links), OUTPUT, [[("a", 1)], [("b", 2)]])
    job.start(2)
    job.run_batches(1)
    query = SimpleNamespace(drain=lambda: job.run_batches(1))
    drain(cast("Any", query), job._loop, operators=1)
    assert job.is_at_end
    return job


def test_a_drain_waits_for_the_input_and_then_for_each_round_of_timers() -> None:
    calls: list[Any] = []
    loop = SimpleNamespace(fire_timers=lambda **given: calls.append(given))
    drain(cast("Any", SimpleNamespace(drain=lambda: calls.append("input"))), cast("Any", loop), operators=1)
    assert calls == ["input", {"wait": True}, {"wait": True, "is_at_end": True}]


@pytest.mark.parametrize("links", short_form([1, 2, 3, 11], [1, 11]))
def test_a_timer_that_registers_the_next_one_fires_them_all(tmp_path: Path, links: int) -> None:
    rows = [(row["key"], row["fired"]) for row in drained(tmp_path, links).output(SINK)]
    assert sorted(rows) == [(key, number) for key in "ab" for number in range(links)]


def test_timers_without_end_stay_in_the_savepoint_and_the_drain_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = drained(tmp_path, 10**6)
    assert 2 < len(job.output(SINK)) < 100
    assert "without end" in caplog.text


def test_timers_fire_before_the_end_only_when_they_are_due(tmp_path: Path) -> None:
    job = keyed_rehearsal(tmp_path, Chain(1), OUTPUT, [[("a", 1)], [("b", FAR_MS + 1)], [("b", FAR_MS + 2)]])
    job.start(1)
    job.run_batches(1)
    job.fire_timers()
    assert job.output(SINK) == []
    job.run_batches(1)
    job.fire_timers()
    assert sorted((row["key"], row["fired"]) for row in job.output(SINK)) == [("a", 0), ("b", 0)]
