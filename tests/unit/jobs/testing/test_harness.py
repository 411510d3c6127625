"""The harness runs an operator as the runtime does: in batches, by subtask, with timers and restorable state."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale import (
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    OutputTag,
    ReducingStateDescriptor,
    TimeDomain,
    Ttl,
    ValueStateDescriptor,
)
from keyscale.jobs.errors import (
    InvalidSchemaError,
    MetricInvalidError,
    OutputTypeError,
    UnknownOutputError,
    UserFunctionError,
)
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.testing.harness import Observations, OperatorHarness
from keyscale.state.keyed.timer_service import NO_WATERMARK_MS
from tests.contract.keyed_store import ACCUMULATOR, Mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import OnTimerContext, ProcessContext, Row, RuntimeContext

INPUT = {"user": "string", "at": "bigint"}
OUTPUT = {"user": "string", "what": "string"}
LARGE = OutputTag("large", pa.schema([("user", pa.string()), ("at", pa.int64())]))


class Sessions(KeyedProcessFunction):
    """Reports that a user was away for ten milliseconds of event time, or a hundred of processing time."""

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
def test_state_and_timers_survive_a_restore_at_another_parallelism(parallelism: int) -> None:
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


def test_a_side_output_has_the_records_emitted_to_it() -> None:
    harness = sessions()
    harness.process(("ada", 5), ("ada", 1001))
    assert harness.take_side_output(LARGE) == [("ada", 1001)]
    assert harness.take_side_output(LARGE) == []
    assert len(harness.take_output()) == 2


def test_an_undeclared_side_output_is_refused() -> None:
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


def test_a_failed_batch_changes_nothing_and_attributes_of_a_function_do_not_last() -> None:
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


def test_a_type_that_is_not_atomic_must_be_declared_as_an_arrow_type() -> None:
    with pytest.raises(InvalidSchemaError, match="array"):
        OperatorHarness(Sessions(), input={"user": "array<int>"}, key=["user"], output=OUTPUT)
    nested = {"user": pa.list_(pa.int32()), "at": "int"}
    OperatorHarness(Sessions(), input=nested, key=["user"], output=OUTPUT)


def test_a_ttl_by_event_time_uses_the_watermark_and_not_the_clock() -> None:
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


class Registration(KeyedProcessFunction):
    def process_element(self, row: Row, context: ProcessContext) -> list[Any]:  # noqa: ARG002 - not used
        return [(row.user, str(int(row.user)))]


def test_a_failed_batch_shows_the_exception_of_the_function_as_its_cause_and_where_it_happened() -> None:
    harness = OperatorHarness(Registration(), input=INPUT, key=["user"], output=OUTPUT, parallelism=3)
    with pytest.raises(UserFunctionError, match="ValueError: invalid literal for int") as failure:
        harness.process(("ada", 1))
    assert isinstance(failure.value.__cause__, ValueError)
    subtask = origin_of(failure.value).subtask
    assert "in process_element" in str(origin_of(failure.value).user_traceback)
    shown = "".join(traceback.format_exception(failure.value))
    assert "str(int(row.user))" in shown
    assert f"in operator tested, subtask {subtask}" in shown


class Client:
    def __init__(self) -> None:
        self.calls = 0


class Calling(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.client = context.worker_resource("client", Client)

    def process_element(self, row: Row, context: ProcessContext) -> list[Any]:  # noqa: ARG002 - not used
        self.client.calls += 1
        if row.at < 0:
            raise ConnectionError
        return [(row.user, str(self.client.calls))]


def test_a_resource_lasts_from_batch_to_batch_until_one_fails() -> None:
    harness = OperatorHarness(Calling(), input=INPUT, key=["user"], output=OUTPUT, parallelism=2)
    for _ in range(2):
        harness.process(("ada", 1))
    with pytest.raises(UserFunctionError):
        harness.process(("ada", -1))
    harness.process(("ada", 1))
    assert [row.what for row in harness.take_output()] == ["1", "2", "1"]
    later = harness.restored(harness.snapshot())
    later.process(("ada", 1))
    assert [row.what for row in later.take_output()] == ["1"]


class Purchases(KeyedProcessFunction):
    """Emits the sum and the mean of a user's amounts, and reminds a user who has bought only once."""

    def open(self, context: RuntimeContext) -> None:
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", pa.int64(), lambda a, b: a + b))
        self.mean = context.get_aggregating_state(AggregatingStateDescriptor("mean", ACCUMULATOR, Mean()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:
        timers = context.timer_service()
        if self.sum.get() is None:
            timers.register_processing_time_timer(100)
        else:
            timers.delete_processing_time_timer(100)
        self.sum.add(row.at)
        self.mean.add(row.at)
        yield row.user, f"{self.sum.get()} {self.mean.get()}"

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Any]:
        yield context.current_key, f"reminded at {timestamp}"


def test_reducing_and_aggregating_states_are_kept_per_key_and_restored() -> None:
    harness = OperatorHarness(Purchases(), input=INPUT, key=["user"], output=OUTPUT)
    harness.process(("ada", 5), ("bob", 1), ("ada", 6))
    assert harness.take_output() == [("ada", "5 5.0"), ("bob", "1 1.0"), ("ada", "11 5.5")]
    later = harness.restored(harness.snapshot(), parallelism=3)
    later.process(("ada", 7), ("bob", 2))
    assert sorted(later.take_output()) == [("ada", "18 6.0"), ("bob", "3 1.5")]


class WrongReminder(KeyedProcessFunction):
    """Sets a timer that is due in the same batch, and emits a number instead of a text then."""

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:
        timers = context.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time())
        yield row.user, "seen"

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Any]:
        yield context.current_key, timestamp


def test_a_wrong_output_of_a_timer_is_not_told_as_one_of_a_record() -> None:
    harness = OperatorHarness(WrongReminder(), input=INPUT, key=["user"], output=OUTPUT)
    with pytest.raises(OutputTypeError) as caught:
        harness.process(("ada", 5))
    assert "ada" not in str(caught.value)


def test_a_processing_time_timer_that_was_deleted_does_not_fire() -> None:
    harness = OperatorHarness(Purchases(), input=INPUT, key=["user"], output=OUTPUT)
    harness.process(("ada", 5), ("bob", 1), ("ada", 6))
    harness.take_output()
    harness.advance_processing_time(100)
    assert harness.take_output() == [("bob", "reminded at 100")]


class Measured(KeyedProcessFunction):
    """Counts users, and fails on negative times."""

    def open(self, context: RuntimeContext) -> None:
        self.records = context.metrics.counter("records", labels=["user"])
        self.latest = context.metrics.gauge("latest", fold="sum")
        self.times = context.metrics.histogram("times", buckets=[10])

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:  # noqa: ARG002
        self.records.labels(user=row.user).inc()
        self.latest.set(row.at)
        self.times.observe(row.at)
        if row.at < 0:
            raise ValueError("a negative time")
        yield row.user, "seen"


def measured(parallelism: int = 1) -> OperatorHarness:
    return OperatorHarness(Measured(), input=INPUT, key=["user"], output=OUTPUT, parallelism=parallelism)


def test_a_functions_own_metrics_add_up_over_batches_and_subtasks() -> None:
    harness = measured(parallelism=2)
    harness.process(*((f"user {number}", number) for number in range(20)))
    harness.process(("user 1", 3))
    assert (harness.metric("records", user="user 1"), harness.metric("records", user="user 2")) == (2, 1)
    assert harness.metric("times") == Observations(count=21, sum=193, buckets=(12, 9))


def test_a_failed_batch_counts_nothing() -> None:
    harness = measured()
    harness.process(("ada", 1))
    with pytest.raises(UserFunctionError):
        harness.process(("ada", 5), ("ada", -1))
    assert (harness.metric("records", user="ada"), harness.metric("latest")) == (1, 1)


def test_counters_survive_a_restart_and_gauges_begin_again() -> None:
    harness = measured()
    harness.process(("ada", 1))
    later = harness.restored(harness.snapshot(), parallelism=4)
    later.process(("bob", 7))
    assert (later.metric("records", user="ada"), later.metric("records", user="bob")) == (1, 1)
    assert later.metric("latest") == 7


def test_a_test_that_names_an_unknown_metric_fails() -> None:
    harness = measured()
    harness.process(("ada", 1))
    with pytest.raises(MetricInvalidError, match="has not declared the metric 'record'; it has: latest, records"):
        harness.metric("record")
