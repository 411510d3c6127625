"""A job that counts records per key and says which version of it did; the third one fails. Run by tests of upgrades."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row, RuntimeContext

VERSION = 1


class Count(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - a count
        if VERSION == 3:
            message = "version 3 counts nothing"
            raise ValueError(message)
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield {"key": context.current_key, "count": count, "version": VERSION}


env = StreamEnvironment.current()
records = env.stream(env.spark.readStream.schema("key string").json(env.parameters["input"])).key_by("key")
counts = records.process(Count(), output={"key": "string", "count": "bigint", "version": "bigint"}).uid("count")
counts.sink_to(FileSink(env.parameters["output"])).uid("files")
env.execute()
