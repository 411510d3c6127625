"""Counts the records of each key into a sink of every kind at once. Run by tests of forks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from keyscale import (
    FileSink,
    ForeachBatchSink,
    KafkaSink,
    KeyedProcessFunction,
    PostgresSink,
    Secret,
    StreamEnvironment,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from keyscale import ProcessContext, Row, RuntimeContext, SinkContext

DATABASE = Secret("COUNTS")


class Count(KeyedProcessFunction):
    """Emits each record with its number within its key: one that is lost or counted twice shows."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield {"key": context.current_key, "id": record.id, "count": count}


def write(frame: DataFrame, context: SinkContext) -> None:
    """Replaces the rows of this and later batches of this job, in one transaction, as the guide to sinks has it."""
    sink = (context.job_id, context.uid)
    rows = [(*sink, context.batch_id, row["key"], row["id"], row["count"]) for row in frame.collect()]
    with psycopg.connect(DATABASE.reveal()) as database, database.cursor() as cursor:
        cursor.execute("INSERT INTO done VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", sink)
        cursor.execute("SELECT attempt FROM done WHERE job = %s AND uid = %s FOR UPDATE", sink)
        last = cursor.fetchone()
        if last is not None and last[0] > context.attempt:
            message = "a newer attempt has taken over"
            raise RuntimeError(message)
        cursor.execute("DELETE FROM written WHERE job = %s AND uid = %s AND batch >= %s", (*sink, context.batch_id))
        cursor.executemany("INSERT INTO written VALUES (%s, %s, %s, %s, %s, %s)", rows)
        cursor.execute("UPDATE done SET attempt = %s WHERE job = %s AND uid = %s", (context.attempt, *sink))


env = StreamEnvironment.current()
counts = (
    env.stream(env.spark.readStream.schema("key string, id bigint").json(env.parameters["input"]))
    .key_by("key")
    .process(Count(), output={"key": "string", "id": "bigint", "count": "bigint"})
    .uid("count")
)
counts.sink_to(ForeachBatchSink(write)).uid("function")
counts.sink_to(FileSink(env.parameters["output"])).uid("files")
counts.sink_to(PostgresSink(DATABASE, env.parameters["table"])).uid("table")
counts.transform(lambda frame: frame.selectExpr("key", "to_json(struct(*)) AS value")).sink_to(
    KafkaSink(env.parameters["servers"], env.parameters["topic"], staging=env.parameters["staging"])
).uid("topic")
env.execute()
