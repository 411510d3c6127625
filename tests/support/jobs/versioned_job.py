"""A job that counts records per key and says which version of it did; the third one fails. Run by tests of upgrades.

With the parameter `tick_ms`, each key has a timer that fires so often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row, RuntimeContext

VERSION = 1
env = StreamEnvironment.current()
TICK_MS = int(env.parameters.get("tick_ms", "0"))


class Count(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - a count
        timers = context.timer_service()
        if TICK_MS and not self.count.value():
            timers.register_processing_time_timer(timers.current_processing_time() + TICK_MS)
        if VERSION == 3:
            message = "version 3 counts nothing"
            raise ValueError(message)
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield {"key": context.current_key, "count": count, "version": VERSION}

    def on_timer(self, timestamp: int, context: ProcessContext) -> None:
        context.timer_service().register_processing_time_timer(timestamp + TICK_MS)


records = env.stream(env.spark.readStream.schema("key string").json(env.parameters["input"])).key_by("key")
counts = records.process(Count(), output={"key": "string", "count": "bigint", "version": "bigint"}).uid("count")
counts.sink_to(FileSink(env.parameters["output"])).uid("files")
env.execute()
