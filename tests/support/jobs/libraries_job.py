"""Counts words of Spark's own Kafka source with a compiled wheel, a helper module and a jar, which the job brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from counting_words import spelled

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row, RuntimeContext


class Count(KeyedProcessFunction):
    """Emits each word with its count: spelled by the helper, and written by the wheel, in the workers."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, _: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield {"json": orjson.dumps({"word": spelled(context.current_key), "count": count}).decode()}


env = StreamEnvironment.current()
records = (
    env.spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", env.parameters["servers"])
    .option("subscribe", env.parameters["topic"])
    .option("startingOffsets", "earliest")
    .load()
)
# A class of the jar, in the JVMs of the executors.
words = records.selectExpr(
    "reflect('org.jsoup.parser.Parser', 'unescapeEntities', CAST(value AS STRING), false) AS word"
)
counts = env.stream(words).key_by("word").process(Count(), output={"json": "string"}).uid("count")
counts.sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
env.execute()
