"""The timers benchmark's job as a user of Keyscale writes it.

It emits each record again when its timer is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import OnTimerContext, ProcessContext, Row


class Reminder(KeyedProcessFunction):
    """Calls back by the clock, once for every record."""

    def process_element(self, record: Row, context: ProcessContext) -> None:
        context.timer_service().register_processing_time_timer(record.due_ms)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Any]:
        yield context.current_key, timestamp


def main() -> None:
    """Declares the job and runs it until it is stopped."""
    env = StreamEnvironment.current()
    records = env.spark.readStream.schema("id long, due_ms long").json(env.parameters["input"])
    reminded = env.stream(records).key_by("id").process(Reminder(), output={"id": "bigint", "due_ms": "bigint"})
    reminded.uid("reminder").sink_to(FileSink(env.parameters["output"])).uid("files")
    env.execute()


if __name__ == "__main__":
    main()
