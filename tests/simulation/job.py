"""The job of every history: it counts records by key, and emits each with its count and a hash of all before it.

A lost record leaves a gap in a key's counts, a record that counts twice a doubled count, and a record that is out of
order another hash. So the rows that a reader of the sink sees tell all that has happened to the state.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from keyscale.jobs.functions.process_function import KeyedProcessFunction
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.streams.streams import DataStream
from keyscale.state.keyed.descriptors import ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keyscale.jobs.functions.process_function import ProcessContext, Row, RuntimeContext
    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.sinks.sink import Sink

INPUT = pa.schema([("key", pa.int64()), ("number", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("number", pa.int64()), ("count", pa.int64()), ("chain", pa.int64())])
KEYS = 6
OPERATOR, SINK = "counts", "rows"


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the source; numbers ascend from 0."""

    key: int
    number: int


class Count(KeyedProcessFunction):
    """Counts, and chains what it has counted."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))
        self.chain = context.get_state(ValueStateDescriptor("chain", pa.int64()))
        self.records = context.metrics.counter("records", labels=["key"])

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        count = (self.count.value() or 0) + 1
        chain = chained(self.chain.value() or 0, record.number)
        self.count.update(count)
        self.chain.update(chain)
        self.records.labels(key=context.current_key).inc()
        yield {"key": context.current_key, "number": record.number, "count": count, "chain": chain}


class FailOnFirstRecord(KeyedProcessFunction):
    """Fails, as a wrong program does."""

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        raise ValueError("the program is wrong")


def chained(before: int, number: int) -> int:
    """Returns the hash of a number after the numbers before it."""
    return int.from_bytes(hashlib.blake2b(f"{before}/{number}".encode(), digest_size=7).digest(), "big")


def topology_of(
    sink: Sink, query: Any, function: KeyedProcessFunction, *, out_of_order_ms: int | None = None
) -> Topology:
    """Returns the job's graph over a query.

    Args:
        sink: Takes the rows.
        query: The input.
        function: Makes the rows.
        out_of_order_ms: Makes the number of a record its event time, with this bound; None for no event time.
    """
    builder = TopologyBuilder()
    stream = DataStream(cast("Any", None), builder, builder.add_source(query, INPUT), None)
    if out_of_order_ms is not None:
        stream = stream.with_timestamps("number", max_out_of_orderness_ms=out_of_order_ms)
    stream.key_by("key").process(function, output=OUTPUT).uid(OPERATOR).sink_to(sink).uid(SINK)
    return builder.build()


def expected_rows(records: Sequence[Record]) -> list[tuple[int, int, int, int]]:
    """Returns the rows of each record once, sorted: key, number, count, chain."""
    counts: defaultdict[int, int] = defaultdict(int)
    chains: defaultdict[int, int] = defaultdict(int)
    rows = []
    for record in records:
        counts[record.key] += 1
        chains[record.key] = chained(chains[record.key], record.number)
        rows.append((record.key, record.number, counts[record.key], chains[record.key]))
    return sorted(rows)


def table_of(records: Sequence[Record]) -> pa.Table:
    """Returns records as the table that a batch is."""
    keys, numbers = [record.key for record in records], [record.number for record in records]
    return pa.table({"key": keys, "number": numbers}, INPUT)
