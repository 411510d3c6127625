"""A job that cannot run is refused when it is declared, with a code and a message that names the mistake."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.jobs.errors import (
    DuplicateUidError,
    InvalidKeyError,
    InvalidSchemaError,
    InvalidTopologyError,
    InvalidUidError,
    JobError,
    MissingUidError,
    NoSinkError,
    NotPicklableError,
    UnionSchemaError,
    UnknownColumnError,
)
from keyscale.jobs.functions.process_function import OutputTag
from keyscale.jobs.graph.nodes import (
    NodeId,
    RecordOrigin,
    SecondInput,
    SinkNode,
    SourceNode,
    Timestamps,
    TransformNode,
    union_timestamps,
)
from keyscale.jobs.graph.schemas import key_schema
from keyscale.jobs.graph.topology import Topology, TopologyBuilder
from keyscale.jobs.operators.aggregate import Reduce
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.failures import origin_of, with_script_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from keyscale.jobs.sinks.sink import Sink

SCHEMA = pa.schema([("id", pa.string()), ("aircraft", pa.string()), ("delay", pa.float64())])


@dataclass(frozen=True)
class Declared:
    """Stands for a frame or a sink; a topology only holds it."""

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


def test_two_sinks_of_a_stream_are_its_consumers(builder: TopologyBuilder, source: NodeId) -> None:
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


def test_a_uid_that_is_used_twice_is_refused_even_for_an_operator_and_a_sink(
    builder: TopologyBuilder, source: NodeId
) -> None:
    named_sink(builder, operator(builder, source, "id", uid="same"), "same")
    with pytest.raises(DuplicateUidError, match="same"):
        builder.build()


def without_uid(builder: TopologyBuilder, source: NodeId) -> None:
    named_sink(builder, operator(builder, source, "id"), "files")  # the place of the first


def without_uid_of_a_sink(builder: TopologyBuilder, source: NodeId) -> None:
    builder.add_sink(source, sink())  # the place of the second


def with_one_uid_twice(builder: TopologyBuilder, source: NodeId) -> None:
    named_sink(builder, operator(builder, source, "id", uid="same"), "same")  # the place of the third


def without_a_sink_after_an_operator(builder: TopologyBuilder, source: NodeId) -> None:
    named_sink(builder, source, "raw")
    operator(builder, source, "id", uid="lost")  # the place of the fourth


def with_a_lock(builder: TopologyBuilder, source: NodeId) -> None:
    logic = Reduce(partial(max, key=threading.Lock()), None)
    largest = builder.add_operator(  # the place of the fifth
        source, key_columns=("id",), logic=logic, schema=SCHEMA, timestamp_column=None
    )
    builder.name(largest, "largest")
    named_sink(builder, largest, "files")


@pytest.mark.parametrize(
    ("declare", "place"),
    [
        (without_uid, "first"),
        (without_uid_of_a_sink, "second"),
        (with_one_uid_twice, "third"),
        (without_a_sink_after_an_operator, "fourth"),
        (with_a_lock, "fifth"),
    ],
)
def test_an_error_of_the_whole_graph_has_the_lines_that_declared_the_node(
    builder: TopologyBuilder, source: NodeId, declare: Callable[[TopologyBuilder, NodeId], None], place: str
) -> None:
    declare(builder, source)
    with pytest.raises(JobError) as caught:
        builder.build()
    shown = origin_of(with_script_lines(caught.value)).user_traceback or ""
    assert f"# the place of the {place}" in shown
    assert "builder.build()" not in shown


@pytest.mark.parametrize("uid", ["", "a/b", "../x", ".hidden", "a b", "ü", "x" * 101, "new\nline"])
def test_a_uid_that_cannot_be_part_of_a_path_is_refused(builder: TopologyBuilder, source: NodeId, uid: str) -> None:
    node = operator(builder, source, "id")
    with pytest.raises(InvalidUidError):
        builder.name(node, uid)


def test_a_uid_on_something_without_state_is_refused(builder: TopologyBuilder, source: NodeId) -> None:
    with pytest.raises(InvalidTopologyError, match="not a source"):
        builder.name(builder.add_transform(source, lambda whole: whole, SCHEMA), "transformed")


def test_a_second_uid_for_one_operator_is_refused(builder: TopologyBuilder, source: NodeId) -> None:
    node = operator(builder, source, "id", uid="first")
    with pytest.raises(InvalidTopologyError, match="first"):
        builder.name(node, "second")


def test_a_job_without_a_sink_is_refused(builder: TopologyBuilder, source: NodeId) -> None:
    operator(builder, source, "id", uid="unique")
    with pytest.raises(NoSinkError):
        builder.build()


def test_an_operator_whose_output_reaches_no_sink_is_refused_by_name(builder: TopologyBuilder, source: NodeId) -> None:
    operator(builder, source, "id", uid="dangling")
    named_sink(builder, source, "files")
    with pytest.raises(NoSinkError, match="dangling"):
        builder.build()


def test_a_job_without_a_source_is_refused(builder: TopologyBuilder) -> None:
    with pytest.raises(InvalidTopologyError, match="no source"):
        builder.build()


def test_an_only_source_needs_no_uid(builder: TopologyBuilder, source: NodeId) -> None:
    named_sink(builder, source, "files")
    assert [node.uid for node in builder.build().sources] == ["source"]


def test_each_of_several_sources_needs_its_own_uid(builder: TopologyBuilder, source: NodeId) -> None:
    other = builder.add_source(frame(), SCHEMA)
    named_sink(builder, builder.add_union([source, other]), "files")
    builder.name(source, "left")
    with pytest.raises(MissingUidError, match="one of several sources, with the columns id, aircraft, delay"):
        builder.build()
    builder.name(other, "left")
    with pytest.raises(DuplicateUidError, match="left"):
        builder.build()


def test_a_source_may_be_named_after_timestamps_are_assigned(builder: TopologyBuilder, source: NodeId) -> None:
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
        (pa.schema([*SCHEMA, ("more", pa.int64())]), "in the first stream it is missing"),
        (pa.schema(list(SCHEMA)[::-1]), "column 1"),
    ],
)
def test_a_union_of_different_columns_is_refused_and_names_the_difference(
    builder: TopologyBuilder, source: NodeId, other: pa.Schema, difference: str
) -> None:
    with pytest.raises(UnionSchemaError, match=difference):
        builder.add_union([source, builder.add_source(frame(), other)])


def test_a_column_of_a_union_is_nullable_if_it_is_in_one_stream(builder: TopologyBuilder, source: NodeId) -> None:
    strict = pa.schema([field.with_nullable(False) for field in SCHEMA])
    filled = builder.add_source(frame(), strict)
    assert builder.schema(builder.add_union([filled, filled])) == strict
    assert builder.schema(builder.add_union([filled, source])) == SCHEMA


def test_the_origins_of_a_stream_are_found_on_every_path_with_the_nearest_timestamps(
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


def test_an_operator_reads_all_records_if_nothing_else_reads_or_changes_the_only_source(
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
def test_otherwise_no_operator_reads_all_records(
    builder: TopologyBuilder, source: NodeId, changed: Callable[[TopologyBuilder, NodeId], NodeId]
) -> None:
    named_sink(builder, operator(builder, changed(builder, source), "id", uid="unique"), "files")
    assert Topology(tuple(builder._nodes)).reader_of_all() is None


def test_an_operator_with_two_inputs_from_the_source_is_not_the_reader_of_all(
    builder: TopologyBuilder, source: NodeId
) -> None:
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


EVENTS = pa.schema([("id", pa.string()), ("at", pa.int64()), ("part", pa.int32())])


def paired(builder: TopologyBuilder) -> Topology:
    """Returns an operator over two streams, each with sources, splits, times and limits of its own."""
    orders = builder.add_source(frame(), SCHEMA, ("aircraft",), carries_split=True)
    more = builder.add_source(frame(), SCHEMA)
    events = builder.add_source(frame(), EVENTS, ("part",))
    for name, node in (("orders", orders), ("more", more), ("events", events)):
        builder.name(node, name)
    timed = builder.add_timestamps(orders, Timestamps("delay", 5, 100, ("aircraft",), 1000))
    short = builder.add_transform(timed, lambda whole: whole, SHORT, carries_split=True)
    others = builder.add_timestamps(more, Timestamps("delay", 7, None, ("id",)))
    other = builder.add_transform(others, lambda whole: whole, SHORT)
    first = builder.add_union([short, other])
    late = builder.add_timestamps(events, Timestamps("at", 9, 300, ("part",), None))
    unique = builder.add_operator(
        events, key_columns=("id",), logic=Deduplicate(None), schema=EVENTS, timestamp_column="at"
    )
    builder.name(unique, "unique")
    second = builder.add_union([late, builder.add_timestamps(unique, Timestamps("at", 11, 400, ("part",)))])
    node = builder.add_operator(
        first,
        key_columns=("id",),
        logic=Deduplicate(None),
        schema=SHORT,
        timestamp_column="delay",
        out_of_orderness_ms=70,
        max_ahead_ms=700,
        second=SecondInput(second, EVENTS, ("id",), "at", 90, 900),
        side_outputs=[OutputTag("late", EVENTS)],
    )
    builder.name(node, "paired")
    named_sink(builder, node, "files")
    named_sink(builder, builder.add_side_output(node, OutputTag("late", EVENTS)), "late")
    return builder.build()


SHORT = pa.schema([("id", pa.string()), ("delay", pa.float64())])


def test_each_input_of_an_operator_has_arrivals_with_its_own_times_and_splits(builder: TopologyBuilder) -> None:
    topology = paired(builder)
    node = topology.operators[-1]
    found = [
        (
            each.name,
            each.timestamp_column,
            each.bound_ms,
            each.out_of_orderness_ms,
            each.splits_name,
            each.carries_split,
        )
        for each in topology.arrivals(node)
    ]
    assert found == [
        ("orders", "delay", 5, 70, "orders(aircraft)", True),
        ("more", "delay", 7, 70, "more(id)", False),
        ("second:events", "at", 9, 90, "second:events(part)", False),
        ("second:operator:unique", "at", 11, 90, "second:operator:unique(part)", False),
    ]
    assert [each.follows_operator for each in topology.arrivals(node)] == [False] * 4
    (of_events,) = topology.arrivals(topology.operators[0])
    assert (of_events.name, of_events.bound_ms, of_events.splits_name) == ("events", 0, "events()")
    assert [topology.follows_sources_alone(each) for each in topology.operators] == [True, False]
    assert topology.operators_before(topology.sinks[0].input) == (node,)
    assert topology.operators_before(node.second.node if node.second else node.id) == (topology.operators[0],)
    assert [
        topology.meets_others(each)
        for each in [*(of.id for of in topology.sources), *(of.id for of in topology.operators)]
    ] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert (node.out_of_orderness_ms, node.max_ahead_ms, node.side_outputs) == (70, 700, {"late": EVENTS})
    assert [topology.schema(each.input) for each in topology.sinks] == [SHORT, EVENTS]
    for ask in (topology.schema, builder.schema):
        with pytest.raises(InvalidTopologyError, match="no output stream"):
            ask(topology.sinks[0].id)


def test_records_that_meet_no_others_before_the_next_operator_are_alone(
    builder: TopologyBuilder, source: NodeId
) -> None:
    changed = builder.add_transform(builder.add_timestamps(source, Timestamps("delay")), lambda whole: whole, SCHEMA)
    unique = operator(builder, changed, "id", uid="unique")
    united = builder.add_union([unique, source])
    named_sink(builder, united, "files")
    topology = builder.build()
    assert [topology.meets_others(node) for node in (changed, unique, united)] == [False, True, False]
    assert topology.meets_others(source), "beside the operator, it is in the union"


def test_records_are_passed_on_as_often_as_there_are_ways_for_all_of_them(
    builder: TopologyBuilder, source: NodeId
) -> None:
    other = builder.add_source(frame(), SCHEMA)
    timed = builder.add_timestamps(source, Timestamps("delay"))
    twice = builder.add_union([source, timed, other])
    thrice = builder.add_union([twice, source])
    filtered = builder.add_union([builder.add_transform(source, lambda whole: whole, SCHEMA), source])
    topology = Topology(tuple(builder._nodes))
    nodes = (source, other, timed, twice, thrice, filtered)
    assert [topology.times_passed_on(node, source) for node in nodes] == [1, 0, 1, 2, 3, 0]
    assert [topology.times_passed_on(node, other) for node in nodes] == [0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (None, Timestamps("a", 3), Timestamps("a", 3)),
        (Timestamps("a", 3), None, Timestamps("a", 3)),
        (
            Timestamps("a", 3, 10, ("p",), 100),
            Timestamps("b", 2, 20, ("p",), 50),
            Timestamps("a", 3, 20, ("p",), 100),
        ),
        (Timestamps("a", 1, None, ("p",), 5), Timestamps("a", 2, 20, ("q",), None), Timestamps("a", 2)),
        (Timestamps("a", 1, 20, (), 0), Timestamps("a", 1, None, (), 0), Timestamps("a", 1, None, (), 0)),
    ],
)
def test_two_ways_of_one_origin_have_the_larger_bounds_of_both(
    builder: TopologyBuilder, one: Timestamps | None, other: Timestamps | None, joined: Timestamps
) -> None:
    builder.add_source(frame(), SCHEMA)
    (node,) = (each for each in builder._nodes if isinstance(each, SourceNode))
    assert RecordOrigin(node, one).joined(RecordOrigin(node, other)) == RecordOrigin(node, joined)


@pytest.mark.parametrize(
    ("given", "united"),
    [
        ([None, None], None),
        (
            [Timestamps("at", 5, 10, ("p",), 7), Timestamps("at", 9, 20, ("p",), 3)],
            Timestamps("at", 9, None, ("p",), 7),
        ),
        (
            [Timestamps("at", 9, max_ahead_ms=0), Timestamps("at", 5, max_ahead_ms=2)],
            Timestamps("at", 9, max_ahead_ms=2),
        ),
        ([Timestamps("at", 0, 1, ("p",), 7), Timestamps("at", 0, 1, ("q",), None)], Timestamps("at")),
    ],
)
def test_a_union_has_the_larger_bounds_of_its_streams(
    given: list[Timestamps | None], united: Timestamps | None
) -> None:
    assert union_timestamps(given) == united
    assert union_timestamps(given[::-1]) == united


def test_an_unknown_key_column_is_refused_and_the_error_lists_the_columns() -> None:
    with pytest.raises(UnknownColumnError, match=r"'tail'.*id, aircraft, delay"):
        key_schema(SCHEMA, ("id", "tail"))


@pytest.mark.parametrize(("given", "shown"), [(["id"], "list"), (len, "builtin_function_or_method"), (1, "int")])
def test_a_key_column_that_is_not_given_by_its_name_is_refused_by_its_kind(given: Any, shown: str) -> None:
    with pytest.raises(InvalidTopologyError, match=rf"is given as a {shown}; give the names as text"):
        key_schema(SCHEMA, (given,))


@pytest.mark.parametrize("key", [(), ("id", "id")])
def test_a_key_has_one_or_more_different_columns(key: tuple[str, ...]) -> None:
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
def test_a_map_cannot_be_in_a_key_at_any_depth(kind: Any) -> None:
    with pytest.raises(InvalidKeyError, match="map"):
        key_schema(pa.schema([("key", kind)]), ("key",))


def test_key_columns_are_nullable_and_keep_their_order() -> None:
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
def test_schemas_that_a_stream_cannot_have_are_refused(builder: TopologyBuilder, schema: pa.Schema, what: str) -> None:
    with pytest.raises(InvalidSchemaError, match=what):
        builder.add_source(frame(), schema)


def test_a_function_that_cannot_be_sent_to_workers_is_refused(builder: TopologyBuilder, source: NodeId) -> None:
    reduce = Reduce(partial(max, key=threading.Lock()), None)
    node = builder.add_operator(source, key_columns=("id",), logic=reduce, schema=SCHEMA, timestamp_column=None)
    builder.name(node, "largest")
    named_sink(builder, node, "files")
    with pytest.raises(NotPicklableError, match=r"^operator 'largest' cannot be sent .* because of partial"):
        builder.build()
