"""A StatefulProcessor gives the same results as in Spark's own tester, in both forms, at any parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # publishes no types
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812 - as usual in PySpark
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester

from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex
from keyscale.jobs.errors import (
    InvalidSchemaError,
    InvalidTopologyError,
    OutputTypeError,
    ProcessorCallError,
    UserFunctionError,
)
from keyscale.jobs.functions.subtask_info import SubtaskInfo
from keyscale.jobs.operators.operator_contract import KEY_GROUP_COLUMN
from keyscale.jobs.testing.harness import OperatorHarness
from keyscale.jobs.transform_with_state.handle import ProcessorHandle
from keyscale.jobs.transform_with_state.initial_state import InitialState
from keyscale.jobs.transform_with_state.processor_operator import TransformWithState
from keyscale.jobs.transform_with_state.record_form import RecordForm
from keyscale.jobs.transform_with_state.row_codec import RowCodec
from keyscale.jobs.transform_with_state.time_mode import ProcessorTime, TimeMode
from keyscale.state.doors.keyed import BatchClock, MemorySnapshot, MemoryState, ValueStateDescriptor, memory_snapshot
from keyscale.state.errors import DescriptorError
from keyscale.state.keys.key_groups import KeyGroupRange
from tests.support.spark.processors import CountWords, CountWordsInPandas, History, Reminders, RunningMaximum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.jobs.testing.harness import HarnessSnapshot

# ruff: noqa: N802, N803, ARG002, ARG005 - Spark's names, and arguments that not every processor reads

INPUT = pa.schema([("id", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
OUTPUT = {"id": "string", "what": "string", "number": "bigint"}
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 300), st.integers(-9, 9)), max_size=12), max_size=5
)


def harness(processor: StatefulProcessor, parallelism: int = 1, **options: Any) -> OperatorHarness:
    logic = TransformWithState(processor, **options)
    return OperatorHarness(
        logic,
        input=INPUT,
        key=["id"],
        output=OUTPUT,
        timestamp="at" if logic.time_mode is TimeMode.EVENT_TIME else None,
        parallelism=parallelism,
    )


def by_key(records: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in records:
        found.setdefault(record[0], []).append(record)
    return found


def rows_of(records: list[Any]) -> list[Row]:
    return [Row(*INPUT.names)(*record) for record in records]


def expected(result: Any) -> list[tuple[Any, ...]]:
    if isinstance(result, pd.DataFrame):
        result = [Row(**record) for record in result.to_dict("records")]
    return [tuple(row[name] for name in OUTPUT) for row in result]


def moved(tested: OperatorHarness, snapshot: HarnessSnapshot, parallelism: int) -> OperatorHarness:
    return tested.restored(snapshot, parallelism=4 - parallelism)


@pytest.mark.parametrize("kind", [CountWords, CountWordsInPandas, RunningMaximum, History])
@settings(max_examples=25)
@given(batches=BATCHES, parallelism=st.integers(1, 3))
def test_a_processor_gives_the_same_results_as_in_sparks_own_tester(
    kind: type[StatefulProcessor], batches: list[list[Any]], parallelism: int
) -> None:
    in_pandas = kind is CountWordsInPandas
    tested = harness(kind(), parallelism, form=RecordForm.PANDAS if in_pandas else RecordForm.ROWS)
    spark = TwsTester(kind())
    for records in batches:
        tested.process(*records)
        wanted = {}
        for key, own in by_key(records).items():
            if in_pandas:
                result = spark.testInPandas(key, pd.DataFrame(own, columns=INPUT.names))
            else:
                result = spark.test(key, rows_of(own))
            if expected(result):
                wanted[key] = expected(result)
        assert by_key(tested.take_output()) == wanted
        tested = moved(tested, tested.snapshot(), parallelism)


@pytest.mark.parametrize("mode", ["ProcessingTime", "EventTime"])
@settings(max_examples=40)
@given(batches=BATCHES, parallelism=st.integers(1, 3), waits=st.lists(st.integers(1, 90), min_size=6, max_size=6))
def test_timers_fire_and_late_records_are_dropped_as_in_sparks_own_tester(
    mode: str, batches: list[list[Any]], parallelism: int, waits: list[int]
) -> None:
    by_event = mode == "EventTime"
    tested = harness(Reminders(mode), parallelism, time_mode=TimeMode.of(mode))
    spark = TwsTester(Reminders(mode), timeMode=mode, eventTimeExtractor=lambda row: row.at)
    now_ms = 0
    for records, wait_ms in zip([*batches, []], waits, strict=False):
        now_ms += wait_ms
        if by_event:
            tested.advance_watermark(now_ms - 1)  # our watermark is the last time that is over, Spark's the next one
            fired = spark.setWatermark(now_ms)
        else:
            tested.advance_processing_time(now_ms)
            fired = spark.setProcessingTime(now_ms)
        assert by_key(tested.take_output()) == by_key(expected(fired))
        tested = moved(tested, tested.snapshot(), parallelism)
        tested.process(*records)
        wanted = {}
        for key, own in by_key(records).items():
            in_time = [record for record in own if not by_event or record[1] > now_ms]
            if in_time:  # Spark does not call the processor for a key with only late rows; its tester does
                wanted[key] = expected(spark.test(key, rows_of(own)))
        assert by_key(tested.take_output()) == wanted


class Alarms(StatefulProcessor):
    """Registers a timer `amount` ms from its time, and one more a millisecond later when that fires."""

    def __init__(self, mode: TimeMode) -> None:
        self.mode = mode

    def init(self, handle: Any) -> None:
        self.handle = handle

    def now(self, values: Any) -> int:
        by_event = self.mode is TimeMode.EVENT_TIME
        now: int = values.getCurrentWatermarkInMs() if by_event else values.getCurrentProcessingTimeInMs()
        return now

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(self.now(timerValues) + row.amount)
        yield Row(id=key[0], what="rows", number=timerValues.getCurrentWatermarkInMs())

    # As Spark calls it by name, the order of the arguments is free.
    def handleExpiredTimer(self, expiredTimerInfo: Any, timerValues: Any, key: Any) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(id=key.id, what=f"timer of {key!r}", number=at)
        if at <= self.now(timerValues):
            self.handle.registerTimer(at + 1)


@pytest.mark.parametrize("mode", [TimeMode.EVENT_TIME, TimeMode.PROCESSING_TIME])
def test_a_timer_for_a_time_that_is_over_fires_in_the_same_batch_after_all_rows(mode: TimeMode) -> None:
    tested = harness(Alarms(mode), time_mode=mode)
    if mode is TimeMode.EVENT_TIME:
        tested.advance_watermark(999)
    else:
        tested.advance_processing_time(1000)
    tested.process(("a", 2000, 0), ("a", 2000, 1), ("b", 2000, -500))
    fired = [(row[0], row[2]) for row in tested.take_output() if row[1] != "rows"]
    assert sorted(fired) == [("a", 1000), ("b", 500)]
    tested.process(("c", 2000, 5))
    # Those that were registered meanwhile wait for the next batch, even if they are due.
    assert [row[2] for row in tested.take_output() if row[1] != "rows"] == [501]


def test_before_any_record_the_watermark_is_0_and_timers_up_to_it_fire() -> None:
    tested = harness(Alarms(TimeMode.EVENT_TIME), time_mode=TimeMode.EVENT_TIME)
    tested.process(("a", 2000, 0), ("a", 2000, -5), ("a", 2000, 1))
    assert [tuple(row) for row in tested.take_output()] == [
        ("a", "rows", 0),
        ("a", "timer of Row(id='a')", -5),
        ("a", "timer of Row(id='a')", 0),
    ]


def test_a_processor_sees_the_watermark_in_processing_time_too() -> None:
    tested = OperatorHarness(
        TransformWithState(Alarms(TimeMode.PROCESSING_TIME), TimeMode.PROCESSING_TIME),
        input=INPUT,
        key=["id"],
        output=OUTPUT,
        timestamp="at",
    )
    tested.process(("a", 2000, 10))
    tested.advance_watermark(1999)
    tested.process(("a", 1000, 10))
    assert [row[2] for row in tested.take_output()] == [0, 2000]
    assert tested.late_records == 0


class Shelves(StatefulProcessor):
    """Says what a map state returns, which has a bare string as a key."""

    def init(self, handle: Any) -> None:
        self.shelves = handle.getMapState("shelves", "name string", "amount bigint, at timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.shelves.updateValue("first", (row.amount, pd.Timestamp(row.at, unit="ms")))
        found = self.shelves.getValue(("first",))
        assert isinstance(found, Row)
        assert self.shelves.containsKey("first")
        assert not self.shelves.containsKey("f")
        yield Row(id=key[0], what=repr((found.at, list(self.shelves.keys()))), number=found.amount)


def test_a_row_too_far_ahead_of_the_clock_is_late_even_before_any_watermark() -> None:
    tested = OperatorHarness(
        TransformWithState(RunningMaximum(), time_mode=TimeMode.EVENT_TIME),
        input=INPUT,
        key=["id"],
        output=OUTPUT,
        timestamp="at",
        max_ahead_ms=10,
    )
    tested.process(("a", 11, 1), ("a", 10, 2))
    assert (tested.late_records, tested.take_output()) == (1, [("a", "max", 2)])
    tested.advance_processing_time(1)
    tested.process(("a", 11, 3), ("a", 12, 4))
    assert (tested.late_records, tested.take_output()) == (2, [("a", "max", 3)])


def test_the_value_of_a_map_is_a_row_and_a_string_is_a_key() -> None:
    tested = harness(Shelves())
    tested.process(("a", 1000, 3))
    assert tested.take_output() == [("a", "(datetime.datetime(1970, 1, 1, 0, 0, 1), [('first',)])", 3)]


class Forgetful(StatefulProcessor):
    """Counts in states of all kinds with a TTL of 100 ms."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", "n bigint", ttlDurationMs=100)
        self.list = handle.getListState("list", "n bigint", 100)
        self.map = handle.getMapState("map", "amount bigint", "n bigint", 100)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            found = [(self.value.get() or (0,))[0], len(list(self.list.get())), len(list(self.map.keys()))]
            yield Row(id=key[0], what=str(found), number=timerValues.getCurrentProcessingTimeInMs())
            self.value.update((found[0] + 1,))
            self.list.appendValue((row.at,))
            self.map.updateValue((row.amount,), (1,))


def test_state_with_a_ttl_expires_element_by_element_after_its_last_write() -> None:
    tested = harness(Forgetful(), time_mode=TimeMode.PROCESSING_TIME)
    for now_ms, amount in ((0, 1), (60, 2), (120, 1), (219, 3), (319, 1)):
        tested.advance_processing_time(now_ms)
        tested.process(("a", 0, amount))
        tested = tested.restored(tested.snapshot(), parallelism=2)
    tested.process(("a", 0, 1))
    # (value, list, map): the value is rewritten each time; list and map keep only entries of the last 100 ms
    assert tested.take_output() == [("a", "[1, 1, 1]", 319)]


def test_list_and_map_elements_expire_separately() -> None:
    tested = harness(Forgetful(), time_mode=TimeMode.PROCESSING_TIME)
    for now_ms, amount in ((0, 1), (60, 2), (120, 1), (219, 3), (319, 1)):
        tested.advance_processing_time(now_ms)
        tested.process(("a", 0, amount))
    assert [what for _, what, _ in tested.take_output()] == [
        "[0, 0, 0]",
        "[1, 1, 1]",
        "[2, 1, 1]",
        "[3, 1, 1]",
        "[0, 0, 0]",
    ]


class Listing(StatefulProcessor):
    """Registers a timer at each record's amount, and emits all timers of its key."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(row.amount)
            yield Row(id=key[0], what=str(sorted(self.handle.listTimers())), number=row.amount)


def test_a_processor_with_another_time_mode_lists_no_timers_of_the_mode_before() -> None:
    tested = harness(Listing(), time_mode=TimeMode.PROCESSING_TIME)
    tested.process(("a", 0, 500), ("a", 0, 600))
    assert tested.take_output() == [("a", "[500]", 500), ("a", "[500, 600]", 600)]
    tested = tested.restored(tested.snapshot(), function=TransformWithState(Listing(), TimeMode.EVENT_TIME))
    tested.process(("a", 0, 700))
    assert tested.take_output() == [("a", "[700]", 700)]


class Begun(CountWords):
    """Counts and sums that begin with the initial state."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.handle = handle

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        count, total = self.counts.get() or (0, 0)
        amounts = [initialState.amount] if isinstance(initialState, Row) else list(initialState["amount"])
        self.counts.update((count + 1000 * len(amounts), total + sum(amounts)))
        if not isinstance(initialState, Row):
            return
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + initialState.amount)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(id=key[0], what="timer", number=self.counts.get()[0])


INITIAL = pa.table({"amount": [5, 7, 50, 60], "id": ["a", "a", "b", "z"]})


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_an_initial_state_is_given_once_per_key_even_to_keys_without_records(parallelism: int) -> None:
    initial = InitialState.of(INITIAL, pa.schema([("id", pa.string())]))
    tested = harness(Begun(), parallelism, time_mode=TimeMode.PROCESSING_TIME, initial_state=initial)
    tested.process(("a", 0, 1))
    tested = tested.restored(tested.snapshot(), parallelism=4 - parallelism)
    tested.process(("b", 0, 1), ("c", 0, 1))
    assert by_key(tested.take_output()) == {
        "b": [("b", "count", 1001), ("b", "total", 51)],
        "c": [("c", "count", 1), ("c", "total", 1)],
    }
    tested.advance_processing_time(60)
    assert sorted(tested.take_output()) == [
        ("a", "timer", 2001),
        ("a", "timer", 2001),
        ("b", "timer", 1001),
        ("z", "timer", 1000),
    ]


def test_only_key_groups_that_have_not_had_the_initial_state_get_it() -> None:
    key = pa.schema([("id", pa.string())])
    table = pa.table({"amount": range(40), "id": [f"{number % 30}" for number in range(40)]})
    initial = InitialState.of(table, key)
    info = SubtaskInfo(OperatorUid("tested"), SubtaskIndex(0), 1, 4, Attempt(1), ("id",), ("id",), None, INPUT)

    def taken(state: MemoryState) -> list[tuple[int, int]]:
        found = [row for batch in initial.take(state.backend, info) for row in batch.to_pylist()]
        state.commit()
        return [(row[KEY_GROUP_COLUMN], row["amount"]) for row in found]

    half = MemoryState(key, BatchClock(), MemorySnapshot(), KeyGroupRange(1, 2))
    first = taken(half)
    assert taken(half) == []
    whole = MemoryState(key, BatchClock(), memory_snapshot([half]), KeyGroupRange(0, 3))
    rest = taken(whole)
    assert ({group for group, _ in first}, {group for group, _ in rest}) == ({1, 2}, {0, 3})
    assert sorted(amount for _, amount in first + rest) == list(range(40))
    assert taken(whole) == []


def test_a_processor_of_frames_gets_its_initial_state_in_frames() -> None:
    class InFrames(CountWordsInPandas):
        handleInitialState = Begun.handleInitialState  # noqa: N815 - Spark's name

    initial = InitialState.of(INITIAL, pa.schema([("id", pa.string())]))
    tested = harness(InFrames(), form=RecordForm.PANDAS, initial_state=initial)
    tested.process(("a", 0, 1))
    assert tested.take_output() == [("a", "count", 2001), ("a", "total", 13)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"key": ["a"]}), "lacks the key"),
        (pa.table({"id": [b"\xff"]}), "not string"),
        (pa.table({"id": ["a" * 1000] * 20_000}), "bytes"),
    ],
)
def test_an_initial_state_that_does_not_fit_is_refused(table: pa.Table, message: str) -> None:
    with pytest.raises(InvalidTopologyError, match=message):
        InitialState.of(table, pa.schema([("id", pa.string())]))


class Counting(CountWords):
    """Counts its rows in a metric, and its instances that are closed."""

    closed: ClassVar[list[bool]] = []

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.rows = handle.metrics.counter("rows", labels=["word"])

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        found = list(rows)
        self.rows.labels(word=key[0]).inc(len(found))
        yield from super().handleInputRows(key, iter(found), timerValues)

    def close(self) -> None:
        self.closed.append(True)


def test_a_processor_counts_in_its_own_metrics_and_is_closed_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(Counting, "closed", closed)
    tested = harness(Counting())
    tested.process(("a", 0, 1), ("b", 0, 1), ("a", 0, 1))
    tested.process(("a", 0, 1))
    assert [tested.metric("rows", word=word) for word in "ab"] == [3, 1]
    assert closed == [True, True]


def test_processors_are_chained_like_other_operators() -> None:
    first, second = harness(RunningMaximum(), 2), harness(CountWords(), 3)
    for batch in ([("a", 1, 1), ("a", 2, 3), ("b", 1, 4)], [("a", 3, 2), ("b", 2, 5), ("a", 4, 8)]):
        first.process(*batch)
        second.process(*[(row.what, 0, row.number) for row in first.take_output()])
    assert second.take_output()[-2:] == [("max", "count", 5), ("max", "total", 1 + 3 + 4 + 5 + 8)]


def test_a_key_is_processed_once_per_micro_batch_with_all_of_its_rows_in_order() -> None:
    class Calls(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
            amounts = [row.amount for row in rows]
            yield Row(id=key[0], what=str(amounts == sorted(amounts)), number=len(amounts))

    tested = harness(Calls())
    tested.process(*[("ab"[place % 2], 0, place) for place in range(30_000)])
    assert tested.take_output() == [("a", "True", 15_000), ("b", "True", 15_000)]


def test_a_large_key_gets_several_frames() -> None:
    class Frames(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            for frame in rows:
                yield pd.DataFrame({0: [key[0]], 1: [str(list(frame.columns))], 2: [len(frame)]})

    tested = harness(Frames(), form=RecordForm.PANDAS)
    tested.process(*[("a", 0, place) for place in range(25_000)])
    assert tested.take_output() == [("a", str(INPUT.names), size) for size in (10_000, 10_000, 5_000)]


class Misbehaved(StatefulProcessor):
    """Makes a given call at a given time."""

    def __init__(self, when: str, what: Any) -> None:
        self.when, self.what = when, what

    def init(self, handle: Any) -> None:
        self.handle = handle
        if self.when == "init":
            self.what(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        return self.what(self.handle)


@pytest.mark.parametrize(
    ("when", "mode", "what", "error", "message"),
    [
        ("rows", "None", lambda handle: handle.registerTimer(1), ProcessorCallError, "time mode None"),
        ("rows", "None", lambda handle: handle.listTimers(), ProcessorCallError, "time mode None"),
        ("init", "EventTime", lambda handle: handle.getValueState("s", "n int", 5), ProcessorCallError, "TTL"),
        ("rows", "None", lambda handle: handle.getValueState("s", "n int"), ProcessorCallError, "outside init"),
        ("init", "None", lambda handle: handle.getValueState("s", "n itn"), InvalidSchemaError, "StructType"),
        ("init", "None", lambda handle: handle.getValueState("s", T.LongType()), InvalidSchemaError, "StructType"),
        ("rows", "None", lambda handle: [7], OutputTypeError, "yield Rows"),
        ("rows", "None", lambda handle: [Row(id="a", what=1, number=1)], OutputTypeError, "'what'"),
        ("rows", "None", lambda handle: 1 / 0, UserFunctionError, "ZeroDivisionError"),
    ],
)
def test_impossible_calls_raise_an_error_that_names_the_reason(
    when: str, mode: str, what: Any, error: type[Exception], message: str
) -> None:
    tested = harness(Misbehaved(when, what), time_mode=TimeMode.of(mode))
    with pytest.raises(error, match=message):
        tested.process(("a", 1, 1))


def test_results_that_are_not_frames_with_the_outputs_columns_are_refused() -> None:
    for what in (pd.DataFrame({"id": ["a"]}), [1], pd.DataFrame({"id": ["a"], "what": [1.5], "number": ["x"]})):
        tested = harness(Misbehaved("rows", lambda handle, what=what: [what]), form=RecordForm.PANDAS)
        with pytest.raises(OutputTypeError):
            tested.process(("a", 1, 1))


def test_a_deleted_state_is_removed_from_all_keys_part_by_part_with_each_batch() -> None:
    class Later(StatefulProcessor):
        def init(self, handle: Any) -> None:
            handle.deleteIfExists("counts")
            handle.deleteIfExists("never there")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
            return iter(())

    tested = harness(CountWords(), 2)
    tested.process(*[(str(number), 0, 1) for number in range(500)])
    assert len(tested.snapshot().families["counts"]) == 500
    later = tested.restored(tested.snapshot(), function=TransformWithState(Later()), parallelism=3)
    assert later.snapshot().families.get("counts", []) == []


class DeletesFirst(StatefulProcessor):
    """Declares states that it has just deleted."""

    def init(self, handle: Any) -> None:
        for name in ("value", "list", "map"):
            handle.deleteIfExists(name)
        self.value = handle.getValueState("value", "n bigint")
        self.list = handle.getListState("list", "n bigint")
        self.map = handle.getMapState("map", "n bigint", "n bigint")
        self.kept = handle.getListState("kept", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.value.update((row.amount,))
            for state in (self.list, self.kept):
                state.appendValue((row.amount,))
            self.map.updateValue((row.amount,), (1,))
        found = [len(list(state.get())) for state in (self.list, self.kept)]
        yield Row(id=key[0], what=str([*found, len(list(self.map.keys()))]), number=self.value.get()[0])


def test_a_state_that_is_deleted_and_then_declared_is_empty_in_every_batch() -> None:
    tested = harness(DeletesFirst(), 2)
    tested.process(("a", 0, 1), ("b", 0, 2))
    tested.process(("a", 0, 3), ("a", 0, 4))
    tested = tested.restored(tested.snapshot(), parallelism=1)
    tested.process(("b", 0, 5))
    assert tested.take_output() == [("b", "[1, 2, 1]", 5)]
    assert [len(tested.state(name)) for name in ("value", "list", "map", "kept")] == [1, 1, 1, 5]


def test_a_state_that_is_declared_anew_is_empty_however_many_entries_it_had() -> None:
    rows, key = 50_001, pa.schema([("id", pa.int64())])
    before = MemoryState(key, BatchClock())
    value = before.backend.state(ValueStateDescriptor("value", RowCodec("n bigint").type))
    numbers = pa.array(range(rows))
    value.put_many(np.zeros(rows, np.int32), numbers, pa.StructArray.from_arrays([numbers], ["n"]))
    before.commit()
    after = MemoryState(key, BatchClock(), memory_snapshot([before]))
    DeletesFirst().init(ProcessorHandle(after.backend, ProcessorTime(TimeMode.NONE, BatchClock())))
    after.commit()
    assert (len(before.entries()["value"]), after.entries()["value"]) == (rows, [])


class DeletesLast(CountWords):
    """Deletes a state that its base class declares."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        handle.deleteIfExists("counts")
        self.other = handle.getValueState("other", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.other.update((row.amount,))
            if row.amount < 0:
                self.counts.exists()
        return iter(())


def test_a_state_that_is_declared_and_then_deleted_is_gone_and_cannot_be_used() -> None:
    tested = harness(CountWords())
    tested.process(("a", 0, 1))
    later = tested.restored(tested.snapshot(), function=TransformWithState(DeletesLast()))
    later.process(("a", 0, 1))
    assert (len(later.state("counts")), len(later.state("other"))) == (0, 1)
    with pytest.raises(ProcessorCallError, match="'counts' was deleted"):
        later.process(("a", 0, -1))


class Named(StatefulProcessor):
    """Counts in states of several names."""

    NAMES = ("a b", "zähler", "a%20b", "a/b", "1st", "状態", "x" * 300, "x" * 301, "plain")

    def init(self, handle: Any) -> None:
        self.states = [handle.getValueState(name, "n bigint") for name in self.NAMES]

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        amounts = [row.amount for row in rows]
        for place, state in enumerate(self.states):
            state.update(((state.get() or (0,))[0] + sum(amounts) * (place + 1),))
        yield Row(id=key[0], what=str([state.get()[0] for state in self.states]), number=0)


def test_a_state_may_have_any_name_that_spark_allows() -> None:
    tested = harness(Named())
    tested.process(("a", 0, 1))
    tested = tested.restored(tested.snapshot(), parallelism=2)
    tested.process(("a", 0, 1))
    assert tested.take_output() == [("a", str([2 * (place + 1) for place in range(len(Named.NAMES))]), 0)]
    assert {"plain", "a%20b", "a%2520b", "z%C3%A4hler", "%31st"} < set(tested.snapshot().families)


@pytest.mark.parametrize("name", ["", "default"])
def test_a_name_that_no_state_may_have_is_refused(name: str) -> None:
    with pytest.raises(DescriptorError, match="cannot name a state"):
        harness(Misbehaved("init", lambda handle: handle.getValueState(name, "n int"))).process(("a", 1, 1))


def test_time_modes_are_named_as_in_spark() -> None:
    assert [TimeMode.of(name) for name in ("None", "PROCESSINGTIME", "EventTime")] == list(TimeMode)
    with pytest.raises(InvalidTopologyError, match="time mode"):
        TimeMode.of("Event")
