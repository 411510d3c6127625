"""One function processes the records of two streams, with shared state per key, at any parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale import DataStream, KeyedCoProcessFunction, ListStateDescriptor, ValueStateDescriptor
from keyscale.identifiers import Attempt, JobId, OperatorUid
from keyscale.jobs.errors import InvalidKeyError, InvalidTopologyError, UserFunctionError
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.operator_contract import KEY_GROUP_COLUMN, SubtaskProgress, run_subtask
from keyscale.jobs.operators.two_inputs import packed_batch, unpacked
from keyscale.jobs.runtime.batch.runner import RunInfo, subtask_specs
from keyscale.jobs.runtime.batch.watermarks import batch_times, time_after
from keyscale.jobs.runtime.executor.task import subtask_info
from keyscale.jobs.testing.harness import OperatorHarness, SecondStream
from keyscale.state.documents.job_time import JobTime
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from keyscale import OnTimerContext, ProcessContext, Row, RuntimeContext

ORDERS = {"order": "string", "item": "string", "at": "bigint"}
PAYMENTS = {"paid_for": "string", "amount": "bigint", "paid_at": "bigint"}
OUTPUT = {"order": "string", "item": "string", "amount": "bigint"}


class Paid(KeyedCoProcessFunction):
    """Joins each order with its payment, in any order. An order not paid in time is emitted without one."""

    def open(self, context: RuntimeContext) -> None:
        self.items = context.get_list_state(ListStateDescriptor("items", pa.string()))
        self.amount = context.get_state(ValueStateDescriptor("amount", pa.int64()))

    def process_element1(self, row: Row, context: ProcessContext) -> Iterator[tuple[Any, ...]]:
        if row.item == "fails":
            raise ValueError
        amount = self.amount.value()
        if amount is not None:
            yield context.current_key, row.item, amount
        else:
            self.items.add(row.item)
            context.timer_service().register_event_time_timer((context.timestamp or 0) + 100)

    def process_element2(self, row: Row, context: ProcessContext) -> Iterator[tuple[Any, ...]]:
        self.amount.update(row.amount)
        for item in self.items.get():
            yield context.current_key, item, row.amount
        self.items.clear()

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002 - not used
        for item in self.items.get():
            yield context.current_key, item, None
        self.items.clear()


def harness(parallelism: int = 2) -> OperatorHarness:
    return OperatorHarness(
        Paid(),
        input=ORDERS,
        key=["order"],
        output=OUTPUT,
        timestamp="at",
        parallelism=parallelism,
        second=SecondStream(PAYMENTS, ["paid_for"], "paid_at"),
    )


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_records_of_a_key_meet_whichever_stream_is_first(parallelism: int) -> None:
    tested = harness()
    tested.process(*((f"o{number}", "book", 1) for number in range(10)))
    tested = tested.restored(tested.snapshot(), parallelism=parallelism)
    tested.process_second(*((f"o{number}", number, 2) for number in range(5, 15)))
    assert sorted(tested.take_output()) == [(f"o{number}", "book", number) for number in range(5, 10)]
    tested.process(("o14", "pen", 3))
    assert tested.take_output() == [("o14", "pen", 14)]


def test_both_streams_share_timers_and_the_keys_state() -> None:
    tested = harness()
    tested.process(("o1", "book", 1), ("o2", "book", 1))
    tested.process_second(("o1", 7, 2))
    tested.take_output()
    tested.advance_watermark(101)
    assert tested.take_output() == [("o2", "book", None)]


def test_a_failed_batch_changes_nothing() -> None:
    tested = harness()
    with pytest.raises(UserFunctionError):
        tested.process(("o1", "book", 1), ("o1", "fails", 1))
    tested.process_second(("o1", 7, 2))
    assert tested.take_output() == []


def test_keys_of_different_types_are_refused() -> None:
    with pytest.raises(InvalidKeyError, match=r"\(string\) and \(int64\)"):
        OperatorHarness(Paid(), input=ORDERS, key=["order"], output=OUTPUT, second=SecondStream(PAYMENTS, ["amount"]))


class Stamps(KeyedCoProcessFunction):
    """Emits the time of each record, with its stream."""

    def process_element1(self, row: Row, context: ProcessContext) -> Iterator[tuple[Any, ...]]:
        yield row.order, "first", context.timestamp

    def process_element2(self, row: Row, context: ProcessContext) -> Iterator[tuple[Any, ...]]:
        yield row.paid_for, "second", context.timestamp


@pytest.mark.parametrize(("timestamp", "seen"), [("paid_at", 70), (None, None)])
def test_a_record_has_the_time_of_its_own_stream(timestamp: str | None, seen: int | None) -> None:
    second = SecondStream(PAYMENTS, ["paid_for"], timestamp)
    tested = OperatorHarness(Stamps(), input=ORDERS, key=["order"], output=OUTPUT, timestamp="at", second=second)
    tested.process(("1", "pen", 50))
    tested.process_second(("2", 9, 70))
    assert tested.take_output() == [("1", "first", 50), ("2", "second", seen)]


def test_a_harness_without_a_second_stream_says_so() -> None:
    plain = OperatorHarness(Deduplicate(None), input=ORDERS, key=["order"], output=ORDERS)
    with pytest.raises(InvalidTopologyError, match="second="):
        plain.process_second(("o1", 1, 1))


def test_packed_records_of_two_inputs_are_unpacked_by_input() -> None:
    first = pa.record_batch({"order": ["a", None], KEY_GROUP_COLUMN: pa.array([1, 2], pa.int32())})
    second = pa.record_batch({"paid_for": ["b"], "amount": [None], KEY_GROUP_COLUMN: pa.array([3], pa.int32())})
    together = pa.concat_tables(
        [pa.Table.from_batches([packed_batch(first, 0)]), pa.Table.from_batches([packed_batch(second, 1)])],
        promote_options="default",
    )
    (batch,) = together.combine_chunks().to_batches()
    parts = unpacked(batch)
    assert [(port, part.to_pylist()) for port, part in parts] == [(0, first.to_pylist()), (1, second.to_pylist())]
    assert unpacked(batch.slice(0, 1))[0][1].to_pylist() == first.to_pylist()[:1]


def connected() -> tuple[TopologyBuilder, DataStream]:
    builder = TopologyBuilder()

    def stream(uid: str, columns: dict[str, Any], timestamp: str, bound_ms: int, ahead_ms: int) -> DataStream:
        source = builder.add_source(cast("Any", None), pa.schema(list(columns.items())))
        made = DataStream(cast("Any", None), builder, source, None).uid(uid)
        return made.with_timestamps(timestamp, max_out_of_orderness_ms=bound_ms, max_ahead_ms=ahead_ms)

    orders = stream("orders", {"order": pa.string(), "item": pa.string(), "at": pa.int64()}, "at", 0, 1000)
    of_payments = {"paid_for": pa.string(), "amount": pa.int64(), "paid_at": pa.int64()}
    payments = stream("payments", of_payments, "paid_at", 5, 2000)
    output = pa.schema([("order", pa.string())])
    paid = orders.key_by("order").connect(payments.key_by("paid_for")).process(Paid(), output=output).uid("paid")
    paid.sink_to(cast("Any", None)).uid("sink")
    return builder, paid


def test_the_watermark_is_the_lower_one_of_both_streams() -> None:
    topology = connected()[0].build()
    (operator,) = topology.operators
    assert [arrival.name for arrival in topology.arrivals(operator)] == ["orders", "second:payments"]
    uid, time = OperatorUid("paid"), JobTime()
    for latest, expected in (
        ({"orders": 100}, None),
        ({"second:payments": 50}, 44),
        ({"second:payments": 500}, 99),
    ):
        times = batch_times(topology, time, 0)
        time = time_after(time, times, {uid: max(latest.values())}, of_spark=True, of_origins={uid: latest})
        assert batch_times(topology, time, 0)[uid].timers_ms == expected


def test_both_streams_are_inputs_of_the_operator() -> None:
    topology = connected()[0].build()
    (operator,) = topology.operators
    assert operator.second is not None
    assert operator.inputs == (operator.input, operator.second.node)
    assert operator.second.key_columns == ("paid_for",)


@pytest.mark.parametrize(("port", "limit_ms"), [(0, 1000), (1, 2000)])
def test_each_stream_has_its_own_limit_for_times_ahead_of_the_clock(tmp_path: Path, port: int, limit_ms: int) -> None:
    (operator,) = connected()[0].build().operators
    run = RunInfo(JobId("job"), Attempt(1), KeyGroupRanges.of_count(8, 1), HashId.SPARK, tmp_path.as_uri(), tmp_path)
    (spec,) = subtask_specs(operator, run)
    state = KeyedStateBackend(HeapEngine(), operator.key_schema, BatchClock(processing_time_ms=500))
    reached_ms = 500 + limit_ms
    records = pa.record_batch(
        {
            **({"paid_for": ["a", "b"], "amount": [1, 2]} if port else {"order": ["a", "b"], "item": ["pen", "book"]}),
            "paid_at" if port else "at": [reached_ms, reached_ms + 1],
            KEY_GROUP_COLUMN: pa.array([0, 1], pa.int32()),
        }
    )
    progress = SubtaskProgress()
    list(
        run_subtask(
            operator.logic, state, subtask_info(operator, spec), [packed_batch(records, port)], progress=progress
        )
    )
    assert (progress.latest_event_ms, progress.ahead_records) == (reached_ms, 1)
