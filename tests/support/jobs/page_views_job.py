"""Counts the views of each page, fails on a broken page, and says which version of the program did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, FixedDelayRestart, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator


class Count(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, view: Any, context: Any) -> Iterator[dict[str, Any]]:
        if view.page == "/broken":
            raise ValueError("no such page: " + view.page)
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield {"page": context.current_key, "seen": seen, "version": VERSION}


VERSION = 1
env = StreamEnvironment.current()
env.set_restart_strategy(FixedDelayRestart(attempts=2, delay_ms=100))
views = env.stream(env.spark.readStream.schema("page string").json(env.parameters["input"]))
output = {"page": "string", "seen": "bigint", "version": "int"}
counts = views.key_by("page").process(Count(), output=output).uid("views-by-page")
counts.sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
env.execute()
