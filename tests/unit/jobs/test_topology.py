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
    UnknownColumnError,
)
from jobs.topology import NodeId, SinkNode, TopologyBuilder, TransformNode, key_schema

if TYPE_CHECKING:
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
    assert topology.source.schema == SCHEMA
    assert topology.operators[1].key_schema == pa.schema([("aircraft", pa.string())])
    assert topology.consumers(unique) == (topology.operators[1],)


def test_the_operator_before_a_sink_is_found_through_transforms(builder: TopologyBuilder, source: NodeId) -> None:
    unique = operator(builder, source, "id", uid="unique")
    narrowed = builder.add_transform(unique, lambda whole: whole, SCHEMA)
    named_sink(builder, narrowed, "files")
    topology = builder.build()
    before = topology.operator_before(topology.sinks[0].input)
    assert before is topology.operators[0]
    assert topology.operator_before(source) is None
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
        builder.name(source, "source")


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


def test_a_job_has_exactly_one_source(builder: TopologyBuilder) -> None:
    with pytest.raises(InvalidTopologyError, match="0 sources"):
        builder.build()
    builder.add_source(frame(), SCHEMA)
    named_sink(builder, builder.add_source(frame(), SCHEMA), "files")
    with pytest.raises(InvalidTopologyError, match="2 sources"):
        builder.build()


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
