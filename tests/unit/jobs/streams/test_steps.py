"""Stateless steps and sources keep the times and the splits of their records, as far as they can be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from keyscale import DataStream, StreamEnvironment
from keyscale.jobs.errors import InvalidTopologyError, NoEnvironmentError, NotStreamingError, UnknownColumnError
from keyscale.jobs.graph.nodes import Timestamps, TransformNode
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.operator_contract import SPLIT_COLUMN
from keyscale.jobs.sources import carried_split
from keyscale.jobs.sources.carried_split import with_split_of_source
from keyscale.jobs.streams import streams
from tests.support.sinks.driver import Host
from tests.support.spark import played_columns
from tests.support.spark.played_frame import PlayedFrame, PlayedSession, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.jobs.graph.nodes import Arrival

MARK = "keyscale.split"
FIELDS = [
    StructField("topic", StringType(), metadata={MARK: [0, 2]}),
    StructField("part", IntegerType(), metadata={MARK: [1, 2]}),
    StructField("at", LongType()),
    StructField("user", StringType()),
]
ROWS: list[dict[str, object]] = [
    {"topic": "a/b", "part": 1, "at": 10, "user": "ada"},
    {"topic": "c\\", "part": None, "at": 20, "user": "bob"},
    {"topic": None, "part": 3, "at": 30, "user": "ada"},
]
SPLITS = ["a\\/b/1", "c\\\\/None", "None/3"]
SESSION = PlayedSession(Host())


def frame_with(*fields: StructField) -> Any:
    return frame_of(*ROWS, schema=StructType(list(fields)))


def carried(
    frame: PlayedFrame, name: str, step_with_column: Callable[[PlayedFrame], PlayedFrame | None]
) -> PlayedFrame | None:
    """Plays the way through Spark's plan: only the last step is asked."""
    found = step_with_column(frame)
    assert found is None or name in found.columns
    return found


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (streams, carried_split):
        monkeypatch.setattr(module, "F", played_columns)
    monkeypatch.setattr(carried_split, "carried", carried)
    monkeypatch.setattr(streams, "reads_once", lambda result: "user" in result.columns)


def declared(**times: Any) -> tuple[TopologyBuilder, DataStream]:
    env = StreamEnvironment(cast("Any", SESSION), {}, lambda _: None)
    return env._builder, env.stream(frame_with(*FIELDS), timestamp="at", **times)


def added(builder: TopologyBuilder) -> TransformNode:
    node = builder._nodes[-1]
    assert isinstance(node, TransformNode)
    return node


def arrival(builder: TopologyBuilder, stream: DataStream, key: str = "user") -> Arrival:
    last = stream.key_by(key).reduce(lambda left, _: left).uid("last")
    last.sink_to(cast("Any", None)).uid("sink")
    topology = builder.build()
    (found,) = topology.arrivals(topology.operators[0])
    return found


def test_a_select_that_drops_the_split_carries_it_in_the_hidden_column() -> None:
    builder, stream = declared()
    short = stream.select("user", "at")
    begun = added(builder)
    assert (short.columns, begun.carries_split, begun.reads_once) == (["user", "at"], True, True)
    result: Any = begun.apply(frame_with(*FIELDS))
    assert result.columns == ["user", "at", SPLIT_COLUMN]
    assert [row[SPLIT_COLUMN] for row in result.collect()] == SPLITS
    at: Any = played_columns.col("at")
    filtered = short.where(at > 10)
    result = added(builder).apply(result)
    assert [(row.user, row[SPLIT_COLUMN]) for row in result.collect()] == [("bob", SPLITS[1]), ("ada", SPLITS[2])]
    more = filtered.with_column("late", at + 5)
    assert (more.columns, added(builder).carries_split) == (["user", "at", "late"], True)
    result = added(builder).apply(result)
    assert [row["late"] for row in result.collect()] == [25, 35]
    alone = more.select("at")
    assert (added(builder).reads_once, added(builder).carries_split) == (False, True)
    assert added(builder).apply(result).columns == ["at", SPLIT_COLUMN]
    found = arrival(builder, alone, "at")
    assert (found.split_columns, found.carries_split, found.bound_ms) == (("topic", "part"), True, 0)


def test_steps_that_keep_the_split_columns_need_no_hidden_column() -> None:
    builder, stream = declared(max_out_of_orderness_ms=7, idle_after_ms=50, max_ahead_ms=None)
    kept = stream.select("part", "topic", "at", "user")
    assert not added(builder).carries_split
    assert [row.user for row in cast("Any", added(builder).apply(frame_with(*FIELDS))).collect()] == [
        "ada",
        "bob",
        "ada",
    ]
    found = arrival(builder, kept)
    assert (found.split_columns, found.carries_split) == (("topic", "part"), False)
    assert found.origin.timestamps == Timestamps("at", 7, 50, ("topic", "part"), None)
    assert (found.timestamp_column, found.out_of_orderness_ms) == ("at", 7)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_union_carries_the_split_of_any_of_its_streams(is_first: bool) -> None:
    builder, stream = declared()
    short = stream.uid("one").select("user", "at")
    source = builder.add_source(cast("Any", None), builder.schema(short._node))
    plain = DataStream(cast("Any", SESSION), builder, source, None).uid("two").with_timestamps("at")
    union = short.union(plain) if is_first else plain.union(short)
    filtered = union.where(cast("Any", played_columns.col("at")) > 10)
    assert (filtered._carries_split, added(builder).carries_split) == (True, True)
    assert [row.user for row in cast("Any", added(builder).apply(frame_with(*FIELDS))).collect()] == [
        "bob",
        "ada",
    ]
    filtered.key_by("user").reduce(lambda left, _: left).uid("last").sink_to(cast("Any", None)).uid("sink")
    topology = builder.build()
    found = {each.name: each.carries_split for each in topology.arrivals(topology.operators[0])}
    assert found == {"one": True, "two": False}


def test_an_environment_is_the_current_one_only_while_its_script_runs() -> None:
    env = StreamEnvironment(cast("Any", SESSION), {}, lambda _: None)
    with env.provided():
        assert StreamEnvironment.current() is env
    with pytest.raises(NoEnvironmentError):
        StreamEnvironment.current()
    with pytest.raises(ZeroDivisionError), env.provided():
        raise ZeroDivisionError
    with pytest.raises(NoEnvironmentError):
        StreamEnvironment.current()


def test_a_transform_that_loses_the_hidden_column_goes_on_without_splits(caplog: pytest.LogCaptureFixture) -> None:
    builder, stream = declared()
    short = stream.select("user", "at")
    begun: Any = added(builder).apply(frame_with(*FIELDS))
    seen: list[list[str]] = []

    def swapped(frame: Any) -> Any:
        seen.append(frame.columns)
        return frame.select("at", "user")

    lost = short.transform(swapped)
    assert (added(builder).carries_split, lost.columns) == (False, ["at", "user"])
    assert "loses the splits" in caplog.text
    assert added(builder).apply(begun).columns == ["at", "user"]
    assert {tuple(columns) for columns in seen} == {("user", "at")}, "a function never sees the hidden column"
    found = arrival(builder, lost)
    assert (found.split_columns, found.carries_split) == ((), False)


def test_a_stream_without_its_time_has_none_and_one_without_a_named_split_is_refused() -> None:
    builder, stream = declared(split="user")
    with pytest.raises(UnknownColumnError, match="split column 'user'"):
        stream.select("topic", "part", "at")
    timeless = stream.select("topic", "part", "user")
    assert arrival(builder, timeless).timestamp_column is None
    plain = TopologyBuilder()
    source = plain.add_source(cast("Any", None), builder.schema(stream._node))
    of_plain = DataStream(cast("Any", SESSION), plain, source, None).with_timestamps("at").select("at", "user")
    assert not added(plain).carries_split
    assert arrival(plain, of_plain).split_columns == ()


def test_a_step_that_spark_refuses_is_named_by_its_kind() -> None:
    _, stream = declared()
    with pytest.raises(UnknownColumnError, match=r"Spark refuses a transform: .*usr cannot be resolved$"):
        stream.select("usr")

    def refused(_: Any) -> Any:
        raise AnalysisException("no such plan\nsecond line")

    with pytest.raises(InvalidTopologyError, match=r"Spark refuses a transform: no such plan$") as raised:
        stream.transform(refused)
    assert not isinstance(raised.value, UnknownColumnError)


def test_a_column_may_be_an_expression_over_the_streams_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played_columns, "expr", {"at * 2": played_columns.lit(2)}.__getitem__, raising=False)
    builder, stream = declared()
    assert stream.with_column("twice", "at * 2").columns == ["topic", "part", "at", "user", "twice"]
    result: Any = added(builder).apply(frame_with(*FIELDS))
    assert [row.twice for row in result.collect()] == [2, 2, 2]


def test_a_source_hands_on_every_setting_of_its_times() -> None:
    times = {"max_out_of_orderness_ms": 3, "idle_after_ms": 40, "split": "user", "max_ahead_ms": 500}
    builder, _ = declared(**times)
    nodes: list[Any] = builder._nodes
    assert nodes[-1].timestamps == Timestamps("at", 3, 40, ("user",), 500)
    assert (nodes[0].split_columns, nodes[0].carries_split) == (("topic", "part"), False)
    builder, _ = declared(split=())
    assert cast("Any", builder._nodes[-1]).timestamps == Timestamps("at", max_ahead_ms=86_400_000)
    env = StreamEnvironment(cast("Any", SESSION), {}, lambda _: None)
    still = frame_of(schema=["user"])
    still.isStreaming = False
    with pytest.raises(NotStreamingError):
        env.stream(still)
    assert env.stream(frame_with(*FIELDS))._timestamps is None


def test_a_source_whose_frame_drops_the_split_has_it_in_the_hidden_column(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = frame_with(*FIELDS)
    monkeypatch.setattr(
        carried_split,
        "carried",
        lambda _frame, _name, step: cast("Any", step(whole)).select("user", "at", SPLIT_COLUMN),
    )
    env = StreamEnvironment(cast("Any", SESSION), {}, lambda _: None)
    stream = env.stream(cast("Any", whole.select("user", "at")), timestamp="at")
    source: Any = env._builder._nodes[0]
    assert (source.carries_split, source.split_columns) == (True, ("topic", "part"))
    assert [row[SPLIT_COLUMN] for row in source.frame.collect()] == SPLITS
    assert stream.columns == ["user", "at"]
    found = arrival(env._builder, stream)
    assert (found.split_columns, found.carries_split) == (("topic", "part"), True)


def test_splits_of_other_types_than_text_and_whole_numbers_are_not_carried() -> None:
    def found(*fields: StructField) -> Any:
        return with_split_of_source(frame_with(*fields))

    number = StructField("at", DoubleType(), metadata={MARK: [0, 1]})
    assert found(number) is None
    assert found(*FIELDS[2:]) is None
    assert found(FIELDS[0], *FIELDS[2:]) is None, "a column of the split is missing"
    frame, columns = found(FIELDS[3], *FIELDS[1::-1])
    assert columns == ("topic", "part"), "in the order of the source"
    assert [row[SPLIT_COLUMN] for row in frame.collect()] == SPLITS
