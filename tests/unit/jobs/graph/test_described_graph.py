"""The graph that the control plane shows: sources, operators and sinks, joined where records go between them."""

from __future__ import annotations

from keyscale.jobs.graph.described_graph import describe
from keyscale.jobs.graph.topology import TopologyBuilder
from tests.unit.jobs.graph.test_topology import SCHEMA, frame, named_sink, operator


def test_steps_between_operators_are_left_out_and_their_ends_joined() -> None:
    builder = TopologyBuilder()
    left, right = builder.add_source(frame(), SCHEMA), builder.add_source(frame(), SCHEMA)
    builder.name(left, "left")
    builder.name(right, "right")
    both = builder.add_transform(builder.add_union([left, right]), lambda whole: whole, SCHEMA)
    unique = operator(builder, both, "id", uid="unique")
    totals = operator(builder, unique, "aircraft", uid="totals")
    named_sink(builder, unique, "records")
    named_sink(builder, totals, "files")
    assert [(node.kind, node.uid, node.inputs) for node in describe(builder.build())] == [
        ("SOURCE", "left", []),
        ("SOURCE", "right", []),
        ("OPERATOR", "unique", ["left", "right"]),
        ("OPERATOR", "totals", ["unique"]),
        ("SINK", "records", ["unique"]),
        ("SINK", "files", ["totals"]),
    ]


def test_an_only_source_without_a_uid_has_its_usual_name() -> None:
    builder = TopologyBuilder()
    named_sink(builder, operator(builder, builder.add_source(frame(), SCHEMA), "id", uid="unique"), "files")
    source, unique, _ = describe(builder.build())
    assert (source.uid, unique.inputs) == ("source", ["source"])
