"""The example jobs with inputs, and what their outputs must be: what a batch computation of the same input gives."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyscale.jobs.examples import access_log, bills, nexmark
from keyscale.jobs.graph.nodes import Timestamps
from keyscale.jobs.graph.schemas import arrow_schema
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.streams.streams import DataStream
from tests.support.examples.access_requests import BOUND_MS as REQUESTS_BOUND_MS
from tests.support.examples.access_requests import AccessLog
from tests.support.examples.account_bills import Bills
from tests.support.examples.nexmark_events import BOUND_MS as EVENTS_BOUND_MS
from tests.support.examples.nexmark_events import Auctions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from keyscale.jobs.graph.topology import Topology

Row = dict[str, Any]
EXAMPLES = Path(nexmark.__file__).parent


@dataclass(frozen=True, slots=True)
class ExampleCase:
    """One example job.

    Attributes:
        name: Of its script.
        columns: Of its input.
        files: Its whole input, one file per batch.
        bound_ms: By how much records are out of order.
        declare: Its results by name.
        expected: What a batch computation gives for each result.
        read: From the rows of a result in the sink, in their order, to what compares with it.
    """

    name: str
    columns: Mapping[str, str]
    files: list[list[Row]]
    bound_ms: int
    declare: Callable[[DataStream], Mapping[str, DataStream]]
    expected: Mapping[str, Any]
    read: Mapping[str, Callable[[list[Row]], Any]]

    @property
    def script(self) -> Path:
        return EXAMPLES / f"{self.name}.py"

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.columns)

    def topology(self, spark: SparkSession) -> Topology:
        """The graph that the script declares, with sinks that are to be replaced."""
        builder = TopologyBuilder()
        source = builder.add_source(None, self.schema)  # type: ignore[arg-type]  # its frame is not read
        stream = DataStream(spark, builder, source, Timestamps("at", self.bound_ms))
        for name, results in self.declare(stream).items():
            results.sink_to(None).uid(f"{name}-files")  # type: ignore[arg-type]  # as above
        return builder.build()

    def differences(self, rows_of: Callable[[str], list[Row]]) -> dict[str, tuple[Any, Any]]:
        """The actual and the expected rows of each wrong result. `rows_of` gives the rows of a result's sink."""
        found = {name: self.read[name](rows_of(name)) for name in self.expected}
        return {name: (found[name], right) for name, right in self.expected.items() if found[name] != right}


def nexmark_case(seed: int, *, files: int, events: int) -> ExampleCase:
    auctions = Auctions.make(seed, files, events)
    names = list(nexmark.QUERIES)
    return ExampleCase(
        name="nexmark",
        columns=nexmark.EVENT_COLUMNS,
        files=auctions.files,
        bound_ms=EVENTS_BOUND_MS,
        declare=lambda events: {name: query(events) for name, query in nexmark.QUERIES.items()},
        expected={name: getattr(auctions, name)() for name in names},
        read={
            **dict.fromkeys(names, as_tuples),
            "q4_category_averages": lambda rows: latest(rows, ["category"], "auctions", ["average"]),
            "q12_bids_by_clock": lambda rows: summed(rows, "bidder", "count"),
        },
    )


def access_log_case(seed: int, *, files: int, requests: int) -> ExampleCase:
    log = AccessLog.make(seed, files, requests)
    names = ("page_views", "top_pages", "alerts", "sessions", "traffic")
    return ExampleCase(
        name="access_log",
        columns=access_log.REQUEST_COLUMNS,
        files=log.files,
        bound_ms=REQUESTS_BOUND_MS,
        declare=access_log.declare,
        expected={name: getattr(log, name)() for name in names},
        read={**dict.fromkeys(names, as_tuples), "traffic": lambda rows: latest(rows, ["user"], "requests", ["bytes"])},
    )


def bills_case(seed: int, *, files: int, records: int) -> ExampleCase:
    made = Bills.make(seed, files, records)
    return ExampleCase(
        name="bills",
        columns=bills.BILL_COLUMNS,
        files=made.files,
        bound_ms=0,
        declare=bills.declare,
        expected={"totals": made.totals(), "days": made.days(), "too_late": made.late()},
        read={
            "totals": lambda rows: latest(rows, ["account"], "bills", ["cents"], gapless=True),
            "days": lambda rows: latest(rows, ["account", "window_start"], "bills", ["cents"]),
            "too_late": lambda rows: Counter(row["bill_id"] for row in rows),
        },
    )


def as_tuples(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    """The rows, whatever their order."""
    return Counter(tuple(row.values()) for row in rows)


def summed(rows: list[Row], key: str, column: str) -> Counter[Any]:
    """The sums of a column."""
    sums: Counter[Any] = Counter()
    for row in rows:
        sums[row[key]] += row[column]
    return sums


def latest(
    rows: list[Row], key: list[str], count: str, columns: list[str], *, gapless: bool = False
) -> dict[Any, tuple[Any, ...]]:
    """The last row of each key, which must count further than those before it.

    Args:
        rows: In the order of the sink.
        key: Its columns.
        count: The column that goes up from row to row.
        columns: What is compared besides.
        gapless: Whether it must go up by one.
    """
    by_key = defaultdict(list)
    for row in rows:
        by_key[row[key[0]] if len(key) == 1 else tuple(row[name] for name in key)].append(row)
    found = {}
    for at, of_key in by_key.items():
        counts = [row[count] for row in of_key]
        assert counts == (list(range(1, len(counts) + 1)) if gapless else sorted(set(counts))), f"{at}: {counts}"
        found[at] = (counts[-1], *(of_key[-1][name] for name in columns))
    return found
