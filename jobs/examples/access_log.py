"""Statistics of a web server's access log.

Results are page views per hour, top pages, error alerts, sessions and user traffic.

The log is delivered at least once; duplicates are dropped first. Each result has its own sink, `<output>/<result>/`.
Parameters: `input` (a directory of JSON-lines files; new files are read as they appear), `output` (a directory),
`out_of_order_ms` (how much older than an earlier request a request may be; 5000 by default).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyscale import (
    FileSink,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamEnvironment,
    Ttl,
    TumblingWindows,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from keyscale import DataStream, KeyedBatch, OnTimerContext, ProcessContext, Row, RuntimeContext

REQUEST_COLUMNS = {
    "request_id": "string",  # the same in every delivery of a request
    "at": "bigint",  # milliseconds since the epoch
    "user": "string",
    "page": "string",
    "status": "int",
    "bytes": "bigint",
}
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
TOP_PAGES = 3
SESSION_GAP_MS = 600_000
ERROR_STATUS = 500
ALERT_REQUESTS_MIN = 3
ALERT_ERROR_RATIO = 0.5


class Count:
    """Counts records."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, _: Row, accumulator: int, /) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int, /) -> dict[str, int]:
        return {"views": accumulator}

    def merge(self, left: int, right: int, /) -> int:
        return left + right


class TopPages(KeyedProcessFunction):
    """Emits the most viewed pages of an hour.

    All counts of an hour arrive in one batch, when the hour is complete.
    """

    def open(self, context: RuntimeContext) -> None:
        self.views = context.get_map_state(MapStateDescriptor("views", pa.string(), pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> None:
        self.views.put(row.page, row.views)
        context.timer_service().register_event_time_timer(context.current_key - 1)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - not used
        ranked = sorted(self.views.items(), key=lambda entry: (-entry[1], entry[0]))
        for rank, (page, views) in enumerate(ranked[:TOP_PAGES], 1):
            yield {"window_end": context.current_key, "rank": rank, "page": page, "views": views}
        self.views.clear()


class ErrorAlerts(KeyedProcessFunction):
    """Alerts if too many requests of a page failed in a minute."""

    def open(self, context: RuntimeContext) -> None:
        counts = pa.struct([("requests", pa.int64()), ("errors", pa.int64())])
        self.minutes = context.get_map_state(MapStateDescriptor("minutes", pa.int64(), counts))

    def process_element(self, row: Row, context: ProcessContext) -> None:
        minute = row.at - row.at % MINUTE_MS
        counts = self.minutes.get(minute) or {"requests": 0, "errors": 0}
        errors = counts["errors"] + (row.status >= ERROR_STATUS)
        self.minutes.put(minute, {"requests": counts["requests"] + 1, "errors": errors})
        context.timer_service().register_event_time_timer(minute + MINUTE_MS - 1)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[dict[str, Any]]:
        minute = timestamp + 1 - MINUTE_MS
        counts = self.minutes.get(minute) or {"requests": 0, "errors": 0}
        self.minutes.remove(minute)
        if counts["requests"] >= ALERT_REQUESTS_MIN and counts["errors"] >= counts["requests"] * ALERT_ERROR_RATIO:
            yield {"page": context.current_key, "minute": minute, **counts}


class Sessions(KeyedProcessFunction):
    """Emits the pages of each user session when the session has ended.

    Pages are in order of time.
    """

    def open(self, context: RuntimeContext) -> None:
        visit = pa.struct([("at", pa.int64()), ("page", pa.string())])
        self.visits = context.get_list_state(ListStateDescriptor("visits", visit))

    def process_element(self, row: Row, context: ProcessContext) -> None:
        self.visits.add({"at": row.at, "page": row.page})
        context.timer_service().register_event_time_timer(row.at + SESSION_GAP_MS)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[dict[str, Any]]:
        visits = sorted(self.visits.get(), key=lambda visit: (visit["at"], visit["page"]))
        ended_at = timestamp - SESSION_GAP_MS
        if any(ended_at < visit["at"] <= timestamp for visit in visits):
            return  # the session continues; a later timer ends it
        session = [visit for visit in visits if visit["at"] <= ended_at]
        if session:
            pages = " ".join(visit["page"] for visit in session)
            yield {"user": context.current_key, "began": session[0]["at"], "ended": ended_at, "pages": pages}
        self.visits.update([visit for visit in visits if visit["at"] > ended_at])


class Traffic(KeyedBatchFunction):
    """Counts requests and bytes per user on whole Arrow batches.

    This is the fast path. Emits one row per user and batch.
    """

    def open(self, context: RuntimeContext) -> None:
        self.requests = context.get_state(ValueStateDescriptor("requests", pa.int64()))
        self.bytes = context.get_state(ValueStateDescriptor("bytes", pa.int64()))

    def process_batch(self, batch: KeyedBatch) -> pa.RecordBatch:
        sent = batch.column("bytes").to_numpy(zero_copy_only=False)
        first: npt.NDArray[np.intp] = np.empty(0, np.intp)

        def added(to: pa.Array, groups: npt.NDArray[np.intp], amounts: npt.NDArray[np.int64]) -> pa.Array:
            nonlocal first
            _, first = np.unique(groups, return_index=True)
            return pc.add(pc.fill_null(to, 0), np.bincount(groups, amounts, len(to)).astype(np.int64))

        keys = (batch.key_groups, batch.keys)
        requests = self.requests.update_many(*keys, lambda to, groups: added(to, groups, np.ones_like(sent)))
        total = self.bytes.update_many(*keys, lambda to, groups: added(to, groups, sent))
        users = batch.column("user").take(pa.array(first))
        return pa.RecordBatch.from_arrays([users, requests, total], names=["user", "requests", "bytes"])


def declare(requests: DataStream) -> dict[str, DataStream]:
    """Returns all results by name."""
    unique = requests.key_by("request_id").deduplicate(ttl=Ttl.days(2)).uid("unique-requests")
    hours = unique.where("status < 400").key_by("page").window(TumblingWindows(HOUR_MS))
    views = hours.aggregate(Count(), accumulator=pa.int64(), output={"views": "bigint"}).uid("page-views")
    top = {"window_end": "bigint", "rank": "int", "page": "string", "views": "bigint"}
    alerts = {"page": "string", "minute": "bigint", "requests": "bigint", "errors": "bigint"}
    sessions = {"user": "string", "began": "bigint", "ended": "bigint", "pages": "string"}
    traffic = {"user": "string", "requests": "bigint", "bytes": "bigint"}
    return {
        "page_views": views,
        "top_pages": views.key_by("window_end").process(TopPages(), output=top).uid("top-pages"),
        "alerts": unique.key_by("page").process(ErrorAlerts(), output=alerts).uid("alerts"),
        "sessions": unique.key_by("user").process(Sessions(), output=sessions).uid("sessions"),
        "traffic": unique.key_by("user").process(Traffic(), output=traffic).uid("traffic"),
    }


def build(env: StreamEnvironment) -> None:
    """Declares the job."""
    parameters = env.parameters
    schema = ", ".join(f"{name} {kind}" for name, kind in REQUEST_COLUMNS.items())
    files = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(parameters["input"])
    bound_ms = int(parameters.get("out_of_order_ms", "5000"))
    for name, results in declare(env.stream(files, timestamp="at", max_out_of_orderness_ms=bound_ms)).items():
        results.sink_to(FileSink(f"{parameters['output']}/{name}", format="json")).uid(f"{name}-files")


if __name__ == "__main__":
    environment = StreamEnvironment.current()
    build(environment)
    environment.execute()
