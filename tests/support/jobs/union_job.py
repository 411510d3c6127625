"""A job that numbers the records of several sources by key, and emits their times when all sources are beyond them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import DataStream, OnTimerContext, ProcessContext, Row, RuntimeContext


class Numbered(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[tuple[Any, ...]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        context.timer_service().register_event_time_timer(record.at)
        yield context.current_key, record.nonce, count, None

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[tuple[Any, ...]]:
        yield context.current_key, None, None, timestamp


env = StreamEnvironment.current()


def source(uid: str) -> DataStream:
    reader = env.spark.readStream.schema("key string, at bigint, nonce string").option("maxFilesPerTrigger", 1)
    return env.stream(reader.json(f"{env.parameters['input']}/{uid}"), timestamp="at").uid(uid)


first, *others = [source(uid) for uid in env.parameters["sources"].split(",")]
records = first.union(*others) if others else first
numbered = (
    records.where("key is not null")
    .key_by("key")
    .process(Numbered(), output={"key": "string", "nonce": "string", "count": "bigint", "fired": "bigint"})
    .uid("numbered")
)
numbered.sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
env.execute()
