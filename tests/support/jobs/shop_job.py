"""Counts a shop's orders of a topic: a table, totals of ten seconds, late orders, dead letters. Run by the soak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import (
    AggregateFunction,
    FileSink,
    KafkaSource,
    KeyedProcessFunction,
    OutputTag,
    PostgresSink,
    Secret,
    StreamEnvironment,
    TumblingWindows,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row, RuntimeContext

ORDER = pa.schema(
    [("id", pa.string()), ("shop", pa.string()), ("cents", pa.int64()), ("at", pa.int64()), ("place", pa.string())]
)
LATE = OutputTag("late", ORDER)


class Number(KeyedProcessFunction):
    """Emits each order with its number in its shop: an order that is lost or counted twice shows.

    An order without a price becomes a dead letter, and has no number.
    """

    def open(self, context: RuntimeContext) -> None:
        self.number = context.get_state(ValueStateDescriptor("number", pa.int64()))
        self.numbered = context.metrics.counter("numbered", "Orders with a number.", labels=["shop"])

    def process_element(self, order: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        self.numbered.labels(shop=context.current_key).inc()
        if order.cents < 0:
            raise ValueError(f"the order {order.id} has no price")
        number = (self.number.value() or 0) + 1
        self.number.update(number)
        yield {"shop": context.current_key, "id": order.id, "number": number, "place": order.place}


class Total(AggregateFunction):
    """Counts the orders of a window, and adds their prices."""

    def create_accumulator(self) -> dict[str, int]:
        return {"orders": 0, "cents": 0}

    def add(self, value: Row, accumulator: dict[str, int]) -> dict[str, int]:
        return {"orders": accumulator["orders"] + 1, "cents": accumulator["cents"] + value.cents}

    def get_result(self, accumulator: dict[str, int]) -> dict[str, int]:
        return accumulator

    def merge(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        return {name: left[name] + right[name] for name in left}


env = StreamEnvironment.current()
output = env.parameters["output"]
source = KafkaSource(env.parameters["servers"], env.parameters["topic"])
records = env.read(source, max_records_per_batch=int(env.parameters["max_records_per_batch"])).selectExpr(
    "from_json(CAST(value AS STRING), 'id string, shop string, cents bigint, at bigint') e",
    "concat(topic, '/', partition, '/', offset) place",
)
orders = env.stream(records.select("e.*", "place"), timestamp="at", max_out_of_orderness_ms=5000)
unique = orders.key_by("id").deduplicate().uid("unique")
numbered = (
    unique.key_by("shop")
    .process(
        Number(),
        output={"shop": "string", "id": "string", "number": "bigint", "place": "string"},
        dead_letters=True,
    )
    .uid("numbers")
)
numbered.sink_to(PostgresSink(Secret("COUNTS"), "orders")).uid("table")
numbered.get_dead_letters().sink_to(FileSink(f"{output}/dead", format="json")).uid("dead")
totals = (
    unique.key_by("shop")
    .window(TumblingWindows(10_000))
    .side_output_late_data(LATE)
    .aggregate(
        Total(),
        accumulator=pa.struct([("orders", pa.int64()), ("cents", pa.int64())]),
        output={"orders": "bigint", "cents": "bigint"},
    )
    .uid("totals")
)
totals.sink_to(FileSink(f"{output}/totals")).uid("totals-file")
totals.get_side_output(LATE).sink_to(FileSink(f"{output}/late", format="json")).uid("late-file")
env.execute()
