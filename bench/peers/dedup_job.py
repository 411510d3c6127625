"""The deduplication job as users write it, in both forms.

The benchmark's driver runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, Ttl, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row, RuntimeContext

SCHEMA = "id string, ts_ms long, payload string"


class FirstOfKey(KeyedProcessFunction):
    """Passes a key's first row."""

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", pa.bool_()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:  # noqa: ARG002 - the function's signature
        if self.seen.value() is None:
            self.seen.update(True)
            yield row


def main() -> None:
    """Declares the job and runs it until it is stopped."""
    env = StreamEnvironment.current()
    files = env.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", env.parameters["files_per_batch"])
    keyed = env.stream(files.parquet(env.parameters["input"])).key_by("id")
    by_record = env.parameters["form"] == "process_element"
    ttl = Ttl.hours(float(env.parameters["ttl_hours"])) if "ttl_hours" in env.parameters else None
    kept = keyed.process(FirstOfKey(), output=SCHEMA) if by_record else keyed.deduplicate(ttl=ttl)
    kept.uid("first-of-key").sink_to(FileSink(env.parameters["output"])).uid("files")
    env.execute()


if __name__ == "__main__":
    main()
