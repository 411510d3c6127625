"""A job that is ill as its parameters say, on a source that emits records at a rate. Run by drivers under test."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, ForeachBatchSink, KeyedProcessFunction, Source, StreamEnvironment, limited

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from keyscale import ProcessContext, Row, RuntimeContext
    from keyscale.jobs.sinks.sink import SinkContext


class Ticks(Source):
    """Emits so many records per second since a time; of ten records, some have one key."""

    schema = pa.schema([("key", pa.int64()), ("number", pa.int64())])

    def __init__(self, rate: int, since_ms: int, hot: int) -> None:
        self.rate, self.since_ms, self.hot = rate, since_ms, hot

    def discover(self, known: Mapping[str, Any]) -> dict[str, int]:
        return {} if known else {"ticks": 0}

    def latest(self, positions: Mapping[str, Any], limit: int | None) -> Any:
        passed_ms = max(0, time.time_ns() // 1_000_000 - self.since_ms)
        return limited(positions, {"ticks": passed_ms * self.rate // 1000}, limit)

    def read(self, split: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - the only split
        rows = [{"key": -1 if n % 10 < self.hot else n % 1009, "number": n} for n in range(start, end)]
        yield pa.RecordBatch.from_pylist(rows, self.schema)


class Work(KeyedProcessFunction):
    """Takes some time for each record, raises an exception, or hangs in C with Python's lock.

    It waits in all subtasks or in the first one only, and may compute instead.
    """

    def __init__(self, seconds: float, cpu_s: float, *, is_skewed: bool, raises: bool, hangs: bool) -> None:
        self.seconds, self.cpu_s, self.is_skewed = seconds, cpu_s, is_skewed
        self.raises, self.hangs = raises, hangs

    def open(self, context: RuntimeContext) -> None:
        if self.is_skewed and context.subtask_index:
            self.seconds = 0.0

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        if self.raises:
            raise ValueError("no record is good enough")
        if self.hangs:
            re.match("(a+)+$", "a" * 60 + "b")
        if self.seconds:
            time.sleep(self.seconds)
        computed_s = time.thread_time() + self.cpu_s
        while self.cpu_s and time.thread_time() < computed_s:
            pass
        yield {"number": record.number}


env = StreamEnvironment.current()
given = env.parameters


def slow(frame: DataFrame, context: SinkContext) -> None:  # noqa: ARG001 - the signature of a sink's function
    frame.count()
    time.sleep(float(given["sink_s"]))


ticks = Ticks(int(given["rate"]), int(given["since_ms"]), int(given.get("hot", "0")))
records = env.stream(env.read(ticks, max_records_per_batch=int(given["batch"]))).key_by("key")
work = Work(
    float(given.get("record_s", "0")),
    float(given.get("cpu_s", "0")),
    is_skewed=given.get("is_skewed") == "yes",
    raises=given.get("raises") == "yes",
    hangs=given.get("hangs") == "yes",
)
done = records.process(work, output={"number": "bigint"}).uid("work")
done.sink_to(ForeachBatchSink(slow) if "sink_s" in given else FileSink(given["output"])).uid("table")
env.execute()
