"""A job that cannot run is refused while it is declared, with a code and the name of what to correct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from jobs.deduplicate import Deduplicate
from jobs.errors import (
    DuplicateUidError,
    InvalidKeyError,
    InvalidSchemaError,
    InvalidTopologyError,
    InvalidUidError,
    MissingUidError,
    NoSinkError,
    UnionSchemaError,
    UnknownColumnError,
)
from jobs.nodes import SecondInput
from jobs.topology import NodeId, SinkNode, Timestamps, Topology, TopologyBuilder, TransformNode, key_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from jobs.sinks import Sink

SCHEMA = pa.schema([("id", pa.string()), ("aircraft", pa.string()), ("delay", pa.float64())])


@dataclass(frozen=True)
class Declared:
    """Stands for a frame or a sink, of which a topology only knows that it is there."""

    what: str


def frame() -> DataFrame:
    return cast("DataFrame", Declared("frame"))


def sink() -> Sink:
    return cast("Sink", Declared("sink"))


def operator(builder: TopologyBuilder, source: NodeId, *key: str, uid: str | None = None) -> NodeId:
    node = builder.add_operator(source, key_columns=key, logic=Deduplicate(None), schema=SCHEMA, timestamp_column=None)
    if uid is not None:
        builder.name(node, uid)
    return node


def named_sink(builder: TopologyBuilder, source: NodeId, uid: str) -> None:
    builder.name(builder.add_sink(source, sink()), uid)


@pytest.fixture
def builder() -> TopologyBuilder:
    return TopologyBuilder()


@pytest.fixture
def source(builder: TopologyBuilder) -> NodeId:
    return builder.add_source(frame(), SCHEMA)


def test_a_chain_of_two_operators_and_a_sink_is_a_topology_in_order(builder: TopologyBuilder, source: NodeId) -> None:
    unique = operator(builder, source, "id", uid="unique")
    totals = operator(builder, unique, "aircraft", uid="totals")
    named_sink(builder, totals, "files")
    topology = builder.build()
    assert [node.uid for node in topology.operators] == ["unique", "totals"]
    assert [node.uid for node in topology.sinks] == ["files"]
    assert topology.sources[0].schema == SCHEMA
    assert topology.operators[1].key_schema == pa.schema([("aircraft", pa.string())])
    assert topology.consumers(unique) == (topology.operators[1],)


def test_the_operator_before_a_sink_is_found_through_transforms(builder: TopologyBuilder, source: NodeId) -> None:
    unique = operator(builder, source, "id", uid="unique")
    narrowed = builder.add_transform(unique, lambda whole: whole, SCHEMA)
    named_sink(builder, narrowed, "files")
    topology = builder.build()
    (before,) = topology.operators_before(topology.sinks[0].input)
    assert before is topology.operators[0]
    assert topology.operators_before(source) == ()
    assert isinstance(topology.nodes[narrowed], TransformNode)


def test_two_sinks_of_one_stream_are_its_two_consumers(builder: TopologyBuilder, source: NodeId) -> None:
    unique = operator(builder, source, "id", uid="unique")
    named_sink(builder, unique, "left")
    named_sink(builder, unique, "right")
    consumers = builder.build().consumers(unique)
    assert [node.uid for node in consumers if isinstance(node, SinkNode)] == ["left", "right"]


def test_an_operator_without_a_uid_is_refused_and_named_by_its_key(builder: TopologyBuilder, source: NodeId) -> None:
    named_sink(builder, operator(builder, source, "id"), "files")
    with pytest.raises(MissingUidError, match="keyed by id"):
        builder.build()


def test_a_sink_without_a_uid_is_refused(builder: TopologyBuilder, source: NodeId) -> None:
    builder.add_sink(source, sink())
    with pytest.raises(MissingUidError, match="sink"):
        builder.build()


def test_one_uid_for_two_is_refused_even_for_an_operator_and_a_sink(builder: TopologyBuilder, source: NodeId) -> None:
    named_sink(builder, operator(builder, source, "id", uid="same"), "same")
    with pytest.raises(DuplicateUidError, match="same"):
        builder.build()


@pytest.mark.parametrize("uid", ["", "a/b", "../x", ".hidden", "a b", "ü", "x" * 101, "new\nline"])
def test_a_uid_that_no_path_can_hold_is_refused(builder: TopologyBuilder, source: NodeId, uid: str) -> None:
    node = operator(builder, source, "id")
    with pytest.raises(InvalidUidError):
        builder.name(node, uid)


def test_a_uid_on_something_without_state_is_refused(builder: TopologyBuilder, source: NodeId) -> None:
    with pytest.raises(InvalidTopologyError, match="neither"):
        builder.name(builder.add_transform(source, lambda whole: whole, SCHEMA), "transformed")


def test_a_second_uid_for_one_operator_is_refused(builder: TopologyBuilder, source: NodeId) -> None:
    node = operator(builder, source, "id", uid="first")
    with pytest.raises(InvalidTopologyError, match="first"):
        builder.name(node, "second")


def test_a_job_without_a_sink_is_refused(builder: TopologyBuilder, source: NodeId) -> None:
    operator(builder, source, "id", uid="unique")
    with pytest.raises(NoSinkError):
        builder.build()


def test_an_operator_whose_output_goes_nowhere_is_refused_by_name(builder: TopologyBuilder, source: NodeId) -> None:
    operator(builder, source, "id", uid="dangling")
    named_sink(builder, source, "files")
    with pytest.raises(NoSinkError, match="dangling"):
        builder.build()


def test_a_job_has_a_source(builder: TopologyBuilder) -> None:
    with pytest.raises(InvalidTopologyError, match="no source"):
        builder.build()


def test_an_only_source_needs_no_uid(builder: TopologyBuilder, source: NodeId) -> None:
    named_sink(builder, source, "files")
    assert [node.uid for node in builder.build().sources] == ["source"]


def test_each_of_several_sources_needs_a_uid_of_its_own(builder: TopologyBuilder, source: NodeId) -> None:
    other = builder.add_source(frame(), SCHEMA)
    named_sink(builder, builder.add_union([source, other]), "files")
    builder.name(source, "left")
    with pytest.raises(MissingUidError, match="one of several sources, that of id, aircraft, delay"):
        builder.build()
    builder.name(other, "left")
    with pytest.raises(DuplicateUidError, match="left"):
        builder.build()


def test_a_source_may_be_named_after_it_was_given_timestamps(builder: TopologyBuilder, source: NodeId) -> None:
    timed = builder.add_timestamps(source, Timestamps("delay"))
    builder.name(timed, "clicks")
    named_sink(builder, timed, "files")
    assert [node.uid for node in builder.build().sources] == ["clicks"]


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            pa.schema([*list(SCHEMA)[:2], ("delay", pa.int64())]),
            r"column 3 of stream 2 .* 'delay' \(int64\).*'delay' \(double\)",
        ),
        (pa.schema(list(SCHEMA)[:2]), "column 3 of stream 2 of the union is missing"),
        (pa.schema([*SCHEMA, ("more", pa.int64())]), "that of the first one is missing"),
        (pa.schema(list(SCHEMA)[::-1]), "column 1"),
    ],
)
def test_a_union_of_different_columns_is_refused_and_says_which(
    builder: TopologyBuilder, source: NodeId, other: pa.Schema, difference: str
) -> None:
    with pytest.raises(UnionSchemaError, match=difference):
        builder.add_union([source, builder.add_source(frame(), other)])


def test_a_column_of_a_union_may_be_null_if_it_may_be_in_one_stream(builder: TopologyBuilder, source: NodeId) -> None:
    strict = pa.schema([field.with_nullable(False) for field in SCHEMA])
    filled = builder.add_source(frame(), strict)
    assert builder.schema(builder.add_union([filled, filled])) == strict
    assert builder.schema(builder.add_union([filled, source])) == SCHEMA


def test_the_origins_of_a_stream_are_found_on_every_way_with_the_nearest_timestamps(
    builder: TopologyBuilder, source: NodeId
) -> None:
    other = builder.add_timestamps(builder.add_source(frame(), SCHEMA), Timestamps("delay", 7, 1000))
    unique = operator(builder, source, "id", uid="unique")
    late, later = (builder.add_timestamps(source, Timestamps("delay", bound, 500)) for bound in (3, 4))
    together = builder.add_union([other, unique, late, later])
    named_sink(builder, builder.add_transform(together, lambda whole: whole, SCHEMA), "files")
    topology = Topology(tuple(builder._nodes))
    found = {origin.node.id: origin.timestamps for origin in topology.origins(topology.sinks[0].input)}
    assert found == {1: Timestamps("delay", 7, 1000), unique: None, source: Timestamps("delay", 4, 500)}
    over_all = builder.add_timestamps(together, Timestamps("delay", 9))
    topology = Topology(tuple(builder._nodes))
    assert {origin.timestamps for origin in topology.origins(over_all)} == {Timestamps("delay", 9)}


def test_an_operator_reads_all_of_a_job_if_nothing_else_reads_or_changes_its_only_source(
    builder: TopologyBuilder, source: NodeId
) -> None:
    timed = builder.add_timestamps(source, Timestamps("delay"))
    unique = operator(builder, timed, "id", uid="unique")
    named_sink(builder, operator(builder, unique, "id", uid="behind"), "files")
    topology = builder.build()
    assert topology.reader_of_all() is topology.nodes[unique]


def with_another_source(builder: TopologyBuilder, source: NodeId) -> NodeId:
    builder.name(source, "one")
    other = builder.add_source(frame(), SCHEMA)
    builder.name(other, "two")
    named_sink(builder, other, "other")
    return source


def with_another_reader(builder: TopologyBuilder, source: NodeId) -> NodeId:
    named_sink(builder, source, "as-it-is")
    return source


@pytest.mark.parametrize(
    "changed",
    [
        with_another_source,
        with_another_reader,
        lambda builder, source: builder.add_transform(source, lambda whole: whole, SCHEMA),
        lambda builder, source: builder.add_union([source, source]),
    ],
    ids=["a second source", "a second reader", "a transform", "a union"],
)
def test_no_operator_reads_all_of_a_job_else(
    builder: TopologyBuilder, source: NodeId, changed: Callable[[TopologyBuilder, NodeId], NodeId]
) -> None:
    named_sink(builder, operator(builder, changed(builder, source), "id", uid="unique"), "files")
    assert Topology(tuple(builder._nodes)).reader_of_all() is None


def test_no_operator_reads_all_of_a_job_if_it_takes_the_source_twice(builder: TopologyBuilder, source: NodeId) -> None:
    paired = builder.add_operator(
        source,
        key_columns=("id",),
        logic=Deduplicate(None),
        schema=SCHEMA,
        timestamp_column=None,
        second=SecondInput(source, SCHEMA, ("id",)),
    )
    named_sink(builder, paired, "files")
    assert Topology(tuple(builder._nodes)).reader_of_all() is None


def test_a_key_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnknownColumnError, match=r"'tail'.*id, aircraft, delay"):
        key_schema(SCHEMA, ("id", "tail"))


@pytest.mark.parametrize("key", [(), ("id", "id")])
def test_a_key_is_one_or_more_different_columns(key: tuple[str, ...]) -> None:
    with pytest.raises(InvalidKeyError):
        key_schema(SCHEMA, key)


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.map_(pa.string(), pa.int64())),
        pa.struct([("inner", pa.map_(pa.string(), pa.int64()))]),
    ],
)
def test_a_map_is_no_key_however_deep_it_is(kind: Any) -> None:
    with pytest.raises(InvalidKeyError, match="map"):
        key_schema(pa.schema([("key", kind)]), ("key",))


def test_keys_may_be_null_and_keep_their_order() -> None:
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("aircraft", pa.string())])
    assert key_schema(schema, ("aircraft", "id")) == pa.schema([("aircraft", pa.string()), ("id", pa.string())])


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (pa.schema([]), "no columns"),
        (pa.schema([("a", pa.int64()), ("a", pa.string())]), "more than one column named a"),
        (pa.schema([("__subtask", pa.int32())]), "__subtask"),
    ],
)
def test_schemas_that_cannot_be_a_streams_are_refused(builder: TopologyBuilder, schema: pa.Schema, what: str) -> None:
    with pytest.raises(InvalidSchemaError, match=what):
        builder.add_source(frame(), schema)
