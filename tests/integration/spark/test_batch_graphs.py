"""Graphs with several inputs, batch by batch through Spark: two keyed streams, a broadcast one, and unions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from keyscale import (
    FileSink,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    StreamEnvironment,
    ValueStateDescriptor,
)
from keyscale.identifiers import Attempt, BatchId, JobId, OperatorUid
from keyscale.jobs.errors import BroadcastDivergedError
from keyscale.jobs.runtime.batch.job_sources import JobSources
from keyscale.jobs.runtime.batch.runner import BatchRunner, RunInfo
from keyscale.jobs.spark_internals.affinity import PlacementDataset
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges
from tests.support.short_form import short_form
from tests.support.spark.batch_rig import nothing_committed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keyscale import (
        BroadcastContext,
        DataStream,
        KeyedReadOnlyContext,
        ProcessContext,
        Row,
        RuntimeContext,
        SinkContext,
    )
    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.runtime.batch.batch_outcome import BatchOutcome
    from keyscale.jobs.runtime.batch.committed_state import CommittedState

pytestmark = pytest.mark.real

ORDERS, PAYMENTS = "order string, item string, at bigint", "paid_for string, amount bigint, paid_at bigint"
LIMITS = MapStateDescriptor("limits", pa.string(), pa.int64())


@dataclass
class Rig:
    """Runs batches of several sources as the driver does, without its log."""

    spark: SparkSession
    path: Path
    parallelism: int = 2
    topology: Topology = field(init=False)
    runner: BatchRunner = field(init=False)
    committed: CommittedState = field(init=False)

    def __post_init__(self) -> None:
        self.executed: list[Topology] = []
        self.env = StreamEnvironment(self.spark, {}, self.executed.append)

    def source(self, uid: str, schema: str) -> DataStream:
        (self.path / uid).mkdir()
        return self.env.stream(self.spark.readStream.schema(schema).json(str(self.path / uid))).uid(uid)

    def begin(self, stream: DataStream) -> None:
        stream.sink_to(FileSink(str(self.path / "out"), format="json")).uid("files")
        self.env.execute()
        (self.topology,) = self.executed
        info = RunInfo(
            job_id=JobId("job"),
            attempt=Attempt(1),
            ranges=KeyGroupRanges.of_count(16, self.parallelism),
            hash_id=HashId.SPARK,
            store_url=(self.path / "store").as_uri(),
            local_root=self.path / "local",
        )
        self.runner = BatchRunner(
            self.spark, self.topology, info, PlacementDataset.create(self.spark, self.parallelism)
        )
        self.committed = nothing_committed(self.topology, info)

    def frame(self, **records: list[tuple[Any, ...]]) -> DataFrame:
        """Returns the frame of Spark's one query in a batch with these records of the sources."""
        frames = {
            node.uid: self.spark.createDataFrame(records.get(node.uid, []), node.frame.schema)
            for node in self.topology.sources
        }
        nodes = tuple(replace(node, frame=frames[node.uid]) for node in self.topology.sources)
        return self.runner.of_query(JobSources(nodes).stream())

    def run(self, **records: list[tuple[Any, ...]]) -> BatchOutcome:
        batch_id = BatchId(self.committed.batch_id + 1)
        outcome = self.runner.run(self.frame(**records), self.committed)
        self.runner.publish(outcome.sinks)
        self.committed = self.committed.after(batch_id, outcome, {}, 0)
        return outcome

    def output(self) -> list[tuple[Any, ...]]:
        """Returns the rows of the batch that ran last."""
        written = self.spark.read.json(str(self.path / "out" / f"batch={self.committed.batch_id}"))
        return sorted((tuple(row[name] for name in sorted(row.asDict())) for row in written.collect()), key=repr)


class Paid(KeyedCoProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.item = context.get_state(ValueStateDescriptor("item", pa.string()))
        self.amount = context.get_state(ValueStateDescriptor("amount", pa.int64()))

    def process_element1(self, row: Row, context: ProcessContext) -> Iterator[tuple[Any, ...]]:
        self.item.update(row.item)
        yield from self._joined(context.current_key)

    def process_element2(self, row: Row, context: ProcessContext) -> Iterator[tuple[Any, ...]]:
        self.amount.update(row.amount)
        yield from self._joined(context.current_key)

    def _joined(self, order: str) -> Iterator[tuple[Any, ...]]:
        item, amount = self.item.value(), self.amount.value()
        if item is not None and amount is not None:
            yield amount, item, order


class Nothing(KeyedCoProcessFunction):
    def process_element1(self, row: Row, _: ProcessContext) -> Iterator[tuple[Any, ...]]:
        yield from self._of(row)

    def process_element2(self, row: Row, _: ProcessContext) -> Iterator[tuple[Any, ...]]:
        yield from self._of(row)

    def _of(self, row: Row) -> list[tuple[Any, ...]]:
        assert row.amount >= 0
        return []


def test_two_keyed_streams_meet_in_one_state(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path)
    orders = rig.source("orders", ORDERS).with_timestamps("at").key_by("order")
    payments = rig.source("payments", PAYMENTS).with_timestamps("paid_at").key_by("paid_for")
    output = {"amount": "bigint", "item": "string", "order": "string"}
    rig.begin(orders.connect(payments).process(Paid(), output=output).uid("paid"))
    outcome = rig.run(
        orders=[(f"o{number}", "book", number) for number in range(10)],
        payments=[(f"o{number}", number, 100 + number) for number in range(5)],
    )
    assert rig.output() == [(number, "book", f"o{number}") for number in range(5)]
    assert outcome.latest_of_origins() == {"paid": {"orders": 9, "second:payments": 104}}
    assert outcome.input_records == 15
    rig.run(payments=[(f"o{number}", number, 200) for number in range(5, 8)])
    assert rig.output() == [(number, "book", f"o{number}") for number in range(5, 8)]


def test_a_record_that_is_read_counts_once_however_many_operators_get_it(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path)
    left, right = rig.source("left", ORDERS), rig.source("right", ORDERS)
    by_order = left.key_by("order").deduplicate().uid("by-order")
    dear = left.where("at > 5").key_by("item").deduplicate().uid("dear")
    mixed = by_order.union(left).union(right).key_by("item").deduplicate().uid("mixed")
    branches = [right.where(f"at % 2 = {rest}").key_by("item").deduplicate().uid(f"right-{rest}") for rest in (0, 1)]
    rig.begin(mixed.union(dear).union(branches[0]).union(branches[1]))
    outcome = rig.run(
        left=[(f"o{number}", f"i{number}", number) for number in range(10)],
        right=[(f"p{number}", f"i{number}", number) for number in range(7)],
    )
    assert sum(report.read_records for report in outcome.reports[OperatorUid("mixed")]) == 10 + 10 + 7
    assert outcome.input_records == 10 + 7


@pytest.mark.exhaustive  # "right" of the test above is such a source
def test_of_a_source_that_is_read_through_transforms_alone_each_branch_counts(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path)
    orders = rig.source("orders", ORDERS)
    even, odd = (orders.where(f"at % 2 = {rest}").key_by("item").deduplicate().uid(f"rest-{rest}") for rest in (0, 1))
    rig.begin(even.union(odd))
    assert rig.run(orders=[(f"o{number}", f"i{number}", number) for number in range(10)]).input_records == 10


def test_a_source_that_arrives_more_than_once_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path)
    orders, payments = rig.source("orders", ORDERS), rig.source("payments", PAYMENTS)
    twice = orders.union(orders).key_by("order").deduplicate().uid("twice")
    tripled = payments.transform(lambda frame: frame.selectExpr("explode(array(1, 2, 3))", "*").drop("col"))
    both = payments.key_by("paid_for").connect(tripled.key_by("paid_for"))
    output = {"amount": "bigint", "item": "string", "order": "string"}
    nothing = both.process(Nothing(), output=output).uid("nothing")
    rig.begin(twice.with_column("amount", "at").select("amount", "item", "order").union(nothing))
    outcome = rig.run(
        orders=[(f"o{number}", "book", number) for number in range(10)],
        payments=[(f"o{number}", number, 100 + number) for number in range(7)],
    )
    assert rig.output() == [(number, "book", f"o{number}") for number in range(10)]
    assert outcome.input_records == 10 + 7


@pytest.mark.exhaustive  # nine operators; two show it in the test of operators that meet in one state
def test_operators_whose_records_meet_keep_their_own_state(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path, parallelism=3)
    left, right = (
        rig.source(uid, ORDERS).key_by("order").deduplicate().uid(f"{uid}-once") for uid in ("left", "right")
    )
    both = left.union(right.where("at >= 0")).union(left.where("item = 'x'"))
    rig.begin(both.union(both.key_by("order").deduplicate().uid("order")))
    orders = [(f"o{number}", f"i{number}", number) for number in range(20)]

    def shown(*records: tuple[str, str, int]) -> list[tuple[Any, ...]]:
        return sorted(((at, item, order) for order, item, at in records), key=repr)

    rig.run(left=orders[:15], right=orders[10:])
    assert rig.output() == shown(*orders[:15], *orders[10:], *orders)
    rig.run(left=orders, right=orders)
    assert rig.output() == shown(*orders[15:], *orders[:10])
    rig.run(left=orders, right=orders)
    assert rig.output() == []


NEVER_TRUE: dict[str, Callable[[DataStream], DataStream]] = {
    "constant": lambda stream: stream.where("1 = 0"),
    "together": lambda stream: stream.where("at = 1").where("not (at = 1)"),
    "by a column": lambda stream: stream.with_column("kind", "'a'").where("kind = 'b'").select("order", "item", "at"),
    "by the clock": lambda stream: stream.where("current_timestamp() < timestamp'2026-01-01'"),
}
"""Steps after which Spark's optimizer knows that no record is left."""


@pytest.mark.parametrize("name", short_form(NEVER_TRUE, ["by the clock"]))
def test_an_operator_before_or_behind_a_filter_that_is_never_true_has_its_tasks(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    step = NEVER_TRUE[name]
    rig = Rig(spark, tmp_path)
    orders = rig.source("orders", ORDERS)
    none = step(orders).key_by("order").deduplicate().uid("none")
    once = orders.key_by("order").deduplicate().uid("once")
    rig.begin(once.union(none).union(step(once).key_by("item").deduplicate().uid("behind")))
    rig.run(orders=[(f"o{number}", "book", number) for number in range(5)] * 2)
    assert rig.output() == [(number, "book", f"o{number}") for number in range(5)]


class CountedFiles(FileSink):
    """Counts the rows of each batch before it writes them."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.counts: list[int] = []

    def prepare(self, frame: DataFrame, context: SinkContext) -> str:
        rows = frame.persist()
        try:
            self.counts.append(rows.count())
            return super().prepare(rows, context)
        finally:
            rows.unpersist()


def test_a_sink_that_caches_its_frame_takes_it_from_no_other_sink(spark: SparkSession, tmp_path: Path) -> None:
    files = CountedFiles(str(tmp_path / "counted"))
    rig = Rig(spark, tmp_path)
    orders = rig.source("orders", ORDERS).key_by("order").deduplicate().uid("once")
    orders.sink_to(files).uid("counted")
    rig.begin(orders.where("at >= 0"))
    rig.run(orders=[(f"o{number}", "book", number) for number in range(5)] * 2)
    assert rig.output() == [(number, "book", f"o{number}") for number in range(5)]
    assert files.counts == [5]


def test_operators_meet_in_one_state(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path)
    orders = rig.source("orders", ORDERS).key_by("order").deduplicate().uid("ordered")
    payments = rig.source("payments", PAYMENTS).key_by("paid_for").deduplicate().uid("paid-once")
    output = {"amount": "bigint", "item": "string", "order": "string"}
    together = orders.key_by("order").connect(payments.key_by("paid_for"))
    rig.begin(together.process(Paid(), output=output).uid("paid"))
    outcome = rig.run(
        orders=[(f"o{number}", "book", number) for number in range(10)] * 2,
        payments=[(f"o{number}", number, 100 + number) for number in range(5)] * 2,
    )
    assert rig.output() == [(number, "book", f"o{number}") for number in range(5)]
    assert outcome.input_records == 30


class Limited(KeyedBroadcastProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.subtask = context.subtask_index

    def process_element(self, row: Row, context: KeyedReadOnlyContext) -> Iterator[tuple[Any, ...]]:
        yield row.item, context.get_broadcast_state(LIMITS).get("limit")

    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> None:
        context.get_broadcast_state(LIMITS).put(row.name, self.subtask if row.name == "subtask" else row.value)


def limited(rig: Rig) -> None:
    rules = rig.source("rules", "name string, value bigint").where("value >= 0").broadcast(LIMITS)
    orders = rig.source("orders", ORDERS).key_by("order")
    rig.begin(orders.connect(rules).process(Limited(), output={"item": "string", "limit": "bigint"}).uid("limited"))


def test_broadcast_records_are_known_to_every_subtask_before_the_records_of_their_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path)
    limited(rig)
    orders = [(f"o{number}", f"i{number}", 0) for number in range(9)]
    rig.run(rules=[("limit", 5), ("limit", -1), ("limit", 7)], orders=orders)
    assert rig.output() == [(f"i{number}", 7) for number in range(9)]
    rig.run(orders=orders)
    assert rig.output() == [(f"i{number}", 7) for number in range(9)]
    outcome = rig.run(rules=[("limit", 9)])
    assert all(
        changelog and changelog.operator_state for changelog in outcome.changelogs[rig.topology.operators[0].uid]
    )
    rig.run(orders=orders)
    assert rig.output() == [(f"i{number}", 9) for number in range(9)]


def test_subtasks_that_would_differ_fail_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path)
    limited(rig)
    with pytest.raises(BroadcastDivergedError):
        rig.runner.run(rig.frame(rules=[("subtask", 1)]), rig.committed)


def test_an_operator_knows_the_watermark_of_each_source_of_a_union(spark: SparkSession, tmp_path: Path) -> None:
    rig = Rig(spark, tmp_path)
    left, right = (rig.source(uid, ORDERS).with_timestamps("at") for uid in ("left", "right"))
    together = left.union(right).where("item is not null")
    unique = together.key_by("order").deduplicate().uid("unique")
    rig.begin(unique.key_by("item").deduplicate().uid("items"))
    outcome = rig.run(left=[("a", "x", 1), ("b", "y", 30)], right=[("a", "x", 20), ("c", None, 99)])
    assert outcome.latest_of_origins() == {"unique": {"left": 30, "right": 20}}
    assert len(rig.output()) == 2
