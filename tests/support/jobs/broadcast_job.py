"""A job that puts the newest broadcast limit beside each event, and reports its subtasks' lists. For test drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedBroadcastProcessFunction, ListStateDescriptor, MapStateDescriptor, StreamEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import BroadcastContext, DataStream, KeyedReadOnlyContext, Row, RuntimeContext

LIMITS = MapStateDescriptor("limits", pa.string(), pa.int64())


class Limited(KeyedBroadcastProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.nonces = context.get_operator_list_state(ListStateDescriptor("nonces", pa.string()))

    def process_element(self, row: Row, context: KeyedReadOnlyContext) -> Iterator[tuple[Any, ...]]:
        self.nonces.add(row.nonce)
        yield row.nonce, context.get_broadcast_state(LIMITS).get("limit"), False

    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> Iterator[tuple[Any, ...]]:
        context.get_broadcast_state(LIMITS).put(row.name, row.value)
        if row.name == "report":
            yield from ((nonce, None, True) for nonce in self.nonces.get())


env = StreamEnvironment.current()


def source(uid: str, schema: str) -> DataStream:
    reader = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return env.stream(reader.json(f"{env.parameters['input']}/{uid}")).uid(uid)


rules = source("rules", "name string, value bigint").where("value > 0").broadcast(LIMITS)
limited = (
    source("events", "key string, nonce string")
    .key_by("key")
    .connect(rules)
    .process(Limited(), output={"nonce": "string", "limit": "bigint", "reported": "boolean"})
    .uid("limited")
)
limited.sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
env.execute()
