"""A job that fails on every record, with a message that quotes the record and a secret. Run by drivers under test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale import FileSink, KeyedProcessFunction, Secret, StreamEnvironment

if TYPE_CHECKING:
    from keyscale import ProcessContext, Row


class Refuse(KeyedProcessFunction):
    def __init__(self, database: Secret) -> None:
        self.database = database

    def process_element(self, record: Row, context: ProcessContext) -> list[Any]:  # noqa: ARG002 - not used
        message = f"{record.key} is refused by {self.database.reveal()}"
        raise ValueError(message)


env = StreamEnvironment.current()
records = env.stream(env.spark.readStream.schema("key string").json(env.parameters["input"])).key_by("key")
refused = records.process(Refuse(Secret("DATABASE")), output={"key": "string"}).uid("refuse")
refused.sink_to(FileSink(env.parameters["output"])).uid("files")
env.execute()
