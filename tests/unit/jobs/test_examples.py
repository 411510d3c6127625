"""The functions of the examples compute what their pages say; whole examples run on Spark in the slow tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from keyscale import FileSink, SessionWindows, SlidingWindows, StreamEnvironment, TimeDomain, Ttl, TumblingWindows
from keyscale.jobs.examples import access_log, bills, flights, nexmark, page_views
from keyscale.jobs.graph import schemas
from keyscale.jobs.graph.nodes import OperatorNode, SinkNode
from keyscale.jobs.operators.aggregate import Aggregate, Reduce
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.window_contents import Aggregated, Collected
from keyscale.jobs.operators.window_operator import Windowing
from keyscale.jobs.streams import environment, streams
from keyscale.jobs.testing.harness import OperatorHarness
from keyscale.jobs.transform_with_state.ddl import parse_columns
from tests.support.sinks.driver import Host
from tests.support.spark import played_columns
from tests.support.spark.played_frame import PlayedFrame, PlayedSession

if TYPE_CHECKING:
    from keyscale import Row
    from keyscale.jobs.functions.process_function import OutputTag
    from keyscale.jobs.graph.topology import Topology

TOTALS = pa.struct([("bills", pa.int64()), ("cents", pa.int64())])
SUMS = {"bills": "bigint", "cents": "bigint"}
WINDOW = {"window_start": "bigint", "window_end": "bigint"}


def harness(function: Any, columns: dict[str, str], key: str, output: Any, **options: Any) -> OperatorHarness:
    timestamp = "at" if "at" in columns else None
    return OperatorHarness(function, input=columns, key=[key], output=output, timestamp=timestamp, **options)


def late(tested: OperatorHarness, tag: OutputTag) -> list[Row]:
    return tested.take_side_output(tag)


def test_a_view_counts_once_per_page() -> None:
    tested = harness(page_views.CountViews(), page_views.INPUT_COLUMNS, "page", page_views.OUTPUT_COLUMNS)
    tested.process(("1", "a"), ("2", "a"), ("1", "a"), ("1", "b"))
    tested.process(("2", "a"), ("3", "a"))
    assert sorted(tested.take_output()) == [("a", "1", 1), ("a", "2", 2), ("a", "3", 3), ("b", "1", 1)]


def test_an_aircraft_is_where_its_latest_flight_went_whatever_order_reports_arrive_in() -> None:
    tested = harness(flights.AircraftTotals(), flights.INPUT_COLUMNS, "tailnum", flights.OUTPUT_COLUMNS)
    tested.process(
        ("r2", 200, "AA", 1, "N1", "JFK", "LAX", 5.0),
        ("r1", 100, "AA", 2, "N1", "LAX", "BOS", None),
        ("r3", 200, "AA", 3, "N1", "BOS", "LAX", -1.5),
        ("x", 300, "AA", 4, "N2", "BOS", "SFO", 9.0),
    )
    assert sorted(map(tuple, tested.take_output())) == [
        ("r1", "N1", 2, 5.0, "LAX", "BOS", 1),
        ("r2", "N1", 1, 5.0, "LAX", "LAX", 1),
        ("r3", "N1", 3, 3.5, "LAX", "LAX", 2),
        ("x", "N2", 1, 9.0, "SFO", "SFO", 1),
    ]
    tested.process(("r4", 200, "AA", 5, "N1", "LAX", "JFK", 1.0), ("r0", 200, "AA", 6, "N1", "LAX", "DFW", 0.0))
    assert [(row.last_airport, row.dest_flights) for row in tested.take_output()] == [("JFK", 1), ("JFK", 1)]


def test_bills_are_totalled_per_account_and_day_and_a_late_one_corrects_its_day() -> None:
    columns = bills.BILL_COLUMNS
    total = harness(Aggregate(bills.Total(), TOTALS, None), columns, "account", {"account": "bigint", **SUMS})
    total.process(("a", 0, 1, 50), ("b", 0, 2, 7), ("c", 9, 1, -20))
    assert sorted(total.take_output()) == [(1, 1, 50), (1, 2, 30), (2, 1, 7)]
    day = bills.DAY_MS
    days = Windowing(
        TumblingWindows(day),
        Aggregated(bills.Total(), TOTALS),
        allowed_lateness_ms=bills.LATENESS_MS,
        late_output=bills.TOO_LATE.name,
    )
    tested = harness(days, columns, "account", {"account": "bigint", **WINDOW, **SUMS}, side_outputs=[bills.TOO_LATE])
    tested.process(("a", 5, 1, 50), ("b", day - 1, 1, 8), ("c", day, 1, 1))
    tested.advance_watermark(day - 1)
    assert tested.take_output() == [(1, 0, day, 2, 58)]
    tested.advance_watermark(7 * day)
    assert tested.take_output() == [(1, day, 2 * day, 1, 1)]
    tested.process(("d", 6, 1, 2))
    assert tested.take_output() == [(1, 0, day, 3, 60)]
    tested.advance_watermark(8 * day - 1)
    tested.process(("e", 7, 1, 100))
    assert (tested.take_output(), late(tested, bills.TOO_LATE)) == ([], [("e", 7, 1, 100)])
    assert bills.Total().merge({"bills": 1, "cents": 2}, {"bills": 3, "cents": -4}) == {"bills": 4, "cents": -2}


def test_the_top_pages_of_an_hour_are_its_three_most_viewed_in_order() -> None:
    columns = {"page": "string", "window_end": "bigint", "views": "bigint", "at": "bigint"}
    output = {"window_end": "bigint", "rank": "int", "page": "string", "views": "bigint"}
    tested = harness(access_log.TopPages(), columns, "window_end", output)
    tested.process(*[(page, 100, views, 99) for page, views in (("d", 1), ("c", 5), ("a", 5), ("b", 9))])
    tested.process(("z", 200, 1, 99))
    assert tested.take_output() == []
    tested.advance_watermark(99)
    assert tested.take_output() == [(100, 1, "b", 9), (100, 2, "a", 5), (100, 3, "c", 5)]
    tested.advance_watermark(199)
    assert tested.take_output() == [(200, 1, "z", 1)]


def test_a_page_is_alerted_if_half_of_three_or_more_requests_of_a_minute_failed() -> None:
    output = {"page": "string", "minute": "bigint", "requests": "bigint", "errors": "bigint"}
    tested = harness(access_log.ErrorAlerts(), access_log.REQUEST_COLUMNS, "page", output)

    def requests(page: str, at: int, *statuses: int) -> list[tuple[Any, ...]]:
        return [("id", at, "user", page, status, 1) for status in statuses]

    minute = access_log.MINUTE_MS
    tested.process(
        *requests("half", minute, 500, 200, 503, 404),
        *requests("fewer", minute, 500, 200, 499),
        *requests("few", minute, 500, 500),
        *requests("half", 2 * minute - 1, 200, 500),
        *requests("half", 2 * minute, 500, 500, 500),
    )
    tested.advance_watermark(2 * minute - 2)
    assert tested.take_output() == []
    tested.advance_watermark(2 * minute - 1)
    assert tested.take_output() == [("half", minute, 6, 3)]
    tested.advance_watermark(9 * minute)
    assert tested.take_output() == [("half", 2 * minute, 3, 3)]


def test_a_session_ends_after_ten_minutes_without_a_request() -> None:
    output = {"user": "string", "began": "bigint", "ended": "bigint", "pages": "string"}
    tested = harness(access_log.Sessions(), access_log.REQUEST_COLUMNS, "user", output)
    gap = access_log.SESSION_GAP_MS
    visits = [(gap, "b"), (0, "a"), (0, "Z"), (2 * gap + 1, "c"), (2 * gap + 1, "d")]
    tested.process(*[("id", at, "ada", page, 200, 1) for at, page in visits], ("id", 5, "bob", "x", 200, 1))
    tested.advance_watermark(2 * gap - 1)
    assert tested.take_output() == [("bob", 5, 5, "x")]
    tested.advance_watermark(2 * gap)
    assert tested.take_output() == [("ada", 0, gap, "Z a b")]
    tested.advance_watermark(9 * gap)
    assert tested.take_output() == [("ada", 2 * gap + 1, 2 * gap + 1, "c d")]
    assert tested.state("visits") == []


def test_traffic_is_one_row_per_user_and_batch_with_all_requests_so_far() -> None:
    output = {"user": "string", "requests": "bigint", "bytes": "bigint"}
    tested = harness(access_log.Traffic(), access_log.REQUEST_COLUMNS, "user", output)
    tested.process(*[("id", 0, user, "p", 200, sent) for user, sent in (("bob", 5), ("ada", 1), ("bob", 2))])
    assert sorted(tested.take_output()) == [("ada", 1, 1), ("bob", 2, 7)]
    tested.process(("id", 0, "bob", "p", 500, 10), ("id", 0, "eve", "p", 200, 0))
    assert sorted(tested.take_output()) == [("bob", 3, 17), ("eve", 1, 0)]


def event(kind: str, at: int, **given: Any) -> dict[str, Any]:
    return dict.fromkeys(nexmark.EVENT_COLUMNS) | {"kind": kind, "at": at} | given


def test_a_person_meets_the_auctions_before_and_after_and_each_once() -> None:
    columns = {**nexmark.EVENT_COLUMNS, "person": "bigint"}
    output = {"name": "string", "city": "string", "state": "string", "auction": "bigint"}
    tested = harness(nexmark.LocalItems(), columns, "person", output)
    tested.process(event("auction", 1, id=70, person=1), event("auction", 2, id=71, person=1))
    assert tested.take_output() == []
    tested.process(event("person", 3, id=1, person=1, name="Ada", city="Bend", state="OR"))
    tested.process(event("auction", 4, id=72, person=1), event("auction", 4, id=73, person=2))
    assert tested.take_output() == [("Ada", "Bend", "OR", auction) for auction in (70, 71, 72)]


def test_the_highest_bid_before_an_auction_closes_wins() -> None:
    output = {"auction": "bigint", "category": "bigint", "price": "bigint"}
    tested = harness(nexmark.WinningBid(), nexmark.EVENT_COLUMNS, "auction", output)
    tested.process(
        event("bid", 5, auction=7, price=30),
        event("auction", 4, auction=7, category=10, expires=20),
        event("bid", 19, auction=7, price=20),
        event("bid", 20, auction=7, price=99),
        event("auction", 4, auction=8, category=11, expires=20),
    )
    tested.advance_watermark(20)
    assert tested.take_output() == [(7, 10, 30)]
    assert (tested.state("bids"), tested.state("category")) == ([], [])


def test_all_auctions_with_the_most_bids_of_a_window_are_the_hottest() -> None:
    columns = {"auction": "bigint", "window_end": "bigint", "count": "bigint", "at": "bigint"}
    output = {"window_end": "bigint", "auction": "bigint", "count": "bigint"}
    tested = harness(nexmark.Hottest(), columns, "window_end", output)
    tested.process((1, 100, 3, 99), (2, 100, 5, 99), (3, 100, 4, 99), (4, 100, 5, 99), (5, 200, 1, 99))
    tested.advance_watermark(99)
    assert tested.take_output() == [(100, 2, 5), (100, 4, 5)]
    tested.advance_watermark(199)
    assert tested.take_output() == [(200, 5, 1)]


BID = {"auction": "bigint", "bidder": "bigint", "price": "bigint", "channel": "string", "at": "bigint"}


def test_the_highest_bid_is_the_earlier_of_equal_ones() -> None:
    tested = harness(Reduce(nexmark.higher, None), BID, "channel", BID)
    rows = [
        (1, 9, 50, "web", 4),
        (2, 8, 70, "web", 6),
        (3, 7, 70, "web", 5),
        (4, 6, 70, "web", 5),
        (3, 6, 70, "web", 5),
    ]
    tested.process(*rows, (5, 5, 60, "web", 1))
    assert tested.take_output() == [*rows, rows[-1]]


@pytest.mark.parametrize("kinds", ["pa", "ap", "paa", "p", "a"])
def test_a_new_seller_is_a_person_with_auctions_in_the_same_window(kinds: str) -> None:
    columns = {**nexmark.EVENT_COLUMNS, "person": "bigint"}
    schema = pa.schema([(name, pa.string() if kind == "string" else pa.int64()) for name, kind in columns.items()])
    logic = Windowing(TumblingWindows(nexmark.WINDOW_MS), Collected(nexmark.NewSellers(), schema))
    tested = harness(logic, columns, "person", {"person": "bigint", **WINDOW, "name": "string", "auctions": "bigint"})
    for at, kind in enumerate(kinds):
        name = {"p": "person", "a": "auction"}[kind]
        tested.process(event(name, at, person=1, name="Ada" if kind == "p" else None))
    tested.advance_watermark(nexmark.WINDOW_MS - 1)
    auctions = kinds.count("a")
    assert tested.take_output() == ([(1, 0, 10_000, "Ada", auctions)] if "p" in kinds and auctions else [])


def test_counts_and_averages_of_sessions_join_when_sessions_do() -> None:
    logic = Windowing(SessionWindows(nexmark.SESSION_GAP_MS), Aggregated(nexmark.Count(), pa.int64()))
    tested = harness(logic, BID, "bidder", {"bidder": "bigint", **WINDOW, "count": "bigint"})
    tested.process(*[(1, 9, 50, "web", at) for at in (0, 5000, 2500, 9000)])
    tested.advance_watermark(20_000)
    assert tested.take_output() == [(9, 0, 8000, 3), (9, 9000, 12_000, 1)]
    average = cast("Any", nexmark.AveragePrice())
    first = average.add(SimpleNamespace(price=10), average.create_accumulator())
    both = average.merge(first, average.add(SimpleNamespace(price=5), first))
    assert average.get_result(both) == {"auctions": 3, "average": 25 / 3}
    assert access_log.Count().merge(2, 3) == 5
    assert access_log.Count().get_result(4) == {"views": 4}


# Whole graphs


class Reads:
    """Plays `SparkSession.readStream`, and notes what is read."""

    def __init__(self) -> None:
        self.settings: dict[str, object] = {}
        self.columns = ""

    def schema(self, columns: str) -> Reads:
        self.columns = columns
        return self

    def option(self, name: str, value: object) -> Reads:
        self.settings[name] = value
        return self

    def json(self, path: str) -> PlayedFrame:
        self.settings["path"] = path
        return SESSION.createDataFrame([], parse_columns(self.columns))


SESSION = PlayedSession(Host())
PARAMETERS = {"input": "/in", "output": "/out"}


@pytest.fixture
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "DataType", SimpleNamespace(fromDDL=parse_columns))
    monkeypatch.setattr(environment, "with_split_of_source", lambda _: None)
    CONDITIONS.clear()
    EXPRESSIONS.clear()
    noted = EXPRESSIONS.append
    monkeypatch.setattr(played_columns, "expr", lambda text: played_columns.lit(noted(text)), raising=False)
    for module in (streams, nexmark):
        monkeypatch.setattr(module, "F", played_columns)
    # The types of calculated columns are Spark's matter: here they are whole numbers.
    monkeypatch.setattr(
        PlayedFrame,
        "withColumn",
        lambda frame, name, _: replace(
            frame,
            schema=StructType(
                [*({each.name: each for each in frame.schema} | {name: StructField(name, LongType())}).values()]
            ),
        ),
    )
    monkeypatch.setattr(PlayedFrame, "where", filtered)


CONDITIONS: list[str] = []
EXPRESSIONS: list[str] = []


def filtered(frame: PlayedFrame, condition: str) -> PlayedFrame:
    CONDITIONS.append(condition)
    return frame


def declared(example: Any, **parameters: str) -> tuple[Topology, Reads]:
    """Returns the graph of an example, and what it reads."""
    reads = Reads()
    built: list[Topology] = []
    spark: Any = SimpleNamespace(readStream=reads, createDataFrame=SESSION.createDataFrame)
    env = StreamEnvironment(spark, PARAMETERS | parameters, built.append)
    example.build(env)
    env.execute()
    return built[0], reads


def described(topology: Topology) -> list[str]:
    """Returns a line for each operator and sink, with its key or its files."""
    lines = []
    for node in topology.nodes:
        if isinstance(node, OperatorNode):
            before = ",".join(each.name for each in topology.origins(node.input))
            lines.append(f"{before} > {node.uid} by {','.join(node.key_columns)} to {','.join(node.schema.names)}")
        elif isinstance(node, SinkNode):
            assert isinstance(node.sink, FileSink)
            before = ",".join(each.name for each in topology.origins(node.input))
            lines.append(f"{before} > {node.uid} {node.sink._format} {node.sink._path}")
    return lines


@pytest.mark.usefixtures("_no_jvm")
def test_the_small_examples_declare_what_they_say() -> None:
    topology, reads = declared(page_views)
    assert described(topology) == [
        "source > views by page to page,view_id,views",
        "operator:views > files json /out",
    ]
    assert (reads.columns, reads.settings) == (
        "view_id string, page string",
        {"maxFilesPerTrigger": 1, "path": "/in"},
    )
    topology, reads = declared(flights, files_per_batch="3")
    assert described(topology) == [
        f"source > unique-reports by report_id to {','.join(flights.INPUT_COLUMNS)}",
        f"operator:unique-reports > aircraft-totals by tailnum to {','.join(flights.OUTPUT_COLUMNS)}",
        "operator:aircraft-totals > files parquet /out",
    ]
    assert topology.operators[0].logic == Deduplicate(Ttl.days(7))
    assert reads.settings == {"maxFilesPerTrigger": "3", "path": "/in"}
    assert topology.operators[1].schema.types == [
        pa.string(),
        pa.string(),
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.string(),
        pa.int64(),
    ]


@pytest.mark.usefixtures("_no_jvm")
def test_the_bills_are_deduplicated_then_totalled_and_summed_by_day() -> None:
    topology, _ = declared(bills)
    whole, sums = ",".join(bills.BILL_COLUMNS), "bills,cents"
    assert described(topology) == [
        f"source > unique-bills by bill_id to {whole}",
        f"operator:unique-bills > totals by account to account,{sums}",
        f"operator:unique-bills > days by account to account,window_start,window_end,{sums}",
        "operator:totals > totals-files json /out/totals",
        "operator:days > days-files json /out/days",
        "operator:days > too_late-files json /out/too_late",
    ]
    unique, _, days = topology.operators
    assert unique.logic == Deduplicate(Ttl.days(30))
    assert [each.timestamp_column for each in topology.operators] == ["at"] * 3
    assert isinstance(days.logic, Windowing)
    assert (days.logic.assigner, days.logic.allowed_lateness_ms) == (TumblingWindows(bills.DAY_MS), 7 * bills.DAY_MS)
    assert days.logic.late_output == "too_late"


@pytest.mark.usefixtures("_no_jvm")
@pytest.mark.parametrize(("parameters", "bound_ms"), [({}, 5000), ({"out_of_order_ms": "70"}, 70)])
def test_the_access_log_has_five_results_behind_one_deduplication(parameters: dict[str, str], bound_ms: int) -> None:
    topology, _ = declared(access_log, **parameters)
    whole = ",".join(access_log.REQUEST_COLUMNS)
    unique = "operator:unique-requests"
    assert described(topology) == [
        f"source > unique-requests by request_id to {whole}",
        f"{unique} > page-views by page to page,window_start,window_end,views",
        "operator:page-views > top-pages by window_end to window_end,rank,page,views",
        f"{unique} > alerts by page to page,minute,requests,errors",
        f"{unique} > sessions by user to user,began,ended,pages",
        f"{unique} > traffic by user to user,requests,bytes",
        "operator:page-views > page_views-files json /out/page_views",
        "operator:top-pages > top_pages-files json /out/top_pages",
        "operator:alerts > alerts-files json /out/alerts",
        "operator:sessions > sessions-files json /out/sessions",
        "operator:traffic > traffic-files json /out/traffic",
    ]
    assert set(CONDITIONS) == {"status < 400"}
    assert topology.operators[0].logic == Deduplicate(Ttl.days(2))
    assert topology.operators[0].out_of_orderness_ms == bound_ms
    views = topology.operators[1].logic
    assert isinstance(views, Windowing)
    assert views.assigner == TumblingWindows(access_log.HOUR_MS)


@pytest.mark.usefixtures("_no_jvm")
def test_each_query_of_nexmark_reads_the_events_that_it_says() -> None:
    topology, reads = declared(nexmark)
    bid = "auction,bidder,price,channel,at"
    assert described(topology) == [
        "source > q1_currency-files json /out/q1_currency",
        "source > q2_selection-files json /out/q2_selection",
        "source > q3-local-items by person to name,city,state,auction",
        "operator:q3-local-items > q3_local_items-files json /out/q3_local_items",
        "source > q4-winning-bids by auction to auction,category,price",
        "operator:q4-winning-bids > q4-category-averages by category to category,auctions,average",
        "operator:q4-category-averages > q4_category_averages-files json /out/q4_category_averages",
        "source > q5-counts by auction to auction,window_start,window_end,count",
        "operator:q5-counts > q5-hottest by window_end to window_end,auction,count",
        "operator:q5-hottest > q5_hot_items-files json /out/q5_hot_items",
        "source > q7-highest-bids by channel to channel,window_start,window_end,auction,bidder,price,at",
        "operator:q7-highest-bids > q7_highest_bids-files json /out/q7_highest_bids",
        "source > q8-new-sellers by person to person,window_start,window_end,name,auctions",
        "operator:q8-new-sellers > q8_new_sellers-files json /out/q8_new_sellers",
        "source > q11-sessions by bidder to bidder,window_start,window_end,count",
        "operator:q11-sessions > q11_bidder_sessions-files json /out/q11_bidder_sessions",
        "source > q12-counts by bidder to bidder,window_start,window_end,count",
        "operator:q12-counts > q12_bids_by_clock-files json /out/q12_bids_by_clock",
    ]
    found = {each.uid: each.logic.assigner for each in topology.operators if isinstance(each.logic, Windowing)}
    assert found == {
        "q5-counts": SlidingWindows(10_000, 2_000),
        "q7-highest-bids": TumblingWindows(10_000),
        "q8-new-sellers": TumblingWindows(10_000),
        "q11-sessions": SessionWindows(3_000),
        "q12-counts": TumblingWindows(1_000, time_domain=TimeDomain.PROCESSING),
    }
    assert {each.out_of_orderness_ms for each in topology.operators if not each.uid.startswith("q4-c")} == {2000, 0}
    assert set(CONDITIONS) == {
        "kind = 'bid'",
        "auction % 7 = 0",
        "kind = 'person' AND state IN ('OR', 'ID', 'CA') OR kind = 'auction' AND category = 10",
        "kind <> 'person'",
        "kind <> 'bid'",
    }
    assert set(EXPRESSIONS) == {
        "price * 89 div 100",
        "if(kind = 'person', id, seller)",
        "if(kind = 'auction', id, auction)",
    }
    assert [topology.schema(sink.input).names for sink in topology.sinks[:2]] == [bid.split(","), ["auction", "price"]]
    assert reads.settings == {"maxFilesPerTrigger": 1, "path": "/in"}
    topology, _ = declared(nexmark, queries="q2_selection,q11_bidder_sessions", out_of_order_ms="9")
    assert [sink.uid for sink in topology.sinks] == ["q2_selection-files", "q11_bidder_sessions-files"]
    assert topology.operators[0].out_of_orderness_ms == 9
