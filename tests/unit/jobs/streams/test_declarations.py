"""Each declaration on a keyed stream becomes one operator, with all that it was declared with and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyscale import (
    BloomFilter,
    DataStream,
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    SessionWindows,
    SlidingWindows,
    TimeDomain,
    Ttl,
    TumblingWindows,
)
from keyscale.jobs.errors import InvalidTopologyError
from keyscale.jobs.graph.nodes import OperatorNode, SecondInput, Timestamps
from keyscale.jobs.graph.topology import TopologyBuilder
from keyscale.jobs.operators.aggregate import Aggregate, Reduce
from keyscale.jobs.operators.approximate_deduplicate import ApproximateDeduplicate
from keyscale.jobs.operators.batch_operator import ProcessBatch
from keyscale.jobs.operators.broadcast_operator import BroadcastProcess
from keyscale.jobs.operators.co_process_operator import CoProcess
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.process_operator import Process
from keyscale.jobs.operators.window_contents import Aggregated, Collected, Reduced
from keyscale.jobs.operators.window_operator import Windowing
from keyscale.jobs.transform_with_state.initial_state import InitialState
from keyscale.jobs.transform_with_state.processor_operator import TransformWithState
from keyscale.jobs.transform_with_state.record_form import RecordForm
from keyscale.jobs.transform_with_state.time_mode import TimeMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale import KeyedStream

# ruff: noqa: N802, N803, ARG002 - Spark's names, and functions that are only declared

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("page", pa.string())])
OTHER = pa.schema([("who", pa.string()), ("when", pa.int64())])
KEY = pa.schema([("user", pa.string())])
OUT = pa.schema([("n", pa.int64())])
KEYED = pa.schema([*KEY, *OUT])
WINDOW = [("window_start", pa.int64()), ("window_end", pa.int64())]
OF_WINDOW = pa.schema([*KEY, *WINDOW, *OUT])
TTL = Ttl(7)
TAG = OutputTag("late", SCHEMA)
LETTERS = pa.schema([*SCHEMA, ("error", pa.string())])
RULES = MapStateDescriptor("rules", pa.string(), pa.int64())
TIMES = Timestamps("at", 5, 40, (), 70)


class Each(KeyedProcessFunction):
    def process_element(self, row: Any, context: Any) -> None: ...


class Batches(KeyedBatchFunction):
    def process_batch(self, batch: Any) -> None: ...


class Both(KeyedCoProcessFunction):
    def process_element1(self, row: Any, context: Any) -> None: ...

    def process_element2(self, row: Any, context: Any) -> None: ...


class Ruled(KeyedBroadcastProcessFunction):
    def process_element(self, row: Any, context: Any) -> None: ...

    def process_broadcast_element(self, row: Any, context: Any) -> None: ...


class Whole(ProcessWindowFunction):
    def process(self, key: Any, window: Any, elements: Any) -> None: ...


class Processor(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any: ...


@dataclass(frozen=True)
class Sum:
    """An aggregation."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator

    def get_result(self, accumulator: int) -> tuple[int]:
        return (accumulator,)

    def merge(self, left: int, right: int) -> int:
        return left + right


EACH, BATCHES, BOTH, RULED, WHOLE, PROCESSOR, SUM = Each(), Batches(), Both(), Ruled(), Whole(), Processor(), Sum()
INITIAL = pa.table({"user": ["ada"], "n": [1]})


def first(left: Any, _right: Any) -> Any:
    return left


@dataclass(frozen=True)
class Declared:
    """An operator as it should be: what differs from the operator of a plain function.

    Attributes:
        logic: Its logic.
        schema: Its output.
        times: The times of its output.
    """

    logic: Any
    schema: pa.Schema
    times: Timestamps | None = None
    side_outputs: Any = ()
    key_schema: pa.Schema = KEY
    broadcast: int | None = None
    broadcast_schema: pa.Schema | None = None
    second: SecondInput | None = None


def other(keyed: KeyedStream) -> DataStream:
    builder = keyed._builder
    source = builder.add_source(cast("Any", None), OTHER)
    return DataStream(cast("Any", None), builder, source, None).uid("other")


def hourly(keyed: KeyedStream) -> Any:
    return keyed.window(SlidingWindows(10, 5)).allowed_lateness(3).side_output_late_data(TAG).early_firing(9)


HOURLY: dict[str, Any] = {"allowed_lateness_ms": 3, "late_output": "late", "early_every_ms": 9}
LATE = {"late": SCHEMA}
BLOOM = BloomFilter(10, 0.1)
CASES: dict[str, tuple[Callable[[KeyedStream], DataStream], Declared]] = {
    "process": (
        lambda keyed: keyed.process(EACH, output=OUT, side_outputs=[TAG]),
        Declared(Process(EACH, None), OUT, None, LATE),
    ),
    "process with dead letters": (
        lambda keyed: keyed.process(EACH, output=OUT, side_outputs=[TAG], dead_letters=True),
        Declared(Process(EACH, "dead-letters"), OUT, None, {**LATE, "dead-letters": LETTERS}),
    ),
    "process batches": (
        lambda keyed: keyed.process(BATCHES, output=OUT, side_outputs=[TAG]),
        Declared(ProcessBatch(BATCHES), OUT, None, LATE),
    ),
    "reduce": (lambda keyed: keyed.reduce(first, ttl=TTL), Declared(Reduce(first, TTL), SCHEMA, TIMES)),
    "aggregate": (
        lambda keyed: keyed.aggregate(SUM, accumulator=pa.int32(), output=OUT, ttl=TTL),
        Declared(Aggregate(SUM, pa.int32(), TTL), KEYED),
    ),
    "deduplicate": (lambda keyed: keyed.deduplicate(ttl=TTL), Declared(Deduplicate(TTL), SCHEMA, TIMES)),
    "deduplicate hashed": (
        lambda keyed: keyed.deduplicate(hashed=True),
        Declared(
            Deduplicate(None, hashed=True), SCHEMA, TIMES, key_schema=Deduplicate(None, hashed=True).stored_key(KEY)
        ),
    ),
    "deduplicate approximately": (
        lambda keyed: keyed.deduplicate(ttl=TTL, approximate=BLOOM),
        Declared(
            ApproximateDeduplicate.of(BLOOM, TTL),
            SCHEMA,
            TIMES,
            key_schema=ApproximateDeduplicate.of(BLOOM, TTL).stored_key(KEY),
        ),
    ),
    "transform with state": (
        lambda keyed: keyed.transform_with_state(
            PROCESSOR,
            OUT,
            time_mode="ProcessingTime",
            initial_state=cast("Any", SimpleNamespace(toArrow=lambda: INITIAL)),
            pandas=True,
        ),
        Declared(
            TransformWithState(PROCESSOR, TimeMode.PROCESSING_TIME, RecordForm.PANDAS, InitialState.of(INITIAL, KEY)),
            OUT,
        ),
    ),
    "window and reduce": (
        lambda keyed: hourly(keyed).reduce(first),
        Declared(
            Windowing(SlidingWindows(10, 5), Reduced(first, SCHEMA), **HOURLY),
            pa.schema([*KEY, *WINDOW, ("at", pa.int64()), ("page", pa.string())]),
            None,
            LATE,
        ),
    ),
    "window and aggregate": (
        lambda keyed: hourly(keyed).aggregate(SUM, accumulator=pa.int32(), output=OUT),
        Declared(Windowing(SlidingWindows(10, 5), Aggregated(SUM, pa.int32()), **HOURLY), OF_WINDOW, None, LATE),
    ),
    "window and process": (
        lambda keyed: keyed.window(SessionWindows(8)).process(WHOLE, output=OUT),
        Declared(Windowing(SessionWindows(8), Collected(WHOLE, SCHEMA)), OF_WINDOW),
    ),
    "connect two keyed streams": (
        lambda keyed: keyed.connect(
            other(keyed).with_timestamps("when", max_out_of_orderness_ms=6, max_ahead_ms=80).key_by("who")
        ).process(BOTH, output=OUT, side_outputs=[TAG]),
        Declared(CoProcess(BOTH), OUT, None, LATE, second=SecondInput(cast("Any", 3), OTHER, ("who",), "when", 6, 80)),
    ),
    "connect a stream without times": (
        lambda keyed: keyed.connect(other(keyed).key_by("who")).process(BOTH, output=OUT),
        Declared(CoProcess(BOTH), OUT, second=SecondInput(cast("Any", 2), OTHER, ("who",))),
    ),
    "connect a broadcast stream": (
        lambda keyed: keyed.connect(other(keyed).broadcast(RULES)).process(RULED, output=OUT, side_outputs=[TAG]),
        Declared(BroadcastProcess(RULED, (RULES,)), OUT, None, LATE, broadcast=2, broadcast_schema=OTHER),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_operator_has_all_that_it_was_declared_with(
    case: tuple[Callable[[KeyedStream], DataStream], Declared],
) -> None:
    declare, expected = case
    builder = TopologyBuilder()
    stream = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None).uid("source")
    timed = stream.with_timestamps("at", max_out_of_orderness_ms=5, idle_after_ms=40, max_ahead_ms=70)
    result = declare(timed.key_by("user")).uid("tested")
    (node,) = (each for each in builder._nodes if isinstance(each, OperatorNode))
    found = {each.name: getattr(node, each.name) for each in fields(node)}
    assert found == {
        "id": result._node,
        "input": timed._node,
        "uid": "tested",
        "key_columns": ("user",),
        "key_schema": expected.key_schema,
        "input_schema": SCHEMA,
        "schema": expected.schema,
        "timestamp_column": "at",
        "logic": expected.logic,
        "out_of_orderness_ms": 5,
        "side_outputs": dict(expected.side_outputs),
        "broadcast": expected.broadcast,
        "broadcast_schema": expected.broadcast_schema,
        "second": expected.second,
        "max_ahead_ms": 70,
        "failed_records": "fail",
    }
    assert (result._timestamps, result.columns) == (expected.times, expected.schema.names)
    assert (result._split_columns, result._carries_split) == ((), False)


@pytest.mark.parametrize("assigner", [TumblingWindows(5), SlidingWindows(10, 5), SessionWindows(5)])
def test_only_windows_by_event_time_need_times(assigner: Any) -> None:
    builder = TopologyBuilder()
    keyed = DataStream(cast("Any", None), builder, builder.add_source(cast("Any", None), SCHEMA), None).key_by("user")
    with pytest.raises(InvalidTopologyError, match="windows by event time need"):
        keyed.window(assigner)
    kind, options = type(assigner), {each.name: getattr(assigner, each.name) for each in fields(assigner)}
    result = keyed.window(kind(**options | {"time_domain": TimeDomain.PROCESSING})).process(WHOLE, output=OUT)
    node: Any = builder._nodes[result._node]
    assert (node.timestamp_column, node.out_of_orderness_ms, node.max_ahead_ms) == (None, 0, None)
