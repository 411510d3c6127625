"""Counts each payment once, per account and minute.

A slow service checks each payment. Run by `./keyscale demo outage`. Payments come to a Kafka topic at least once, and
up to some minutes late; a late payment corrects the count of its minute. Parameters: `servers`, `topic`, `output` (a
directory), `service_ms` (how long the service takes for a payment), `sink_ms` (how long the sink takes for a payment).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from keyscale import (
    AggregateFunction,
    FileSink,
    KafkaSource,
    KeyedProcessFunction,
    StreamEnvironment,
    Ttl,
    TumblingWindows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from keyscale import ProcessContext, Row, SinkContext

MINUTE_MS = 60_000
LATENESS_MS = 60 * MINUTE_MS
PAYMENT = {"id": "string", "account": "string", "cents": "bigint", "at": "bigint"}


class CheckedByService(KeyedProcessFunction):
    """Waits for a service, which takes the same time for each payment."""

    def __init__(self, service_ms: float) -> None:
        self._service_s = service_ms / 1000

    def process_element(self, payment: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        time.sleep(self._service_s)
        yield {name: getattr(payment, name) for name in PAYMENT}


class Total(AggregateFunction):
    """Counts the payments of a window, and adds their amounts."""

    def create_accumulator(self) -> dict[str, int]:
        return {"payments": 0, "cents": 0}

    def add(self, value: Row, accumulator: dict[str, int]) -> dict[str, int]:
        return {"payments": accumulator["payments"] + 1, "cents": accumulator["cents"] + value.cents}

    def get_result(self, accumulator: dict[str, int]) -> dict[str, int]:
        return accumulator

    def merge(self, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        return {name: left[name] + right[name] for name in left}


class SlowFileSink(FileSink):
    """Takes a time for each row, as a slow system does."""

    reads_repeatedly: ClassVar[bool] = True

    def __init__(self, path: str, row_ms: float) -> None:
        super().__init__(path)
        self._row_s = row_ms / 1000

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        time.sleep(frame.count() * self._row_s)
        return super().prepare(frame, context)


def build(env: StreamEnvironment) -> None:
    """Declares the job."""
    parameters = env.parameters
    source = KafkaSource(parameters["servers"], parameters["topic"])
    columns = ", ".join(f"{name} {kind}" for name, kind in PAYMENT.items())
    records = env.read(source, max_records_per_batch=2000).selectExpr(
        f"from_json(CAST(value AS STRING), '{columns}') payment"
    )
    payments = env.stream(records.select("payment.*"))
    checked = (
        payments.key_by("id")
        .deduplicate(ttl=Ttl.days(1))
        .uid("unique")
        .key_by("id")
        .process(CheckedByService(float(parameters["service_ms"])), output=PAYMENT)
        .uid("checked")
        .with_timestamps("at", max_out_of_orderness_ms=5000)
    )
    sink_ms, path = float(parameters["sink_ms"]), f"{parameters['output']}/payments"
    checked.sink_to(SlowFileSink(path, sink_ms) if sink_ms else FileSink(path)).uid("payments-files")
    counts = (
        checked.key_by("account")
        .window(TumblingWindows(MINUTE_MS))
        .allowed_lateness(LATENESS_MS)
        .aggregate(
            Total(),
            accumulator=pa.struct([("payments", pa.int64()), ("cents", pa.int64())]),
            output={"payments": "bigint", "cents": "bigint"},
        )
        .uid("counts")
    )
    counts.sink_to(FileSink(f"{parameters['output']}/counts")).uid("counts-files")


if __name__ == "__main__":
    environment = StreamEnvironment.current()
    build(environment)
    environment.execute()
