"""Functions see records in order, with the state of their keys. Errors are reported without the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex
from keyscale.jobs.errors import OutputTypeError, UserFunctionError
from keyscale.jobs.functions.process_function import KeyedProcessFunction, ProcessContext, Row, RuntimeContext
from keyscale.jobs.functions.subtask_info import SubtaskInfo
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.operators.process_operator import Process
from keyscale.jobs.testing.harness import OperatorHarness
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import SerializationError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock
from keyscale.state.keyed.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.keys.hashing import HashId, hash_codes
from keyscale.state.keys.key_groups import assign_to_key_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SCHEMA = pa.schema([("name", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
OUTPUT = pa.schema([("name", pa.string()), ("total", pa.int64())])
Record = tuple[str | None, int]


def info(key: tuple[str, ...] = ("name",), output: pa.Schema = OUTPUT, timestamp: str | None = None) -> SubtaskInfo:
    return SubtaskInfo(
        operator_uid=OperatorUid("totals"),
        subtask=SubtaskIndex(1),
        parallelism=2,
        max_parallelism=128,
        attempt=Attempt(3),
        input_columns=tuple(SCHEMA.names),
        key_columns=key,
        timestamp_column=timestamp,
        output_schema=output,
    )


def backend(key: tuple[str, ...] = ("name",), clock: BatchClock | None = None) -> KeyedStateBackend:
    return KeyedStateBackend(HeapEngine(), pa.schema([SCHEMA.field(name) for name in key]), clock)


def batch(records: list[Record], key: tuple[str, ...] = ("name",)) -> pa.RecordBatch:
    columns = {
        "name": pa.array([name for name, _ in records], pa.string()),
        "amount": pa.array([amount for _, amount in records], pa.int64()),
        "at": pa.array(range(len(records)), pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    groups = assign_to_key_groups(hash_codes([columns[name] for name in key], HashId.SPARK), 128)
    columns["__key_group"] = pa.array(groups, pa.int32())
    columns["__subtask"] = pa.array(np.ones(len(records)), pa.int32())
    return pa.record_batch(columns)


def rows(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for one in batches for row in one.to_pylist()]


class Totals(KeyedProcessFunction):
    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        total = (self.total.value() or 0) + row.amount
        self.total.update(total)
        yield {"name": context.current_key, "total": total}


class Applied(KeyedProcessFunction):
    """Runs a function that a test provides."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def process_element(self, row: Row, context: ProcessContext) -> Any:
        return self.function(row, context)


def applied(function: Any, records: list[Record], **of_info: Any) -> list[tuple[Any, ...]]:
    return rows(Process(Applied(function)).start(backend(), info(**of_info)).process(batch(records)))


RECORDS = st.lists(st.tuples(st.none() | st.sampled_from(["", "a", "b", "ü"]), st.integers(-100, 100)), max_size=40)


def test_unchanged_rows_and_other_results_are_emitted_in_their_order() -> None:
    def function(row: Row, _: ProcessContext) -> Any:
        return {0: [], 1: [row], 2: [row, row], 3: [row.as_dict(), row], 4: [(row.name, -1, row.at)]}[row.amount]

    for amounts in ([1, 1, 0, 2], [1, 3, 1, 4, 2], [4, 1], [0], [3]):
        given = [("a", amount) for amount in amounts]
        counts = {0: [], 1: [1], 2: [2, 2], 3: [3, 3], 4: [-1]}
        found = applied(function, given, output=SCHEMA)
        assert [amount for _, amount, _ in found] == [count for amount in amounts for count in counts[amount]]


def test_a_row_that_is_kept_and_emitted_later_is_unchanged() -> None:
    kept: list[Row] = []

    def function(row: Row, _: ProcessContext) -> Any:
        kept.append(row)
        return kept[:1]

    assert [row[1] for row in applied(function, [("a", 1), ("b", 2)], output=SCHEMA)] == [1, 1]


def test_a_row_that_has_more_columns_than_the_output_is_refused() -> None:
    with pytest.raises(OutputTypeError):
        applied(lambda row, _: [row], [("a", 1)], output=pa.schema([SCHEMA.field("name")]))


@given(st.lists(RECORDS, max_size=3))
def test_running_totals_equal_a_plain_fold_in_order_of_arrival(batches: list[list[Record]]) -> None:
    operator = Process(Totals()).start(backend(), info())
    totals: dict[str | None, int] = {}
    for records in batches:
        expected = []
        for name, amount in records:
            totals[name] = totals.get(name, 0) + amount
            expected.append((name, totals[name]))
        assert rows(operator.process(batch(records))) == expected


@given(st.lists(RECORDS, max_size=3))
def test_deduplication_keeps_the_first_record_of_each_key_and_the_rows_order(batches: list[list[Record]]) -> None:
    operator = Deduplicate(None).start(backend(), info(output=SCHEMA))
    seen: set[str | None] = set()
    for records in batches:
        expected = []
        for record in records:
            if record[0] not in seen:
                seen.add(record[0])
                expected.append(record)
        assert [row[:2] for row in rows(operator.process(batch(records)))] == expected


def test_a_key_that_was_forgotten_is_new_again() -> None:
    clock = BatchClock(processing_time_ms=1000)
    operator = Deduplicate(Ttl(500)).start(backend(clock=clock), info(output=SCHEMA))
    assert len(rows(operator.process(batch([("a", 1)])))) == 1
    clock.advance(processing_time_ms=1499)
    assert rows(operator.process(batch([("a", 1)]))) == []
    clock.advance(processing_time_ms=1500)
    assert len(rows(operator.process(batch([("a", 1)])))) == 1


def test_a_key_of_several_columns_is_a_tuple() -> None:
    key = ("amount", "name")
    function = Applied(lambda _, context: [(str(context.current_key), 0)])
    operator = Process(function).start(backend(key), info(key))
    assert rows(operator.process(batch([("a", 1), (None, 2)], key))) == [("(1, 'a')", 0), ("(2, None)", 0)]


def test_a_result_may_be_a_list_a_generator_or_none() -> None:
    results = {1: [("one", 1)], 2: None, 3: (item for item in [("three", 3), {"total": 4, "name": "four"}]), 4: []}
    records: list[Record] = [("a", number) for number in results]
    assert applied(lambda row, _: results[row.amount], records) == [("one", 1), ("three", 3), ("four", 4)]


def test_many_results_of_a_record_are_emitted_in_several_batches() -> None:
    operator = Process(Applied(lambda *_: (("x", n) for n in range(30_000)))).start(backend(), info())
    batches = list(operator.process(batch([("a", 1), ("b", 2)])))
    assert len(batches) > 1
    assert sum(one.num_rows for one in batches) == 60_000


def test_the_context_has_the_records_timestamp_in_milliseconds() -> None:
    records: list[Record] = [("a", 1)] * 2001
    times = applied(lambda _, context: [("", context.timestamp)], records, timestamp="at")
    assert [time for _, time in times] == [number // 1000 for number in range(2001)]
    assert applied(lambda _, context: [(str(context.timestamp), 0)], [("a", 1)]) == [("None", 0)]


def test_a_function_knows_its_subtask_and_opens_states_of_every_kind() -> None:
    class Opened(Totals):
        def open(self, context: RuntimeContext) -> None:
            self.place = (context.operator_uid, context.subtask_index, context.parallelism, context.max_parallelism)
            self.by_day = context.get_map_state(MapStateDescriptor("by_day", pa.string(), pa.int64()))
            self.all = context.get_list_state(ListStateDescriptor("all", pa.int64()))
            assert context.attempt == 3

        def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:  # noqa: ARG002 - not used
            self.by_day.put("monday", row.amount)
            self.all.add(row.amount)
            yield str(self.place), sum(self.by_day.values()) + sum(self.all.get())

    operator = Process(Opened()).start(backend(), info())
    assert rows(operator.process(batch([("a", 1), ("a", 2)]))) == [
        ("('totals', 1, 2, 128)", 2),
        ("('totals', 1, 2, 128)", 5),
    ]


def test_open_and_close_are_called_once_around_all_batches() -> None:
    calls = []

    class Told(Applied):
        def open(self, context: RuntimeContext) -> None:  # noqa: ARG002 - not used
            calls.append("open")

        def close(self) -> None:
            calls.append("close")

    operator = Process(Told(lambda row, _: calls.append(row.amount))).start(backend(), info())
    for number in (1, 2):
        assert rows(operator.process(batch([("a", number)]))) == []
    operator.close()
    assert calls == ["open", 1, 2, "close"]


class CountsAtItsEnd(Totals):
    """Counts when it is closed."""

    def open(self, context: RuntimeContext) -> None:
        super().open(context)
        self.closed = context.metrics.counter("closed")

    def close(self) -> None:
        self.closed.inc()


def test_what_a_function_counts_when_it_is_closed_counts_with_the_batch() -> None:
    columns = {"name": "string", "amount": "bigint"}
    tested = OperatorHarness(CountsAtItsEnd(), input=columns, key=["name"], output=OUTPUT)
    tested.process(("a", 1))
    tested.process(("a", 1))
    assert tested.metric("closed") == 2


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (
            lambda row, _: int(row.name),
            UserFunctionError,
            "ValueError: invalid literal for int() with base 10: 'D-ABCD'",
        ),
    ],
)
def test_an_exception_of_a_function_is_reported_in_full(function: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as failure:
        applied(function, [("D-ABCD", 1)])
    assert message in str(failure.value)
    assert message in str(origin_of(failure.value).user_traceback)


@pytest.mark.parametrize("function", [lambda *_: [("secret",)], lambda *_: ["secret"]])
def test_our_own_messages_about_results_quote_no_record(function: Any) -> None:
    with pytest.raises(OutputTypeError) as failure:
        applied(function, [("ada", 1)])
    assert "secret" not in str(failure.value)
    assert str(failure.value).partition("key ")[2].startswith("'ada'"), "but the record's key, which names the record"


def test_storing_a_value_of_a_wrong_type_is_reported_with_its_traceback() -> None:
    class Wrong(Totals):
        def process_element(self, row: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - not used
            self.total.update(row.name)
            yield {}

    operator = Process(Wrong()).start(backend(), info())
    with pytest.raises(SerializationError) as failure:
        rows(operator.process(batch([("secret", 1)])))
    text = str(origin_of(failure.value).user_traceback)
    assert "self.total.update(row.name)" in text
    assert "secret" not in text


@pytest.mark.parametrize("moment", ["open", "close"])
def test_a_function_that_fails_to_open_or_close_fails_the_batch(moment: str) -> None:
    def fail(*_: object) -> None:
        raise OSError("secret")

    function = type("Failing", (Totals,), {moment: fail})()
    with pytest.raises(UserFunctionError, match="OSError"):
        Process(function).start(backend(), info()).close()


def test_a_value_state_of_maps_is_advised_to_be_a_map_state_unless_it_migrates() -> None:
    context = RuntimeContext(backend(), info())
    old = ValueStateDescriptor("old", pa.map_(pa.string(), pa.int64()))
    with pytest.warns(UserWarning, match="value state 'old' holds a map") as told:
        context.get_state(old)
    assert told[0].filename == __file__
    RuntimeContext(backend(), info()).get_migrating_map_state(old, MapStateDescriptor("new", pa.string(), pa.int64()))


@pytest.mark.filterwarnings("ignore:value state 'old' holds a map")
def test_a_keys_whole_map_moves_to_a_map_state_when_a_function_uses_the_key() -> None:
    keyed = backend()
    context = RuntimeContext(keyed, info())
    old = ValueStateDescriptor("old", pa.map_(pa.string(), pa.int64()))
    keyed.set_current_key(1, ("ann",))
    context.get_state(old).update({"x": 1})
    entries = context.get_migrating_map_state(old, MapStateDescriptor("new", pa.string(), pa.int64()))
    assert dict(entries.items()) == {"x": 1}
    assert context.get_state(old).value() is None


class Blobs(KeyedProcessFunction):
    """Emits results of a size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def process_element(self, _row: Row, _context: ProcessContext) -> Iterator[dict[str, Any]]:
        yield {"blob": b"x" * self.size}


@pytest.mark.parametrize(("size", "bytes_max"), [(10, 1 << 20), (100_000, 10 << 20), (4 << 20, 65 << 20)])
def test_an_output_batch_has_fewer_results_if_they_are_large(size: int, bytes_max: int) -> None:
    of_blobs = info(output=pa.schema([("blob", pa.binary())]))
    operator = Process(Blobs(size)).start(backend(), of_blobs)
    records: list[Record] = [("a", 1)] * (20_000 if size == 10 else 200)
    sizes = []
    for emitted in operator.process(batch(records)):
        assert isinstance(emitted, pa.RecordBatch)
        assert emitted.nbytes < bytes_max
        sizes.append(emitted.num_rows)
    assert sum(sizes) == len(records)
    assert len(sizes) < 8 or size > 1000, "small results make large batches"
