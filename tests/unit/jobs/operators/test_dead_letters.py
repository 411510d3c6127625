"""A record that a function fails on becomes a dead letter, or fails the batch, which reports its position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale import (
    AggregateFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    TimeDomain,
    Ttl,
    TumblingWindows,
    ValueStateDescriptor,
)
from keyscale.identifiers import Attempt, OperatorUid, SubtaskIndex
from keyscale.jobs.errors import OutputTypeError, UserFunctionError
from keyscale.jobs.functions.subtask_info import SecondInputInfo, SplitInfo, SubtaskInfo
from keyscale.jobs.graph.topology import dead_letter_tag
from keyscale.jobs.operators.aggregate import Aggregate, Reduce
from keyscale.jobs.operators.co_process_operator import CoProcess
from keyscale.jobs.operators.deduplicate import Deduplicate
from keyscale.jobs.operators.failed_records import coordinates_of
from keyscale.jobs.operators.operator_contract import KEY_GROUP_COLUMN, SubtaskProgress, run_subtask
from keyscale.jobs.operators.process_operator import Process
from keyscale.jobs.operators.two_inputs import packed_batch
from keyscale.jobs.operators.window_contents import Aggregated
from keyscale.jobs.operators.window_operator import WINDOW_COLUMNS, Windowing
from keyscale.jobs.testing.harness import OperatorHarness
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.errors import KeyTooLargeError, SerializationError, StoreIOError
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.batch_clock import BatchClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import OnTimerContext, ProcessContext, Row, RuntimeContext

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64())])
OUTPUT = {"user": "string", "total": "bigint"}
SEEN = OutputTag("seen", SCHEMA)
LETTERS = dead_letter_tag(SCHEMA)


class Totals(KeyedProcessFunction):
    """Changes states of every kind, timers and outputs, and then fails on negative amounts."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64()))
        self.by_amount = context.get_map_state(MapStateDescriptor("by_amount", pa.int64(), pa.int64()))
        self.all = context.get_list_state(ListStateDescriptor("all", pa.int64()))
        self.counter = context.metrics.counter("records", labels=["user"])

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + row.amount)
        self.by_amount.put(abs(row.amount), row.amount)
        self.all.add(row.amount)
        context.timer_service().register_event_time_timer(abs(row.amount))
        context.output(SEEN, row)
        yield row.user, self.total.value()
        self.counter.labels(user=row.user).inc()
        if row.amount < 0:
            self.by_amount.clear()
            context.timer_service().delete_event_time_timer(5)
            raise ValueError(f"{row.user} is in debt")


def harness(*, diverting: bool = True, function: KeyedProcessFunction | None = None) -> OperatorHarness:
    return OperatorHarness(
        Process(function or Totals(), LETTERS.name if diverting else None),
        input=SCHEMA,
        key=["user"],
        output=OUTPUT,
        side_outputs=[SEEN, LETTERS],
    )


@given(st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-9, 9)), max_size=12), max_size=3))
def test_a_diverted_record_leaves_only_its_dead_letter(batches: list[list[Any]]) -> None:
    tested, clean = harness(), harness()
    for records in batches:
        tested.process(*records)
        clean.process(*[record for record in records if record[1] >= 0])
    assert tested.take_output() == clean.take_output()
    assert tested.take_side_output(SEEN) == clean.take_side_output(SEEN)
    letters = tested.take_side_output(LETTERS)
    assert [row[:2] for row in letters] == [record for records in batches for record in records if record[1] < 0]
    assert (tested.dead_letters, clean.dead_letters) == (len(letters), 0)
    if batches:
        assert [tested.metric("records", user=user) for user in "ab"] == [
            clean.metric("records", user=user) for user in "ab"
        ]
    assert tested.snapshot().families.keys() >= clean.snapshot().families.keys()
    assert {name: kept for name, kept in tested.snapshot().families.items() if kept} == {
        name: kept for name, kept in clean.snapshot().families.items() if kept
    }


def test_a_dead_letter_has_the_exception_with_its_message() -> None:
    tested = harness()
    tested.process(("ada", -1))
    ((user, amount, error),) = tested.take_side_output(LETTERS)
    assert (user, amount) == ("ada", -1)
    assert error == "ValueError: ada is in debt"


def test_a_failed_batch_reports_the_records_position_and_the_exception() -> None:
    tested = harness(diverting=False)
    with pytest.raises(
        UserFunctionError,
        match=r"ValueError: grace is in debt, at record 2 of subtask 0 in its batch, key group \d+, key 'grace'",
    ):
        tested.process(("ada", 1), ("grace", -1))


class FailsToFire(Totals):
    def on_timer(self, timestamp: int, context: OnTimerContext) -> None:  # noqa: ARG002 - not used
        raise ValueError(f"nothing is due at {timestamp}")


def test_the_dead_letters_of_a_batch_that_fails_do_not_count() -> None:
    tested = harness(function=FailsToFire())
    tested.process(("ada", -1), ("ada", 4))
    assert tested.dead_letters == 1
    with pytest.raises(UserFunctionError, match="nothing is due at 4"):
        tested.advance_watermark(4)
    failing = tested.restored(tested.snapshot())
    failing.advance_watermark(3)
    with pytest.raises(UserFunctionError, match="nothing is due at 2"):
        failing.process(("ada", -1), ("ada", 2))
    assert (tested.dead_letters, failing.dead_letters) == (1, 1)


class Raising(KeyedProcessFunction):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def process_element(self, row: Row, context: ProcessContext) -> None:  # noqa: ARG002 - not used
        raise self.error


def test_an_error_that_is_not_the_records_fault_fails_the_batch() -> None:
    with pytest.raises(StoreIOError):
        harness(function=Raising(StoreIOError("the disk is gone"))).process(("ada", 1))
    tested = harness(function=Raising(SerializationError("a str is no int64")))
    tested.process(("ada", 1))
    assert len(tested.take_side_output(LETTERS)) == 1


class Emitting(KeyedProcessFunction):
    """Emits what it is told by the amount, after a change of state."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64()))

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + 1)
        if row.amount == 1:
            yield row.user, 2**63
        elif row.amount == 2:
            yield row.user, "two"
        elif row.amount == 3:
            yield row.user, 3, "and more"
        elif row.amount == 4:
            yield "\ud800", 4
        elif row.amount == 5:
            context.output(SEEN, (row.user, 0.5))
        yield row.user, self.total.value()


def dropping(function: KeyedProcessFunction, *, diverting: bool = False) -> OperatorHarness:
    return OperatorHarness(
        Process(function, LETTERS.name if diverting else None),
        input=SCHEMA,
        key=["user"],
        output=OUTPUT,
        side_outputs=[SEEN, LETTERS],
        failed_records="drop",
    )


@pytest.mark.parametrize("amount", [1, 2, 3, 4, 5])
def test_a_record_whose_result_does_not_fit_is_a_dead_letter_and_changes_nothing(amount: int) -> None:
    tested = harness(function=Emitting())
    tested.process(("ada", 9), ("ada", amount), ("ada", 9))
    assert tested.take_output() == [("ada", 1), ("ada", 2)]
    ((user, found, error),) = tested.take_side_output(LETTERS)
    assert (user, found) == ("ada", amount)
    assert "JOB_OUTPUT_MISMATCH" in error
    assert tested.dead_letters == 1


@pytest.mark.parametrize("amount", [1, 2, 4])
def test_a_result_that_does_not_fit_fails_the_batch_with_the_coordinates_of_its_record(amount: int) -> None:
    with pytest.raises(OutputTypeError, match=r"output column '(total|user)' is declared .*, key 'grace'"):
        harness(diverting=False, function=Emitting()).process(("ada", 9), ("grace", amount), ("eve", 9))


def test_without_dead_letters_a_job_may_drop_failed_records_and_counts_them() -> None:
    tested = dropping(Totals())
    tested.process(("ada", 1), ("ada", -1), ("ada", 2))
    assert tested.take_output() == [("ada", 1), ("ada", 3)]
    assert tested.take_side_output(LETTERS) == []
    assert tested.dead_letters == 1
    with pytest.raises(StoreIOError):
        dropping(Raising(StoreIOError("the disk is gone"))).process(("ada", 1))


def test_a_value_that_state_refuses_fails_the_batch_with_the_coordinates_of_its_record() -> None:
    class Wrong(Totals):
        def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:
            self.total.update("one" if row.amount < 0 else row.amount)
            return super().process_element(row, context)

    with pytest.raises(SerializationError, match=r"at record 2 of subtask 0 in its batch, .*, key 'grace'"):
        harness(diverting=False, function=Wrong()).process(("ada", 1), ("grace", -1))


LARGE = "k" * 70_000


def test_a_key_that_is_too_large_is_a_dead_letter() -> None:
    tested = harness()
    tested.process(("ada", 1), (LARGE, 2), ("ada", 3))
    assert tested.take_output() == [("ada", 1), ("ada", 4)]
    ((user, amount, error),) = tested.take_side_output(LETTERS)
    assert (user, amount) == (LARGE, 2)
    assert error.startswith("STATE_KEY_TOO_LARGE: a key with its namespace and map key takes 700")


@pytest.mark.parametrize("logic", [Process(Totals()), Deduplicate(None), Reduce(lambda left, _: left, None)])
def test_a_key_that_is_too_large_fails_the_batch_with_its_coordinates_or_is_dropped(logic: Any) -> None:
    output = OUTPUT if isinstance(logic, Process) else SCHEMA
    options: dict[str, Any] = {"input": SCHEMA, "key": ["user"], "output": output, "side_outputs": [SEEN]}
    with pytest.raises(KeyTooLargeError, match=r"65535 are allowed, key 'kkk.*\.\.\. \(70002 characters\)"):
        OperatorHarness(logic, **options).process(("ada", 1), (LARGE, 2))
    tested = OperatorHarness(logic, **options, failed_records="drop")
    tested.process(("ada", 1), (LARGE, 2), ("grace", 3))
    assert [row[0] for row in tested.take_output()] == ["ada", "grace"]
    assert tested.dead_letters == 1


def test_a_nested_key_that_is_too_large_is_a_dead_letter() -> None:
    schema = pa.schema([("key", pa.struct({"name": pa.string()}))])
    logic = Reduce(lambda left, _: left, None)
    tested = OperatorHarness(logic, input=schema, key=["key"], output=schema, failed_records="drop")
    tested.process(({"name": "\0" * 40_000},), ({"name": "ada"},))  # a zero takes two bytes of a stored key
    assert tested.dead_letters == 1
    assert tested.take_output() == [({"name": "ada"},)]


@pytest.mark.parametrize("wide", [pa.large_string(), pa.large_binary()], ids=str)
def test_a_key_of_a_wide_type_that_is_too_large_is_a_dead_letter(wide: pa.DataType) -> None:
    large = LARGE if wide == pa.large_string() else LARGE.encode()
    schema = pa.schema([("key", wide)])
    logic = Reduce(lambda left, _: left, None)
    tested = OperatorHarness(logic, input=schema, key=["key"], output=schema, failed_records="drop")
    tested.process((large,), (large[:3],))
    assert tested.dead_letters == 1
    assert tested.take_output() == [(large[:3],)]


def test_a_key_at_the_limit_is_stored() -> None:
    tested = harness()
    tested.process(("k" * 65_500, 1))
    assert tested.dead_letters == 0


def test_a_hashed_key_has_any_size() -> None:
    tested = OperatorHarness(Deduplicate(None, hashed=True), input=SCHEMA, key=["user"], output=SCHEMA)
    tested.process((LARGE, 1))
    assert len(tested.take_output()) == 1


class DebtError(Exception):
    pass


def less(left: Row, right: Row) -> tuple[Any, ...]:
    if right.amount < 0:
        raise DebtError("below zero")
    return (left.user, 2**63 if right.amount == 0 else left.amount + right.amount)


class Sum(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Row, accumulator: int) -> int:
        if value.amount < 0:
            raise DebtError("below zero")
        return accumulator + value.amount

    def get_result(self, accumulator: int) -> tuple[Any, ...]:
        return ("five" if accumulator == 5 else accumulator,)

    def merge(self, left: int, right: int) -> int:
        return left + right


@pytest.mark.parametrize("logic", [Reduce(less, None), Aggregate(Sum(), pa.int64(), None)])
def test_reductions_and_aggregations_drop_failed_records_or_name_them(logic: Any) -> None:
    options: dict[str, Any] = {"input": SCHEMA, "key": ["user"], "output": {"user": "string", "amount": "bigint"}}
    with pytest.raises(UserFunctionError, match="DebtError: below zero, key 'grace'"):
        OperatorHarness(logic, **options).process(("ada", 1), ("grace", 1), ("grace", -1))
    tested = OperatorHarness(logic, **options, failed_records="drop")
    misfit = 0 if isinstance(logic, Reduce) else 4
    tested.process(("ada", 1), ("ada", -1), ("ada", misfit), ("ada", 2), ("grace", 7))
    assert tested.take_output() == [("ada", 1), ("ada", 3), ("grace", 7)]
    assert tested.dead_letters == 2


class SumInPlace(Sum):
    """Changes its accumulator in place, and then fails on negative amounts."""

    def create_accumulator(self) -> Any:
        return {"sum": 0}

    def add(self, value: Row, accumulator: Any) -> Any:
        accumulator["sum"] += value.amount
        if value.amount < 0:
            raise DebtError("below zero")
        return accumulator

    def get_result(self, accumulator: Any) -> tuple[Any, ...]:
        return super().get_result(accumulator["sum"])


def test_a_dropped_record_leaves_an_accumulator_that_changes_in_place_as_it_was() -> None:
    logic = Aggregate(SumInPlace(), pa.struct([("sum", pa.int64())]), None)
    output = {"user": "string", "amount": "bigint"}
    tested = OperatorHarness(logic, input=SCHEMA, key=["user"], output=output, failed_records="drop")
    tested.process(("ada", 1), ("ada", -1), ("ada", 4), ("ada", 2))
    tested.process(("ada", -7), ("ada", 6))
    assert tested.take_output() == [("ada", 1), ("ada", 3), ("ada", 9)]
    assert tested.dead_letters == 3


def joined_in_place(left: Row, right: Row) -> Row:
    left.amounts.extend(right.amounts)
    if right.amounts[-1] < 0:
        raise DebtError("below zero")
    return left


def test_a_dropped_record_leaves_a_reduced_record_that_changes_in_place_as_it_was() -> None:
    schema = pa.schema([("user", pa.string()), ("amounts", pa.list_(pa.int64()))])
    tested = OperatorHarness(
        Reduce(joined_in_place, None), input=schema, key=["user"], output=schema, failed_records="drop"
    )
    tested.process(("ada", [1]), ("ada", [-1]))
    tested.process(("ada", [4]), ("ada", [-2]))
    assert [value for _, value in tested.state("reduced")] == [{"user": "ada", "amounts": [1, 4]}]
    assert tested.dead_letters == 2


def test_a_dropped_record_renews_no_ttl() -> None:
    output = {"user": "string", "amount": "bigint"}
    for logic in (Reduce(less, Ttl(100)), Aggregate(Sum(), pa.int64(), Ttl(100))):
        tested = OperatorHarness(logic, input=SCHEMA, key=["user"], output=output, failed_records="drop")
        tested.process(("ada", 1), ("grace", 1))
        tested.advance_processing_time(60)
        tested.process(("ada", -1), ("grace", 2))
        tested.advance_processing_time(120)
        tested.process(("ada", 6), ("grace", 4))
        assert tested.take_output()[-2:] == [("ada", 6), ("grace", 7)]


class Capped(Sum):
    def get_result(self, accumulator: int) -> tuple[Any, ...]:
        return (min(accumulator, 100),)


def test_a_record_whose_accumulator_does_not_fit_is_dropped() -> None:
    output = {"user": "string", "amount": "bigint"}
    tested = OperatorHarness(
        Aggregate(Capped(), pa.int8(), None), input=SCHEMA, key=["user"], output=output, failed_records="drop"
    )
    tested.process(("ada", 120), ("ada", 8), ("ada", 7), ("grace", 1))
    tested.process(("ada", 1))
    assert tested.take_output() == [("ada", 100), ("ada", 100), ("grace", 1)]
    assert tested.dead_letters == 2


@pytest.mark.parametrize("failed_records", ["fail", "drop"])
def test_a_result_stays_as_it_was_emitted_if_its_list_changes_later(failed_records: str) -> None:
    schema = pa.schema([("user", pa.string()), ("amounts", pa.list_(pa.int64()))])
    for logic in (Reduce(joined_in_place, None), Aggregate(Joined(), pa.list_(pa.int64()), None)):
        tested = OperatorHarness(logic, input=schema, key=["user"], output=schema, failed_records=failed_records)
        tested.process(("ada", [1]), ("ada", [2]), ("ada", [3]))
        assert tested.take_output() == [("ada", [1]), ("ada", [1, 2]), ("ada", [1, 2, 3])]


class Joined(AggregateFunction):
    """Changes its list, and emits it."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Row, accumulator: list[int]) -> list[int]:
        accumulator.extend(value.amounts)
        return accumulator

    def get_result(self, accumulator: list[int]) -> tuple[Any, ...]:
        return (accumulator,)

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return left + right


def test_a_key_whose_records_are_all_dropped_has_no_accumulator() -> None:
    output = {"user": "string", "amount": "bigint"}
    tested = OperatorHarness(
        Aggregate(Sum(), pa.int64(), None), input=SCHEMA, key=["user"], output=output, failed_records="drop"
    )
    tested.process(("ada", -1), ("grace", 1), ("ada", -2))
    assert [(stored.key, value) for stored, value in tested.state("accumulator")] == [(("grace",), 1)]


@pytest.mark.parametrize("logic", [Reduce(less, None), Aggregate(Sum(), pa.int64(), None)])
def test_a_batch_of_dropped_records_alone_emits_nothing(logic: Any) -> None:
    output = {"user": "string", "amount": "bigint"}
    tested = OperatorHarness(logic, input=SCHEMA, key=["user"], output=output, failed_records="drop")
    tested.process(("ada", 1))
    tested.process(("ada", -1))
    tested.process((LARGE, 1))
    tested.process(("ada", 2))
    assert (tested.take_output(), tested.dead_letters) == ([("ada", 1), ("ada", 3)], 2)


def test_an_aggregation_by_several_columns_drops_a_result_that_does_not_fit() -> None:
    columns = {"user": "string", "kind": "string", "amount": "bigint"}
    tested = OperatorHarness(
        Aggregate(Sum(), pa.int64(), None), input=columns, key=["user", "kind"], output=columns, failed_records="drop"
    )
    tested.process(("ada", "x", 1), ("ada", "y", 5), ("ada", "x", 2))
    assert tested.take_output() == [("ada", "x", 1), ("ada", "x", 3)]
    assert tested.dead_letters == 1


def windows(allowed_lateness_ms: int = 0, **options: Any) -> OperatorHarness:
    timed = pa.schema([*SCHEMA, ("at", pa.int64())])
    return OperatorHarness(
        Windowing(TumblingWindows(10), Aggregated(Sum(), pa.int64()), allowed_lateness_ms),
        input=timed,
        key=["user"],
        output={"user": "string", "window_start": "bigint", "window_end": "bigint", "amount": "bigint"},
        timestamp="at",
        **options,
    )


def test_windows_drop_failed_records_or_name_them() -> None:
    with pytest.raises(UserFunctionError, match="DebtError: below zero, key 'grace'"):
        windows().process(("ada", 1, 1), ("grace", -1, 1))
    tested = windows(failed_records="drop")
    tested.process(("ada", 1, 1), ("ada", -1, 1), ("ada", 2, 1))
    tested.advance_watermark(9)
    assert tested.take_output() == [("ada", 0, 10, 3)]
    assert tested.dead_letters == 1


def test_a_late_record_whose_window_has_a_result_that_does_not_fit_is_dropped() -> None:
    tested = windows(allowed_lateness_ms=100, failed_records="drop")
    tested.process(("ada", 1, 1))
    tested.advance_watermark(9)
    tested.process(("ada", 4, 1), ("ada", 2, 1))
    assert tested.take_output() == [("ada", 0, 10, 1), ("ada", 0, 10, 3)]
    assert tested.dead_letters == 1


class Debts(KeyedCoProcessFunction):
    """Fails on negative amounts of both streams."""

    def process_element1(self, row: Row, context: ProcessContext) -> Iterator[Any]:  # noqa: ARG002 - not used
        if row.amount < 0:
            raise DebtError("below zero")
        yield row.user, row.amount

    def process_element2(self, row: Row, context: ProcessContext) -> Iterator[Any]:  # noqa: ARG002 - not used
        if row.amount < 0:
            raise DebtError("below zero")
        yield row.name, row.amount


TOTALLED = pa.schema([("user", pa.string()), ("total", pa.int64())])
WINDOWED = pa.schema([("user", pa.string()), *WINDOW_COLUMNS, ("total", pa.int64())])
SECOND = SecondInputInfo(("name", "amount"), ("name",))


@pytest.mark.parametrize(
    ("logic", "output", "second"),
    [
        (Process(Totals()), TOTALLED, None),
        (Reduce(less, None), SCHEMA, None),
        (Aggregate(Sum(), pa.int64(), None), TOTALLED, None),
        (
            Windowing(TumblingWindows(10, time_domain=TimeDomain.PROCESSING), Aggregated(Sum(), pa.int64())),
            WINDOWED,
            None,
        ),
        (CoProcess(Debts()), TOTALLED, SECOND),
    ],
    ids=["process", "reduce", "aggregate", "window", "second stream"],
)
def test_the_first_of_several_dropped_records_is_reported(logic: Any, output: pa.Schema, second: Any) -> None:
    info = SubtaskInfo(
        operator_uid=OperatorUid("tested"),
        subtask=SubtaskIndex(0),
        parallelism=1,
        max_parallelism=8,
        attempt=Attempt(1),
        input_columns=("user", "amount"),
        key_columns=("user",),
        timestamp_column=None,
        output_schema=output,
        side_outputs={SEEN.name: SEEN.schema},
        failed_records="drop",
        second=second,
    )
    groups = pa.array([1, 2, 3, 1, 2, 3], pa.int32())
    users = ["ada", "grace", "eve"] * 2
    amounts = [1, 1, 1, 1, -1, -1]
    records = pa.record_batch({"name" if second else "user": users, "amount": amounts, KEY_GROUP_COLUMN: groups})
    progress = SubtaskProgress()
    state = KeyedStateBackend(HeapEngine(), pa.schema([("user", pa.string())]), BatchClock())
    given = packed_batch(records, 1) if second else records
    list(run_subtask(logic, state, info, [given], progress=progress))
    assert progress.counts["dead_letters"] == 2
    assert str(progress.first_failure).endswith(", key 'grace'")


class Reminds(KeyedProcessFunction):
    """Emits what does not fit when a timer fires, in the batch of the record that registers it."""

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:
        context.timer_service().register_processing_time_timer(0)
        yield row.user, row.amount

    def on_timer(self, timestamp: int, context: OnTimerContext) -> Iterator[Any]:  # noqa: ARG002 - not used
        yield context.current_key, "two"


def test_a_result_of_a_timer_that_does_not_fit_names_no_record() -> None:
    with pytest.raises(OutputTypeError, match="output column 'total' is declared") as failure:
        harness(diverting=False, function=Reminds()).process(("ada", 1))
    assert "ada" not in str(failure.value)


@pytest.mark.parametrize("at", [2**63 - 1, 2**63 - 8, -(2**63)])
def test_a_time_whose_window_cannot_be_stored_is_late(at: int) -> None:
    tested = windows()
    tested.process(("ada", 1, at), ("ada", 2, 1))
    assert tested.late_records == 1
    tested.advance_watermark(9)
    assert tested.take_output() == [("ada", 0, 10, 2)]


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        (("topic", "partition"), "split clicks/3, offset 17, key 'ada'"),
        (("__split",), "split clicks/4, offset 17, key 'ada'"),
        ((), "offset 17, key 'ada'"),
    ],
)
def test_the_coordinates_of_a_record_are_its_split_its_offset_and_its_key(columns: tuple[str, ...], where: str) -> None:
    values = {"user": "ada", "topic": "clicks", "partition": 3, "offset": 17, "__split": "clicks/4"}
    info = SubtaskInfo(
        operator_uid=OperatorUid("totals"),
        subtask=SubtaskIndex(0),
        parallelism=1,
        max_parallelism=8,
        attempt=Attempt(1),
        input_columns=("user", "topic", "partition", "offset"),
        key_columns=("user",),
        timestamp_column=None,
        output_schema=SCHEMA,
        splits={"source": SplitInfo("source(topic,partition)", columns)} if columns else {},
    )
    assert coordinates_of(pa.RecordBatch.from_pylist([values]), 0, info) == where


class Unchanged(KeyedProcessFunction):
    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:  # noqa: ARG002 - not used
        yield row


def test_a_record_that_is_yielded_unchanged_and_does_not_fit_is_dropped() -> None:
    narrow = {"user": "string", "amount": "int"}
    tested = OperatorHarness(Unchanged(), input=SCHEMA, key=["user"], output=narrow, failed_records="drop")
    tested.process(("ada", 1), ("ada", 2**40), ("grace", 3))
    assert tested.take_output() == [("ada", 1), ("grace", 3)]
    assert tested.dead_letters == 1
