"""Subtasks write to a sink themselves only if it is the one reader of their rows and can take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa
import pytest

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.functions.process_function import OutputTag
from keyscale.jobs.graph.nodes import NodeId, Timestamps
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.runtime.batch.direct_edges import carries_no_rows, direct_edges
from keyscale.jobs.runtime.executor.task_reports import TaskReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyscale.jobs.graph.topology import Topology
    from keyscale.jobs.sinks.sink import DirectOutput, DirectStaging, Sink, SinkContext

SCHEMA = pa.schema([("id", pa.string()), ("at", pa.int64())])


class Staging:
    """Notes the gathered parts."""

    def __init__(self) -> None:
        self.gathered: list[tuple[str, Sequence[str]]] = []

    def begin(self, context: SinkContext) -> DirectOutput:
        raise NotImplementedError

    def gather(self, token: str, parts: Sequence[str]) -> None:
        self.gathered.append((token, parts))


@dataclass
class PlainSink:
    """A sink that only Spark can write to."""

    reads_repeatedly: ClassVar[bool] = False

    def prepare(self, frame: Any, context: SinkContext) -> str:
        raise NotImplementedError

    def publish(self, token: str) -> None: ...

    def discard(self, token: str) -> None: ...

    def recover(self, context: SinkContext) -> None: ...


@dataclass
class OfferingSink(PlainSink):
    """A sink that takes rows from subtasks if it has a `staging`."""

    staging: Staging | None = None
    asked: pa.Schema | None = None

    def direct(self, schema: pa.Schema) -> DirectStaging | None:
        self.asked = schema
        return self.staging


def built(declare: Callable[[TopologyBuilder, NodeId], list[tuple[NodeId, Sink]]], *tags: OutputTag) -> Topology:
    """A job of one operator and of the nodes that a test declares after it."""
    builder = TopologyBuilder()
    source = builder.add_source(cast("Any", object()), SCHEMA)
    operator = builder.add_operator(
        source, key_columns=("id",), logic=Deduplicate(None), schema=SCHEMA, timestamp_column=None, side_outputs=tags
    )
    builder.name(operator, "first")
    for at, (node, sink) in enumerate(declare(builder, operator)):
        builder.name(builder.add_sink(node, sink), f"sink-{at}")
    return builder.build()


def test_subtasks_write_to_a_sink_that_follows_their_operator() -> None:
    sink = OfferingSink(Staging())
    (edge,) = direct_edges(built(lambda _, operator: [(operator, sink)]))
    assert (edge.operator.uid, edge.sink.uid, edge.staging) == ("first", "sink-0", sink.staging)
    assert sink.asked == SCHEMA


@pytest.mark.parametrize("sink", [PlainSink(), OfferingSink(None)])
def test_a_sink_that_takes_no_rows_from_subtasks_gets_them_from_spark(sink: Sink) -> None:
    assert direct_edges(built(lambda _, operator: [(operator, sink)])) == ()


@pytest.mark.parametrize(
    "declare",
    [
        lambda builder, operator: [
            (builder.add_transform(operator, lambda frame: frame, SCHEMA), OfferingSink(Staging()))
        ],
        lambda builder, operator: [(builder.add_timestamps(operator, Timestamps("at")), OfferingSink(Staging()))],
        lambda _, operator: [(operator, OfferingSink(Staging())), (operator, OfferingSink(Staging()))],
        lambda _, operator: [(NodeId(0), OfferingSink(Staging())), (operator, PlainSink())],
    ],
)
def test_rows_with_another_reader_or_another_origin_go_through_spark(declare: Any) -> None:
    assert direct_edges(built(declare)) == ()


def test_an_operator_with_side_outputs_emits_all_of_them_to_spark() -> None:
    tag = OutputTag("late", SCHEMA)
    topology = built(
        lambda builder, operator: [
            (operator, OfferingSink(Staging())),
            (builder.add_side_output(operator, tag), OfferingSink(Staging())),
        ],
        tag,
    )
    assert direct_edges(topology) == ()


def test_the_parts_of_the_reports_are_gathered() -> None:
    staging = Staging()
    (edge,) = direct_edges(built(lambda _, operator: [(operator, OfferingSink(staging))]))
    parts = ["a", None, "b"]
    edge.gather(
        "t", [TaskReport("run", OperatorUid("first"), SubtaskIndex(at), part=part) for at, part in enumerate(parts)]
    )
    assert staging.gathered == [("t", ["a", "b"])]


def operator_behind(builder: TopologyBuilder, operator: NodeId) -> NodeId:
    behind = builder.add_operator(
        operator, key_columns=("id",), logic=Deduplicate(None), schema=SCHEMA, timestamp_column=None
    )
    builder.name(behind, "second")
    return behind


def test_without_input_no_frames_are_needed_if_subtasks_write_to_all_sinks_and_none_to_another_operator() -> None:
    def carries(declare: Callable[[TopologyBuilder, NodeId], list[tuple[NodeId, Sink]]]) -> bool:
        topology = built(declare)
        return not carries_no_rows(topology, direct_edges(topology))

    sink = OfferingSink(Staging())
    assert not carries(lambda _, operator: [(operator, sink)])
    assert carries(lambda _, operator: [(operator, PlainSink())])
    assert carries(lambda _, operator: [(operator, sink), (NodeId(0), PlainSink())])
    assert carries(lambda builder, operator: [(operator_behind(builder, operator), sink)])
