"""Counts the records of each key into a table and a topic. Run by drivers under test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import KafkaSink, KeyedProcessFunction, PostgresSink, Secret, StreamEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row, RuntimeContext


class Count(KeyedProcessFunction):
    """Emits each record with its number within its key: one that is lost or counted twice shows."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield {"key": context.current_key, "id": record.id, "count": count}


env = StreamEnvironment.current()
source = env.spark.readStream.schema("key string, id bigint").option("maxFilesPerTrigger", 1)
counts = (
    env.stream(source.json(env.parameters["input"]))
    .key_by("key")
    .process(Count(), output={"key": "string", "id": "bigint", "count": "bigint"})
    .uid("count")
)
counts.sink_to(PostgresSink(Secret("COUNTS"), "counts")).uid("table")
counts.transform(lambda frame: frame.selectExpr("to_json(struct(*)) AS value")).sink_to(
    KafkaSink(env.parameters["servers"], env.parameters["topic"], staging=env.parameters["staging"])
).uid("topic")
env.execute()
