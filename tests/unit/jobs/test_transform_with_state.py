"""A StatefulProcessor gives what Spark's own tester has it give, in both forms, at any parallelism, across restores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]  # publishes no types
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as T  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester

from jobs.errors import InvalidSchemaError, InvalidTopologyError, OutputTypeError, ProcessorCallError, UserFunctionError
from jobs.testing import OperatorHarness
from jobs.transform_with_state import InitialState, RecordForm, TimeMode, TransformWithState
from tests.support.processors import CountWords, CountWordsInPandas, History, Reminders, RunningMaximum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobs.testing import HarnessSnapshot

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
def test_a_processor_gives_what_sparks_own_tester_gives(
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
    tested = harness(Reminders(), parallelism, time_mode=TimeMode.of(mode))
    spark = TwsTester(Reminders(), timeMode=mode, eventTimeExtractor=lambda row: row.at)
    now_ms = 0
    for records, wait_ms in zip([*batches, []], waits, strict=False):
        now_ms += wait_ms
        if by_event:
            tested.advance_watermark(now_ms - 1)  # ours is the last time that is over, Spark's the next one
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
            if in_time:  # Spark calls no key whose rows are all late; its tester does
                wanted[key] = expected(spark.test(key, rows_of(own)))
        assert by_key(tested.take_output()) == wanted


class Forgetful(StatefulProcessor):
    """Counts in states of all kinds that live for 100 ms."""

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


def test_state_with_a_ttl_lives_so_long_after_it_was_written_each_element_by_itself() -> None:
    tested = harness(Forgetful(), time_mode=TimeMode.PROCESSING_TIME)
    for now_ms, amount in ((0, 1), (60, 2), (120, 1), (219, 3), (319, 1)):
        tested.advance_processing_time(now_ms)
        tested.process(("a", 0, amount))
        tested = tested.restored(tested.snapshot(), parallelism=2)
    tested.process(("a", 0, 1))
    # (value, list, map): the value is written anew each time; of the list and map only what was written less than 100 ms ago is left
    assert tested.take_output() == [("a", "[1, 1, 1]", 319)]


def test_ttls_go_element_by_element() -> None:
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


class Begun(CountWords):
    """Begins with what an initial state says."""

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
def test_an_initial_state_is_given_once_to_each_key_also_to_one_that_no_record_comes_to(parallelism: int) -> None:
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


def test_an_initial_state_comes_in_frames_to_a_processor_of_frames() -> None:
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


def test_processors_are_chained_like_any_operators() -> None:
    first, second = harness(RunningMaximum(), 2), harness(CountWords(), 3)
    for batch in ([("a", 1, 1), ("a", 2, 3), ("b", 1, 4)], [("a", 3, 2), ("b", 2, 5), ("a", 4, 8)]):
        first.process(*batch)
        second.process(*[(row.what, 0, row.number) for row in first.take_output()])
    assert second.take_output()[-2:] == [("max", "count", 5), ("max", "total", 1 + 3 + 4 + 5 + 8)]


def test_a_key_is_called_once_a_micro_batch_with_all_of_its_rows_in_order() -> None:
    class Calls(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
            amounts = [row.amount for row in rows]
            yield Row(id=key[0], what=str(amounts == sorted(amounts)), number=len(amounts))

    tested = harness(Calls())
    tested.process(*[("ab"[place % 2], 0, place) for place in range(30_000)])
    assert tested.take_output() == [("a", "True", 15_000), ("b", "True", 15_000)]


def test_frames_of_a_large_key_are_cut() -> None:
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
    """Does what it was told to, when it was told to."""

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
        ("rows", "EventTime", lambda handle: handle.registerTimer(0), ProcessorCallError, "watermark"),
        ("init", "EventTime", lambda handle: handle.getValueState("s", "n int", 5), ProcessorCallError, "TTL"),
        ("rows", "None", lambda handle: handle.getValueState("s", "n int"), ProcessorCallError, "outside init"),
        ("init", "None", lambda handle: handle.getValueState("s", "n itn"), InvalidSchemaError, "StructType"),
        ("init", "None", lambda handle: handle.getValueState("s", T.LongType()), InvalidSchemaError, "StructType"),
        ("rows", "None", lambda handle: [7], OutputTypeError, "yield Rows"),
        ("rows", "None", lambda handle: [Row(id="a", what=1, number=1)], OutputTypeError, "'what'"),
        ("rows", "None", lambda handle: 1 / 0, UserFunctionError, "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_so(
    when: str, mode: str, what: Any, error: type[Exception], message: str
) -> None:
    tested = harness(Misbehaved(when, what), time_mode=TimeMode.of(mode))
    with pytest.raises(error, match=message):
        tested.process(("a", 1, 1))


def test_results_that_are_no_frames_of_the_outputs_columns_are_refused() -> None:
    for what in (pd.DataFrame({"id": ["a"]}), [1], pd.DataFrame({"id": ["a"], "what": [1.5], "number": ["x"]})):
        tested = harness(Misbehaved("rows", lambda handle, what=what: [what]), form=RecordForm.PANDAS)
        with pytest.raises(OutputTypeError):
            tested.process(("a", 1, 1))


def test_a_state_that_is_deleted_is_gone_from_all_keys_a_part_with_each_batch() -> None:
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


def test_a_state_cannot_be_deleted_and_declared_at_once() -> None:
    def both(handle: Any) -> None:
        handle.deleteIfExists("s")
        handle.getValueState("s", "n int")

    with pytest.raises(ProcessorCallError, match="deleted and declared"):
        harness(Misbehaved("init", both)).process(("a", 1, 1))


def test_time_modes_are_named_as_in_spark() -> None:
    assert [TimeMode.of(name) for name in ("None", "PROCESSINGTIME", "EventTime")] == list(TimeMode)
    with pytest.raises(InvalidTopologyError, match="time mode"):
        TimeMode.of("Event")
