"""A job whose function and whose PostgreSQL sink both have dead letters. Run by test drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, PostgresSink, StreamEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64())])


class Checked(KeyedProcessFunction):
    """Lets records with an amount through, and fails on others."""

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:  # noqa: ARG002 - not needed
        if row.amount is None:
            raise ValueError(f"{row.id} has no amount")
        yield row


env = StreamEnvironment.current()
output, database = env.parameters["output"], env.parameters["database"]
source = env.spark.readStream.schema("id bigint, amount bigint").option("maxFilesPerTrigger", 1)
orders = env.stream(source.json(env.parameters["input"]))
checked = orders.key_by("id").process(Checked(), output=SCHEMA, dead_letters=True).uid("checked")
checked.get_dead_letters().sink_to(FileSink(f"{output}/failed", format="json")).uid("failed")
refused = FileSink(f"{output}/refused", format="json")
checked.sink_to(PostgresSink(database, "orders", dead_letters=refused)).uid("table")
env.execute()
