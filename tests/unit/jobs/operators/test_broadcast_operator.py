"""Changes by a broadcast record are visible in every subtask, before the batch's keyed records, and after a rescale."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale import (
    DataStream,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ValueStateDescriptor,
)
from keyscale.errors import KeyscaleError
from keyscale.jobs.errors import (
    BroadcastDivergedError,
    BroadcastTooLargeError,
    InvalidTopologyError,
    OperatorStateUnavailableError,
    UserFunctionError,
)
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators import broadcast_rows
from keyscale.jobs.operators.broadcast_operator import BroadcastProcess
from keyscale.jobs.testing.harness import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import BroadcastContext, KeyedReadOnlyContext, KeyedReadOnlyTimerContext, Row, RuntimeContext

LIMITS = MapStateDescriptor("limits", pa.string(), pa.int64())
UNKNOWN = MapStateDescriptor("unknown", pa.string(), pa.int64())
SEEN = OutputTag("seen", pa.schema([("subtask", pa.int64()), ("category", pa.string())]))
INPUT = {"user": "string", "category": "string", "amount": "bigint"}
RULES = {"category": "string", "limit": "bigint"}
USERS = [f"user-{number}" for number in range(20)]


class OverLimit(KeyedBroadcastProcessFunction):
    """Emits the amounts above the limit of their category, numbered per user."""

    def open(self, context: RuntimeContext) -> None:
        self.subtask = context.subtask_index
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: Row, context: KeyedReadOnlyContext) -> Iterator[tuple[Any, ...]]:
        if row.category == "asks for what is unknown":
            context.get_broadcast_state(UNKNOWN)
        limit = context.get_broadcast_state(LIMITS).get(row.category)
        if limit is not None and row.amount > limit:
            self.count.update((self.count.value() or 0) + 1)
            context.timer_service().register_event_time_timer(row.amount)
            yield row.user, row.amount, self.count.value()

    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> None:
        if row.category == "reads keyed state":
            self.count.value()
        if row.category == "fails":
            context.get_broadcast_state(LIMITS).put("half done", 1)
            raise ValueError
        limit = self.subtask if row.category == "by subtask" else row.limit
        context.get_broadcast_state(LIMITS).put(row.category, limit)
        context.output(SEEN, (self.subtask, row.category))

    def on_timer(self, timestamp: int, context: KeyedReadOnlyTimerContext) -> Iterator[tuple[Any, ...]]:
        if context.get_broadcast_state(LIMITS).contains("timers"):
            yield context.current_key, timestamp, None


def harness(parallelism: int = 3) -> OperatorHarness:
    return OperatorHarness(
        OverLimit(),
        input=INPUT,
        key=["user"],
        output={"user": "string", "amount": "bigint", "count": "bigint"},
        side_outputs=[SEEN],
        parallelism=parallelism,
        broadcast=RULES,
        broadcast_states=[LIMITS],
    )


def limits(of: OperatorHarness, parallelism: int) -> list[dict[str, int]]:
    return [dict(of.operator_state(subtask).broadcast_state(LIMITS).items()) for subtask in range(parallelism)]


def test_every_subtask_receives_broadcast_records() -> None:
    tested = harness()
    tested.process_broadcast(("food", 10), ("food", 20))
    assert limits(tested, 3) == [{"food": 20}] * 3
    assert sorted(tested.take_side_output(SEEN)) == [(subtask, "food") for subtask in (0, 0, 1, 1, 2, 2)]
    tested.process(*((user, "food", amount) for user in USERS for amount in (15, 25, 35)))
    assert sorted(tested.take_output()) == sorted((user, 25 + 10 * at, at + 1) for user in USERS for at in range(2))


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_broadcast_state_survives_a_restart_at_any_parallelism(parallelism: int) -> None:
    before = harness()
    before.process_broadcast(("food", 10), ("cars", 1000))
    before.process(("user-1", "food", 11))
    tested = before.restored(before.snapshot(), parallelism=parallelism)
    assert limits(tested, parallelism) == [{"food": 10, "cars": 1000}] * parallelism
    tested.process(*((user, "food", 12) for user in USERS))
    assert sorted(tested.take_output()) == sorted((user, 12, 2 if user == "user-1" else 1) for user in USERS)


def test_timers_can_read_broadcast_state() -> None:
    tested = harness()
    tested.process_broadcast(("food", 0))
    tested.process(("ada", "food", 5))
    tested.advance_watermark(4)
    tested.process_broadcast(("timers", 1))
    tested.take_output()
    tested.advance_watermark(5)
    assert tested.take_output() == [("ada", 5, None)]


def test_a_failed_batch_leaves_broadcast_state_unchanged() -> None:
    tested = harness()
    tested.process_broadcast(("food", 10))
    with pytest.raises(UserFunctionError, match="at broadcast record 2 of the batch, in subtask 0"):
        tested.process_broadcast(("cars", 1), ("fails", 1))
    assert limits(tested, 3) == [{"food": 10}] * 3


def test_subtasks_that_make_broadcast_state_diverge_are_detected() -> None:
    tested = harness()
    with pytest.raises(BroadcastDivergedError, match="3 different"):
        tested.process_broadcast(("by subtask", 1))
    assert limits(tested, 3) == [{}] * 3
    harness(parallelism=1).process_broadcast(("by subtask", 1))


def test_a_broadcast_record_has_no_key() -> None:
    tested = harness()
    tested.process(("ada", "food", 1))
    with pytest.raises(KeyscaleError):
        tested.process_broadcast(("reads keyed state", 1))


def test_an_undeclared_broadcast_state_is_refused() -> None:
    with pytest.raises(OperatorStateUnavailableError, match="unknown"):
        harness().process(("ada", "asks for what is unknown", 1))


def test_the_keyed_side_cannot_change_broadcast_state() -> None:
    class Changes(OverLimit):
        def process_element(self, row: Row, context: KeyedReadOnlyContext) -> Iterator[tuple[Any, ...]]:
            context.get_broadcast_state(LIMITS).put(row.category, 1)  # type: ignore[attr-defined]  # tested here
            yield from ()

    tested = OperatorHarness(
        Changes(), input=INPUT, key=["user"], output=RULES, broadcast=RULES, broadcast_states=[LIMITS]
    )
    with pytest.raises(UserFunctionError, match="AttributeError"):
        tested.process(("ada", "food", 1))


def test_a_harness_without_broadcast_columns_has_no_broadcast_stream() -> None:
    tested = OperatorHarness(OverLimit(), input=INPUT, key=["user"], output=RULES, broadcast_states=[LIMITS])
    with pytest.raises(InvalidTopologyError, match="broadcast="):
        tested.process_broadcast(("food", 1))


def stream_of(builder: TopologyBuilder, uid: str, columns: dict[str, Any]) -> DataStream:
    source = builder.add_source(cast("Any", None), pa.schema(list(columns.items())))
    return DataStream(cast("Any", None), builder, source, None).uid(uid)


def test_a_connected_operator_has_both_streams_as_its_inputs() -> None:
    builder = TopologyBuilder()
    rules = stream_of(builder, "rules", {"category": pa.string(), "limit": pa.int64()})
    amounts = stream_of(builder, "amounts", {"user": pa.string(), "amount": pa.int64()})
    over = (
        amounts.key_by("user")
        .connect(rules.broadcast(LIMITS))
        .process(OverLimit(), output=pa.schema([("user", pa.string())]))
        .uid("over")
    )
    over.sink_to(cast("Any", None)).uid("sink")
    topology = builder.build()
    (operator,) = topology.operators
    assert operator.inputs == (topology.sources[1].id, topology.sources[0].id)
    assert operator.broadcast_schema == topology.sources[0].schema
    assert [origin.name for origin in topology.origins(operator.input)] == ["amounts"]
    assert topology.consumers(topology.sources[0].id) == (operator,)


def test_streams_of_two_jobs_cannot_be_connected() -> None:
    keyed = stream_of(TopologyBuilder(), "amounts", {"user": pa.string()}).key_by("user")
    with pytest.raises(InvalidTopologyError, match="two environments"):
        keyed.connect(stream_of(TopologyBuilder(), "rules", {"category": pa.string()}).broadcast(LIMITS))


def test_a_broadcast_function_may_keep_operator_lists() -> None:
    class Counts(OverLimit):
        def open(self, context: RuntimeContext) -> None:
            super().open(context)
            self.own = context.get_operator_list_state(ListStateDescriptor("own", pa.int64()))

        def process_broadcast_element(self, row: Row, context: BroadcastContext) -> None:
            super().process_broadcast_element(row, context)
            self.own.add(self.subtask)

    tested = OperatorHarness(
        Counts(),
        input=INPUT,
        key=["user"],
        output=RULES,
        side_outputs=[SEEN],
        parallelism=2,
        broadcast=RULES,
        broadcast_states=[LIMITS],
    )
    tested.process_broadcast(("food", 1))
    descriptor = ListStateDescriptor("own", pa.int64())
    assert [tested.operator_state(subtask).list_state(descriptor).get() for subtask in (0, 1)] == [[0], [1]]


class Times(KeyedBroadcastProcessFunction):
    """Emits the watermark that each broadcast record sees; registers timers, which do nothing."""

    def process_element(self, row: Row, context: KeyedReadOnlyContext) -> None:
        context.timer_service().register_event_time_timer(row.amount)

    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> Iterator[tuple[Any, ...]]:
        if row.limit < 0:
            raise ValueError
        yield row.category, row.limit, context.current_watermark()


def test_a_broadcast_record_sees_the_watermark_and_a_function_without_timers_has_none() -> None:
    tested = OperatorHarness(
        Times(),
        input=INPUT,
        key=["user"],
        output={"category": "string", "limit": "bigint", "watermark": "bigint"},
        broadcast=RULES,
        parallelism=2,
    )
    tested.process(("ada", "pen", 5))
    tested.advance_watermark(7)
    assert tested.take_output() == []
    tested.process_broadcast(("pen", 1), ("ink", 2))
    assert sorted(tested.take_output()) == [("ink", 2, 7)] * 2 + [("pen", 1, 7)] * 2
    with pytest.raises(UserFunctionError, match="at broadcast record 2 of the batch, in subtask 0"):
        tested.process_broadcast(("pen", 1), ("ink", -2))
    assert [BroadcastProcess(each, ()).uses_timers for each in (Times(), OverLimit())] == [False, True]


def test_the_rows_of_a_broadcast_batch_are_sent_whole_up_to_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(table: pa.Table) -> Any:
        return SimpleNamespace(toArrow=lambda: table)

    table = pa.concat_tables(
        [pa.table({"category": ["pen"], "limit": [1]}), pa.table({"category": ["ink"], "limit": [2]})]
    )
    monkeypatch.setattr(broadcast_rows, "BYTES_MAX", table.nbytes)
    sent = broadcast_rows.collected(of(table))
    assert pa.Table.from_batches(broadcast_rows.from_stream(sent)) == table
    assert broadcast_rows.collected(of(table.slice(0, 0))) == b""
    assert list(broadcast_rows.from_stream(b"")) == []
    monkeypatch.setattr(broadcast_rows, "BYTES_MAX", table.nbytes - 1)
    with pytest.raises(BroadcastTooLargeError, match=f"has {table.nbytes} bytes; {table.nbytes - 1} are allowed"):
        broadcast_rows.collected(of(table))
    broadcast_rows.check_alike("uid", [])
    broadcast_rows.check_alike("uid", ["a", "a"])
    with pytest.raises(BroadcastDivergedError, match="operator 'uid' have 2 different broadcast states"):
        broadcast_rows.check_alike("uid", ["a", None, "a"])
