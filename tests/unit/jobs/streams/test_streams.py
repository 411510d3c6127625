"""Declarations on streams become a topology, or are refused immediately."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale import (
    DataStream,
    FileSink,
    KeyedBatchFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
    Profile,
    RocksDbSettings,
    SessionWindows,
    StreamEnvironment,
    TimeDomain,
    TumblingWindows,
)
from keyscale.identifiers import Attempt, JobId
from keyscale.jobs.errors import InvalidSchemaError, InvalidTopologyError, UnionTimestampsError, UnknownColumnError
from keyscale.jobs.graph.nodes import DAY_MS, OperatorNode, SideOutputNode, Timestamps, TimestampsNode
from keyscale.jobs.graph.topology import Topology, TopologyBuilder
from keyscale.jobs.operators.window_operator import Windowing
from keyscale.jobs.runtime.batch.runner import RunInfo, subtask_specs
from keyscale.state.keys.hashing import HashId
from keyscale.state.keys.key_group_ranges import KeyGroupRanges

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from keyscale import KeyedBatch, ProcessContext, Row
    from keyscale.jobs.graph.topology import Topology

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
OUTPUT = pa.schema([("user", pa.string())])
LATE = OutputTag("late", SCHEMA)


class Silent(KeyedProcessFunction):
    def process_element(self, row: Row, context: ProcessContext) -> None:
        """Emits nothing."""


class SilentBatches(KeyedBatchFunction):
    def process_batch(self, batch: KeyedBatch) -> None:
        """Emits nothing."""


class Everything(ProcessWindowFunction):
    def process(self, _key: object, _window: object, elements: Sequence[Row]) -> Sequence[Row]:
        """Emits the records."""
        return elements


@pytest.fixture
def builder() -> TopologyBuilder:
    return TopologyBuilder()


@pytest.fixture
def stream(builder: TopologyBuilder) -> DataStream:
    source = builder.add_source(cast("Any", None), SCHEMA)
    return DataStream(cast("Any", None), builder, source, None)


def end(stream: DataStream, uid: str) -> None:
    stream.sink_to(cast("Any", None)).uid(uid)


def test_the_bound_goes_with_the_timestamps_to_the_operator(stream: DataStream, builder: TopologyBuilder) -> None:
    timed = stream.with_timestamps("at", max_out_of_orderness_ms=500)
    end(timed.key_by("user").reduce(lambda left, _: left).uid("last"), "sink")
    (operator,) = builder.build().operators
    assert (operator.timestamp_column, operator.out_of_orderness_ms, operator.schema) == ("at", 500, SCHEMA)
    assert operator.max_ahead_ms == DAY_MS


def test_a_bound_below_zero_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="-1"):
        Timestamps("at", -1)
    with pytest.raises(InvalidTopologyError, match="-2"):
        Timestamps("at", max_ahead_ms=-2)


@pytest.mark.parametrize(
    ("split", "columns"),
    [(None, ("user",)), ((), ()), ("amount", ("amount",)), (["user", "amount"], ("user", "amount"))],
)
def test_splits_are_those_of_the_source_unless_others_are_named(
    builder: TopologyBuilder, split: str | list[str] | None, columns: tuple[str, ...]
) -> None:
    source = builder.add_source(cast("Any", None), SCHEMA)
    timed = DataStream(cast("Any", None), builder, source, None, ("user",)).with_timestamps("at", split=split)
    end(timed.key_by("user").reduce(lambda left, _: left).uid("last"), "sink")
    topology = builder.build()
    assert topology.arrivals(topology.operators[0])[0].split_columns == columns


@pytest.mark.parametrize(("split", "is_carried"), [(None, True), (("part",), True), ((), False)])
def test_a_split_in_the_hidden_column_is_the_sources_split(
    builder: TopologyBuilder, split: tuple[str, ...] | None, is_carried: bool
) -> None:
    source = builder.add_source(cast("Any", None), SCHEMA, ("part",), carries_split=True)
    stream = DataStream(cast("Any", None), builder, source, None, ("part",), carries_split=True)
    other = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
    stream.uid("first")
    timed = stream.with_timestamps("at", split=split).union(other.uid("other").with_timestamps("at"))
    end(timed.key_by("user").reduce(lambda left, _: left).uid("last"), "sink")
    topology = builder.build()
    first, second = topology.arrivals(topology.operators[0])
    assert (first.split_columns, first.carries_split) == ((("part",), True) if is_carried else ((), False))
    assert (second.split_columns, second.carries_split) == ((), False)
    assert first.splits_name == ("first(part)" if is_carried else "first()")
    assert [topology.carries_split(node.id) for node in topology.nodes] == [
        True,
        False,
        True,
        False,
        True,
        False,
        False,
    ]


def test_a_column_that_is_named_for_splits_must_be_there(stream: DataStream) -> None:
    with pytest.raises(UnknownColumnError, match="'part'"):
        stream.with_timestamps("at", split="part")


def test_a_union_of_streams_with_timestamps_in_one_column_has_timestamps(
    stream: DataStream, builder: TopologyBuilder
) -> None:
    other = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None).uid("other")
    stream.uid("first")
    timed = stream.with_timestamps("at", max_out_of_orderness_ms=5).union(
        other.with_timestamps("at", max_out_of_orderness_ms=9, idle_after_ms=1000, max_ahead_ms=None)
    )
    end(timed.key_by("user").reduce(lambda left, _: left).uid("last"), "sink")
    topology = builder.build()
    assert topology.operators[0].timestamp_column == "at"
    assert topology.operators[0].max_ahead_ms is None, "the larger limit"
    assert {origin.name: origin.timestamps for origin in topology.origins(topology.operators[0].input)} == {
        "first": Timestamps("at", 5, max_ahead_ms=DAY_MS),
        "other": Timestamps("at", 9, 1000),
    }


@pytest.mark.parametrize(("columns", "expected"), [(("user",), ("user",)), (("amount",), ())])
def test_a_union_has_the_splits_of_its_streams_if_they_have_the_same_columns(
    builder: TopologyBuilder, columns: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    one, other = (
        DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA, split), None, split)
        for split in (("user",), columns)
    )
    node = builder._nodes[one.union(other).with_timestamps("at")._node]
    assert isinstance(node, TimestampsNode)
    assert node.timestamps.split_columns == expected


def test_a_union_of_timestamps_in_different_columns_is_refused(stream: DataStream) -> None:
    with pytest.raises(UnionTimestampsError, match="'at', 'amount'"):
        stream.with_timestamps("at").union(stream.with_timestamps("amount"))
    with pytest.raises(UnionTimestampsError, match="'at', none"):
        stream.with_timestamps("at").union(stream)
    assert stream.union(stream).columns == SCHEMA.names


def test_streams_of_two_jobs_cannot_be_united(stream: DataStream) -> None:
    builder = TopologyBuilder()
    foreign = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None)
    with pytest.raises(InvalidTopologyError, match="two environments"):
        stream.union(foreign)


def test_an_idle_time_of_zero_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="after 0 ms"):
        Timestamps("at", 0, 0)


def test_a_side_output_is_a_separate_stream(stream: DataStream, builder: TopologyBuilder) -> None:
    main = stream.key_by("user").process(Silent(), output=OUTPUT, side_outputs=[LATE]).uid("tested")
    end(main, "main")
    end(main.get_side_output(LATE), "late")
    topology = builder.build()
    side = next(node for node in topology.nodes if isinstance(node, SideOutputNode))
    assert (side.tag, side.schema) == ("late", SCHEMA)
    assert topology.operators_before(side.id) == topology.operators


def test_a_side_output_may_be_the_only_output_used(stream: DataStream, builder: TopologyBuilder) -> None:
    main = stream.key_by("user").process(Silent(), output=OUTPUT, side_outputs=[LATE]).uid("tested")
    end(main.get_side_output(LATE), "late")
    assert builder.build().operators


def test_a_side_output_that_is_undeclared_or_declared_twice_is_refused(stream: DataStream) -> None:
    with pytest.raises(InvalidTopologyError, match="late"):
        stream.get_side_output(LATE)
    main = stream.key_by("user").process(Silent(), output=OUTPUT, side_outputs=[LATE])
    with pytest.raises(InvalidTopologyError, match="late"):
        main.get_side_output(OutputTag("late", OUTPUT))
    with pytest.raises(InvalidTopologyError, match="the same name"):
        stream.key_by("user").process(Silent(), output=OUTPUT, side_outputs=[LATE, LATE])


def test_dead_letters_have_the_columns_of_the_input_and_the_error(stream: DataStream) -> None:
    main = stream.key_by("user").process(Silent(), output=OUTPUT, dead_letters=True)
    assert main.get_dead_letters().columns == [*SCHEMA.names, "error"]


def test_dead_letters_must_be_asked_for_and_batch_functions_have_none(stream: DataStream) -> None:
    with pytest.raises(InvalidTopologyError, match="dead-letters"):
        stream.key_by("user").process(Silent(), output=OUTPUT).get_dead_letters()
    with pytest.raises(InvalidTopologyError, match="many records"):
        stream.key_by("user").process(SilentBatches(), output=OUTPUT, dead_letters=True)


def test_a_window_emits_the_key_the_window_and_the_result(stream: DataStream, builder: TopologyBuilder) -> None:
    windows = stream.with_timestamps("at").key_by("user").window(SessionWindows(10)).allowed_lateness(5)
    reduced = windows.side_output_late_data(LATE).early_firing(1000).reduce(lambda left, _: left).uid("tested")
    assert reduced.columns == ["user", "window_start", "window_end", "at", "amount"]
    end(reduced.get_side_output(LATE), "late")
    operator = builder.build().operators[0]
    assert isinstance(operator, OperatorNode)
    assert isinstance(operator.logic, Windowing)
    assert operator.logic.uses_timers
    assert (operator.logic.allowed_lateness_ms, operator.logic.early_every_ms) == (5, 1000)


def test_impossible_windows_are_refused(stream: DataStream) -> None:
    with pytest.raises(InvalidTopologyError, match="timestamps"):
        stream.key_by("user").window(TumblingWindows(10))
    by_clock = stream.key_by("user").window(TumblingWindows(10, time_domain=TimeDomain.PROCESSING))
    with pytest.raises(InvalidTopologyError, match="-1 ms"):
        by_clock.allowed_lateness(-1)
    with pytest.raises(InvalidTopologyError, match="every 0 ms"):
        by_clock.early_firing(0)
    with pytest.raises(InvalidSchemaError, match="window_start"):
        by_clock.process(Everything(), output=pa.schema([("window_start", pa.int64())]))


def test_a_jobs_own_settings_reach_the_store_of_every_subtask(tmp_path: Path) -> None:
    topologies: list[Topology] = []
    env = StreamEnvironment(cast("Any", None), {}, topologies.append)
    settings = replace(RocksDbSettings.of(Profile.FLASH_SSD), memory_budget_bytes=64 << 20)
    env.rocksdb_settings(settings)
    source = env._builder.add_source(cast("Any", None), SCHEMA)
    stream = DataStream(cast("Any", None), env._builder, source, None)
    end(stream.key_by("user").reduce(lambda left, _: left).uid("last"), "sink")
    env.execute()
    (topology,) = topologies
    assert topology.rocksdb == settings
    info = RunInfo(
        JobId("job"),
        Attempt(1),
        KeyGroupRanges.of_count(8, 2),
        HashId.SPARK,
        tmp_path.as_uri(),
        tmp_path,
        rocksdb=topology.rocksdb,
    )
    assert [spec.settings for spec in subtask_specs(topology.operators[0], info)] == [settings, settings]


def test_the_batch_interval_goes_with_the_graph_and_is_not_negative() -> None:
    executed: list[Topology] = []
    env = StreamEnvironment(cast("Any", None), {}, executed.append)
    with pytest.raises(InvalidTopologyError, match="-1 ms"):
        env.set_batch_interval(-1)
    env.set_batch_interval(250)
    source = env._builder.add_source(cast("Any", None), SCHEMA)
    end(DataStream(cast("Any", None), env._builder, source, None), "sink")
    env.execute()
    assert executed[0].batch_interval_ms == 250


def test_a_parameter_that_the_job_was_not_given_is_named_with_those_that_it_was_given() -> None:
    env = StreamEnvironment(cast("Any", None), {"output": "/out", "input": "/in"}, lambda _: None)
    assert env.parameters["input"] == "/in"
    assert env.parameters.get("limit", "8") == "8"
    with pytest.raises(KeyError, match="no parameter 'inptu'; it was given: input, output"):
        env.parameters["inptu"]


def test_the_jobs_policy_for_failed_records_goes_to_every_operator() -> None:
    executed: list[Topology] = []
    env = StreamEnvironment(cast("Any", None), {}, executed.append)
    stream = DataStream(cast("Any", None), env._builder, env._builder.add_source(cast("Any", None), SCHEMA), None)
    end(stream.key_by("user").reduce(lambda left, _: left).uid("last"), "sink")
    env.execute()
    env.set_failed_records("drop")
    env.execute()
    assert [topology.operators[0].failed_records for topology in executed] == ["fail", "drop"]
    with pytest.raises(InvalidTopologyError, match="'fail' or 'drop', not 'skip'"):
        env.set_failed_records(cast("Any", "skip"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (FileSink, r"the class FileSink is given in the place of an instance; write FileSink\(\.\.\.\)"),
        ("/out", "the value str is given in the place of a sink"),
        (print, "the function print is given in the place of a sink"),
    ],
)
def test_what_cannot_be_a_sink_is_refused_where_it_is_declared(stream: DataStream, given: Any, message: str) -> None:
    with pytest.raises(InvalidTopologyError, match=message):
        stream.sink_to(given)


def test_only_windows_of_sessions_need_an_aggregation_that_merges(stream: DataStream) -> None:
    class Counting:
        def create_accumulator(self) -> int:
            return 0

        def add(self, _row: object, accumulator: int) -> int:
            return accumulator + 1

        def get_result(self, accumulator: int) -> tuple[int]:
            return (accumulator,)

    options: Any = {"function": Counting(), "accumulator": pa.int64(), "output": pa.schema([("n", pa.int64())])}
    keyed = stream.with_timestamps("at").key_by("user")
    keyed.window(TumblingWindows(10)).aggregate(**options)
    with pytest.raises(InvalidTopologyError, match="the aggregation Counting lacks the method merge"):
        keyed.window(SessionWindows(10)).aggregate(**options)
