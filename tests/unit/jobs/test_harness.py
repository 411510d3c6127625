"""The harness runs an operator as the runtime does: in batches, subtask by subtask, with timers, and state that can be restored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from jobs import KeyedProcessFunction, OutputTag, TimeDomain, Ttl, ValueStateDescriptor
from jobs.deduplicate import Deduplicate
from jobs.errors import InvalidSchemaError, UnknownOutputError, UserFunctionError
from jobs.testing import OperatorHarness
from jobs.timers import NO_WATERMARK_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobs import OnTimerContext, ProcessContext, Row, RuntimeContext

INPUT = {"user": "string", "at": "bigint"}
OUTPUT = {"user": "string", "what": "string"}
LARGE = OutputTag("large", pa.schema([("user", pa.string()), ("at", pa.int64())]))


class Sessions(KeyedProcessFunction):
    """Says when a user has been away for ten milliseconds of event time, or the clock has gone on by a hundred."""

    def open(self, context: RuntimeContext) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:
        timers = context.timer_service()
        if self.last.value() is not None:
            timers.delete_event_time_timer(self.last.value() + 10)
        self.last.update(row.at)
        timers.register_event_time_timer(row.at + 10)
        timers.register_processing_time_timer(timers.current_processing_time() + 100)
        if row.at > 1000:
            context.output(LARGE, row)
        yield row.user, f"seen at {context.timestamp}, watermark {timers.current_watermark() > NO_WATERMARK_MS}"

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Any]:
        if context.time_domain is TimeDomain.EVENT:
            self.last.clear()
        yield context.current_key, f"{context.time_domain} {timestamp}"


def sessions(parallelism: int = 1) -> OperatorHarness:
    return OperatorHarness(
        Sessions(),
        input=INPUT,
        key=["user"],
        output=OUTPUT,
        timestamp="at",
        side_outputs=[LARGE],
        parallelism=parallelism,
    )


def test_event_timers_fire_once_when_the_watermark_reaches_them() -> None:
    harness = sessions()
    harness.process(("ada", 5), {"at": 7, "user": "ada"}, ("bob", 6))
    assert [row.what for row in harness.take_output()] == [f"seen at {at}, watermark False" for at in (5, 7, 6)]
    harness.advance_watermark(15)
    assert harness.take_output() == []
    harness.advance_watermark(16)
    assert harness.take_output() == [("bob", "event 16")]
    harness.advance_watermark(100)
    harness.advance_watermark(100)
    assert harness.take_output() == [("ada", "event 17")]
    assert harness.state("last") == []


def test_processing_timers_fire_when_the_clock_reaches_them() -> None:
    harness = sessions()
    harness.process(("ada", 5), ("ada", 6))
    harness.take_output()
    harness.advance_processing_time(99)
    assert harness.take_output() == []
    harness.advance_processing_time(100)
    assert harness.take_output() == [("ada", "processing 100")]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_state_and_timers_are_there_after_a_restore_at_another_parallelism(parallelism: int) -> None:
    harness = sessions(2)
    users = [f"user-{number}" for number in range(50)]
    harness.process(*[(user, at) for at, user in enumerate(users)])
    later = harness.restored(harness.snapshot(), parallelism=parallelism)
    assert later.take_output() == []
    assert sorted(key.key[0] for key, _ in later.state("last")) == sorted(users)
    later.advance_watermark(34)
    assert sorted(later.take_output()) == sorted((user, f"event {at + 10}") for at, user in enumerate(users[:25]))
    harness.advance_watermark(34)
    assert len(harness.take_output()) == 75
    assert len(later.state("last")) == 25


def test_a_side_output_has_what_was_put_into_it() -> None:
    harness = sessions()
    harness.process(("ada", 5), ("ada", 1001))
    assert harness.take_side_output(LARGE) == [("ada", 1001)]
    assert harness.take_side_output(LARGE) == []
    assert len(harness.take_output()) == 2


def test_a_side_output_that_was_not_declared_is_refused() -> None:
    harness = OperatorHarness(Sessions(), input=INPUT, key=["user"], output=OUTPUT)
    with pytest.raises(UnknownOutputError, match="large"):
        harness.process(("ada", 1001))


class Fragile(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))
        self.kept = 0

    def process_element(self, row: Row, context: ProcessContext) -> list[Any]:
        self.kept += 1
        self.count.update((self.count.value() or 0) + 1)
        context.timer_service().register_event_time_timer(1)
        return [(row.user, str(1 // row.at))]


def test_a_batch_that_fails_changes_nothing_and_what_a_function_keeps_in_itself_is_gone() -> None:
    function = Fragile()
    harness = OperatorHarness(function, input=INPUT, key=["user"], output=OUTPUT)
    harness.process(("ada", 1))
    with pytest.raises(UserFunctionError):
        harness.process(("bob", 1), ("ada", 0))
    assert [(key.key, value) for key, value in harness.state("count")] == [(("ada",), 1)]
    assert harness.take_output() == [("ada", "1")]
    assert not hasattr(function, "kept")


def test_the_logic_of_any_operator_can_be_tested() -> None:
    harness = OperatorHarness(Deduplicate(None), input=INPUT, key=["user"], output=INPUT, parallelism=3)
    harness.process(("ada", 1), ("ada", 2), ("bob", 3))
    harness.process(("bob", 4))
    assert sorted(harness.take_output()) == [("ada", 1), ("bob", 3)]


def test_a_type_that_is_not_atomic_is_declared_as_arrows() -> None:
    with pytest.raises(InvalidSchemaError, match="array"):
        OperatorHarness(Sessions(), input={"user": "array<int>"}, key=["user"], output=OUTPUT)
    nested = {"user": pa.list_(pa.int32()), "at": "int"}
    OperatorHarness(Sessions(), input=nested, key=["user"], output=OUTPUT)


def test_a_ttl_by_event_time_goes_by_the_watermark_and_not_by_the_clock() -> None:
    by_event = replace(Ttl(100), time_domain=TimeDomain.EVENT)
    harness = OperatorHarness(Deduplicate(by_event), input=INPUT, key=["user"], output=INPUT)
    harness.advance_watermark(1000)
    harness.process(("ada", 1))
    harness.advance_processing_time(10**12)
    harness.advance_watermark(1099)
    harness.process(("ada", 2))
    assert harness.take_output() == [("ada", 1)]
    harness.advance_watermark(1100)
    harness.process(("ada", 3))
    assert harness.take_output() == [("ada", 3)]
