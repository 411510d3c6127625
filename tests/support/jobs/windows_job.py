"""A job with dead letters, windows with late records, and a StatefulProcessor with timers. Run by test drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyscale import AggregateFunction, FileSink, KeyedProcessFunction, OutputTag, StreamEnvironment, TumblingWindows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
LATE = OutputTag("late", SCHEMA)


class Checked(KeyedProcessFunction):
    """Lets records through whose amount is positive, and fails on others."""

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:  # noqa: ARG002 - not needed
        if row.amount < 0:
            raise ValueError
        yield row


class Total(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Row, accumulator: int) -> int:
        return accumulator + int(value.amount)

    def get_result(self, accumulator: int) -> tuple[int]:
        return (accumulator,)

    def merge(self, left: int, right: int) -> int:
        return left + right


class Reminders(StatefulProcessor):
    """Counts a key's records, and says how many there were when each is 100 ms old."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803 - Spark's name
        count = (self.count.get() or (0,))[0]
        for row in rows:
            count += 1
            self.handle.registerTimer(row.at + 100)
        self.count.update((count,))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803 - as above
        yield SparkRow(key=key[0], at=expiredTimerInfo.getExpiryTimeInMs(), count=self.count.get()[0])


env = StreamEnvironment.current()
output = env.parameters["output"]
source = env.spark.readStream.schema("key string, at bigint, amount bigint").option("maxFilesPerTrigger", 1)
records = env.stream(source.json(env.parameters["input"]), timestamp="at")
checked = records.key_by("key").process(Checked(), output=SCHEMA, dead_letters=True).uid("checked")
checked.get_dead_letters().sink_to(FileSink(f"{output}/dead", format="json")).uid("dead-file")
timed = checked.with_timestamps("at").key_by("key")
windows = (
    timed.window(TumblingWindows(100))
    .allowed_lateness(1000)
    .side_output_late_data(LATE)
    .aggregate(Total(), accumulator=pa.int64(), output={"total": "bigint"})
    .uid("windows")
)
windows.sink_to(FileSink(f"{output}/windows", format="json")).uid("windows-file")
windows.get_side_output(LATE).sink_to(FileSink(f"{output}/late", format="json")).uid("late-file")
reminders = timed.transform_with_state(Reminders(), "key string, at bigint, count bigint", time_mode="EventTime")
reminders.uid("reminders").sink_to(FileSink(f"{output}/reminders", format="json")).uid("reminders-file")
env.execute()
