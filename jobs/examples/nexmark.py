"""Queries of the Nexmark benchmark.

The input is one stream of the persons, auctions and bids of an auction house.

Each query has its own sink, `<output>/<query>/`. An event has the columns of its kind, and nulls in all others.
Parameters: `input` (a directory of JSON-lines files; new files are read as they appear), `output` (a directory),
`queries` (names, separated by commas; all by default), `out_of_order_ms` (how much older than an earlier event an event
may be; 2000 by default).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as usual in PySpark

from keyscale import (
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessWindowFunction,
    SessionWindows,
    SlidingWindows,
    StreamEnvironment,
    TimeDomain,
    TumblingWindows,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keyscale import DataStream, OnTimerContext, ProcessContext, Row, RuntimeContext, Window

EVENT_COLUMNS = {
    "kind": "string",  # person, auction or bid
    "at": "bigint",  # milliseconds since the epoch
    "id": "bigint",  # of the person or the auction
    "name": "string",  # person, with city and state
    "city": "string",
    "state": "string",
    "seller": "bigint",  # auction: id of the person
    "category": "bigint",
    "expires": "bigint",  # auction: when it closes; only earlier bids count
    "auction": "bigint",  # bid: id of the auction
    "bidder": "bigint",  # bid: id of the person
    "price": "bigint",  # US cents
    "channel": "string",
}
NEAR_STATES = ("OR", "ID", "CA")
LOCAL_CATEGORY = 10
EUROS_OF_100_DOLLARS = 89
SAMPLED = 7  # every seventh auction
WINDOW_MS = 10_000
SLIDE_MS = 2_000
SESSION_GAP_MS = 3_000
CLOCK_WINDOW_MS = 1_000


class LocalItems(KeyedProcessFunction):
    """Joins persons with the auctions that they open, whichever arrives first."""

    def open(self, context: RuntimeContext) -> None:
        columns = pa.struct([(name, pa.string()) for name in ("name", "city", "state")])
        self.person = context.get_state(ValueStateDescriptor("person", columns))
        self.waiting = context.get_list_state(ListStateDescriptor("waiting_auctions", pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - not used
        if row.kind == "person":
            person = {"name": row.name, "city": row.city, "state": row.state}
            self.person.update(person)
            for auction in self.waiting.get():
                yield {**person, "auction": auction}
            self.waiting.clear()
        elif (person := self.person.value()) is not None:
            yield {**person, "auction": row.id}
        else:
            self.waiting.add(row.id)


class WinningBid(KeyedProcessFunction):
    """Emits the highest bid of each auction when the auction closes."""

    def open(self, context: RuntimeContext) -> None:
        self.category = context.get_state(ValueStateDescriptor("category", pa.int64()))
        self.bids = context.get_list_state(
            ListStateDescriptor("bids", pa.struct([("at", pa.int64()), ("price", pa.int64())]))
        )

    def process_element(self, row: Row, context: ProcessContext) -> None:
        if row.kind == "auction":
            self.category.update(row.category)
            context.timer_service().register_event_time_timer(row.expires)
        else:
            self.bids.add({"at": row.at, "price": row.price})

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[dict[str, Any]]:
        prices = [bid["price"] for bid in self.bids.get() if bid["at"] < timestamp]
        if prices:
            yield {"auction": context.current_key, "category": self.category.value(), "price": max(prices)}
        self.bids.clear()
        self.category.clear()


class Count:
    """Counts records."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, _: Row, accumulator: int, /) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int, /) -> dict[str, int]:
        return {"count": accumulator}

    def merge(self, left: int, right: int, /) -> int:
        return left + right


class AveragePrice:
    """Computes the average and the number of prices."""

    def create_accumulator(self) -> dict[str, int]:
        return {"count": 0, "sum": 0}

    def add(self, row: Row, accumulator: dict[str, int], /) -> dict[str, int]:
        return {"count": accumulator["count"] + 1, "sum": accumulator["sum"] + row.price}

    def get_result(self, accumulator: dict[str, int], /) -> dict[str, Any]:
        return {"auctions": accumulator["count"], "average": accumulator["sum"] / accumulator["count"]}

    def merge(self, left: dict[str, int], right: dict[str, int], /) -> dict[str, int]:
        return {name: left[name] + right[name] for name in left}


class Hottest(KeyedProcessFunction):
    """Emits the auctions with the highest count of a window.

    A window's counts all arrive in the same batch.
    """

    def open(self, context: RuntimeContext) -> None:
        self.most = context.get_state(ValueStateDescriptor("most", pa.int64()))
        self.auctions = context.get_list_state(ListStateDescriptor("auctions", pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> None:
        most = self.most.value() or 0
        if row["count"] > most:
            self.most.update(row["count"])
            self.auctions.update([row.auction])
        elif row["count"] == most:
            self.auctions.add(row.auction)
        context.timer_service().register_event_time_timer(context.current_key - 1)

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - not used
        for auction in self.auctions.get():
            yield {"window_end": context.current_key, "auction": auction, "count": self.most.value()}
        self.most.clear()
        self.auctions.clear()


class NewSellers(ProcessWindowFunction):
    """Emits new persons who open auctions in the same window."""

    def process(
        self,
        key: Any,  # noqa: ARG002 - not used
        window: Window,  # noqa: ARG002 - not used
        elements: Sequence[Row],
    ) -> Iterator[dict[str, Any]]:
        names = [row.name for row in elements if row.kind == "person"]
        auctions = sum(row.kind == "auction" for row in elements)
        if names and auctions:
            yield {"name": names[0], "auctions": auctions}


def higher(left: Row, right: Row) -> Row:
    """Returns the higher of two bids, or the earlier of equal bids."""
    return max(left, right, key=lambda bid: (bid.price, -bid.at, -bid.bidder, -bid.auction))


def bids_of(events: DataStream) -> DataStream:
    """Returns the bids, with only their own columns."""
    return events.where("kind = 'bid'").select("auction", "bidder", "price", "channel", "at")


def q1_currency(events: DataStream) -> DataStream:
    """Bids in euros: a stateless step."""
    return bids_of(events).with_column("price", F.expr(f"price * {EUROS_OF_100_DOLLARS} div 100"))


def q2_selection(events: DataStream) -> DataStream:
    """Bids on some auctions: a filter."""
    return bids_of(events).where(f"auction % {SAMPLED} = 0").select("auction", "price")


def q3_local_items(events: DataStream) -> DataStream:
    """Sellers of one category who live nearby: a join without an end."""
    near = ", ".join(f"'{state}'" for state in NEAR_STATES)
    wanted = f"kind = 'person' AND state IN ({near}) OR kind = 'auction' AND category = {LOCAL_CATEGORY}"
    people = events.where(wanted).with_column("person", F.expr("if(kind = 'person', id, seller)"))
    output = {"name": "string", "city": "string", "state": "string", "auction": "bigint"}
    return people.key_by("person").process(LocalItems(), output=output).uid("q3-local-items")


def q4_category_averages(events: DataStream) -> DataStream:
    """Computes the average closing price per category with timers.

    A second operator computes the average.
    """
    auctions = events.where("kind <> 'person'").with_column("auction", F.expr("if(kind = 'auction', id, auction)"))
    output = {"auction": "bigint", "category": "bigint", "price": "bigint"}
    closed = auctions.key_by("auction").process(WinningBid(), output=output).uid("q4-winning-bids")
    accumulator = pa.struct([("count", pa.int64()), ("sum", pa.int64())])
    averages = {"auctions": "bigint", "average": "double"}
    return (
        closed.key_by("category")
        .aggregate(AveragePrice(), accumulator=accumulator, output=averages)
        .uid("q4-category-averages")
    )


def q5_hot_items(events: DataStream) -> DataStream:
    """Finds the auctions with the most bids in sliding windows.

    A window lasts ten seconds.
    """
    counts = (
        bids_of(events)
        .key_by("auction")
        .window(SlidingWindows(WINDOW_MS, SLIDE_MS))
        .aggregate(Count(), accumulator=pa.int64(), output={"count": "bigint"})
        .uid("q5-counts")
    )
    output = {"window_end": "bigint", "auction": "bigint", "count": "bigint"}
    return counts.key_by("window_end").process(Hottest(), output=output).uid("q5-hottest")


def q7_highest_bids(events: DataStream) -> DataStream:
    """Finds the highest bid per channel and tumbling window."""
    windows = bids_of(events).key_by("channel").window(TumblingWindows(WINDOW_MS))
    return windows.reduce(higher).uid("q7-highest-bids")


def q8_new_sellers(events: DataStream) -> DataStream:
    """Finds new persons who open auctions.

    Tumbling windows keep all records.
    """
    people = events.where("kind <> 'bid'").with_column("person", F.expr("if(kind = 'person', id, seller)"))
    windows = people.key_by("person").window(TumblingWindows(WINDOW_MS))
    return windows.process(NewSellers(), output={"name": "string", "auctions": "bigint"}).uid("q8-new-sellers")


def q11_bidder_sessions(events: DataStream) -> DataStream:
    """Counts the bids in each session of a bidder."""
    windows = bids_of(events).key_by("bidder").window(SessionWindows(SESSION_GAP_MS))
    return windows.aggregate(Count(), accumulator=pa.int64(), output={"count": "bigint"}).uid("q11-sessions")


def q12_bids_by_clock(events: DataStream) -> DataStream:
    """Counts bids per bidder and second of processing time."""
    windows = (
        bids_of(events).key_by("bidder").window(TumblingWindows(CLOCK_WINDOW_MS, time_domain=TimeDomain.PROCESSING))
    )
    return windows.aggregate(Count(), accumulator=pa.int64(), output={"count": "bigint"}).uid("q12-counts")


QUERIES = {
    query.__name__: query
    for query in (
        q1_currency,
        q2_selection,
        q3_local_items,
        q4_category_averages,
        q5_hot_items,
        q7_highest_bids,
        q8_new_sellers,
        q11_bidder_sessions,
        q12_bids_by_clock,
    )
}


def build(env: StreamEnvironment) -> None:
    """Declares the job."""
    parameters = env.parameters
    schema = ", ".join(f"{name} {kind}" for name, kind in EVENT_COLUMNS.items())
    files = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(parameters["input"])
    bound_ms = int(parameters.get("out_of_order_ms", "2000"))
    events = env.stream(files, timestamp="at", max_out_of_orderness_ms=bound_ms)
    for name in parameters.get("queries", ",".join(QUERIES)).split(","):
        results = QUERIES[name](events)
        results.sink_to(FileSink(f"{parameters['output']}/{name}", format="json")).uid(f"{name}-files")


if __name__ == "__main__":
    environment = StreamEnvironment.current()
    build(environment)
    environment.execute()
