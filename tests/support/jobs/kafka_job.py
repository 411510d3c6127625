"""Counts the distinct page views of a topic by page, into files, a table and another topic. Run by test drivers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import (
    FileSink,
    KafkaSink,
    KafkaSource,
    KeyedProcessFunction,
    PostgresSink,
    Secret,
    StreamEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row, RuntimeContext


class Count(KeyedProcessFunction):
    """Emits each view with its number on its page: a view that is lost or counted twice shows.

    Its state holds a hash over the page's views in their order, too.
    """

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))
        self.chain = context.get_state(ValueStateDescriptor("chain", pa.string()))

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.chain.update(hashlib.sha256(f"{self.chain.value()} {record.id}".encode()).hexdigest())
        yield {"page": context.current_key, "id": record.id, "count": count}


env = StreamEnvironment.current()
source = KafkaSource(env.parameters["servers"], env.parameters["topic"])
records = env.read(source, max_records_per_batch=int(env.parameters["max_records_per_batch"]))
events = env.stream(records.selectExpr("from_json(CAST(value AS STRING), 'id string, page string') e").select("e.*"))
unique = events.key_by("id").deduplicate().uid("unique")
counts = (
    unique.key_by("page").process(Count(), output={"page": "string", "id": "string", "count": "bigint"}).uid("count")
)
counts.sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
counts.sink_to(PostgresSink(Secret("COUNTS"), "counts")).uid("table")
counts.transform(lambda frame: frame.selectExpr("page AS key", "to_json(struct(*)) AS value")).sink_to(
    KafkaSink(env.parameters["servers"], env.parameters["counts_topic"], staging=env.parameters["staging"])
).uid("topic")
env.execute()
