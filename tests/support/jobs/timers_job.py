"""A job that emits only what its timers say, and its large records to a side output. Run by drivers under test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, OutputTag, StreamEnvironment, TimeDomain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import OnTimerContext, ProcessContext, Row

DELAY_MS = 100
LARGE = OutputTag("large", pa.schema([("key", pa.string()), ("at", pa.int64())]))


class Reminder(KeyedProcessFunction):
    """Calls back once for every record: by the clock for keys that are named so, by the watermark for others."""

    def process_element(self, record: Row, context: ProcessContext) -> None:
        timers = context.timer_service()
        if record.key.startswith("clock"):
            timers.register_processing_time_timer(timers.current_processing_time() + DELAY_MS)
        else:
            timers.register_event_time_timer(record.at + DELAY_MS)
        if record.at > 500:
            context.output(LARGE, record)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Any]:
        yield context.current_key, timestamp if context.time_domain is TimeDomain.EVENT else None


env = StreamEnvironment.current()
files = env.parameters.get("files_per_batch", "1")
source = env.spark.readStream.schema("key string, at bigint").option("maxFilesPerTrigger", files)
records = env.stream(source.json(env.parameters["input"]), timestamp="at")
reminders = (
    records.key_by("key")
    .process(Reminder(), output={"key": "string", "fired": "bigint"}, side_outputs=[LARGE])
    .uid("reminder")
)
reminders.sink_to(FileSink(env.parameters["output"] + "/fired", format="json")).uid("fired")
reminders.get_side_output(LARGE).sink_to(FileSink(env.parameters["output"] + "/large", format="json")).uid("large")
env.execute()
