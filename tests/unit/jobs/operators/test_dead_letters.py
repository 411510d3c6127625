"""A record that a function fails on becomes a dead letter, or fails the batch, which reports its position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyscale import KeyedProcessFunction, ListStateDescriptor, MapStateDescriptor, OutputTag, ValueStateDescriptor
from keyscale.jobs.errors import UserFunctionError
from keyscale.jobs.graph.topology import dead_letter_tag
from keyscale.jobs.operators.process_operator import Process
from keyscale.jobs.testing.harness import OperatorHarness
from keyscale.state.errors import SerializationError, StoreIOError

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

    def process_element(self, row: Row, context: ProcessContext) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + row.amount)
        self.by_amount.put(abs(row.amount), row.amount)
        self.all.add(row.amount)
        context.timer_service().register_event_time_timer(abs(row.amount))
        context.output(SEEN, row)
        yield row.user, self.total.value()
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
        match=r"ValueError: grace is in debt, at record 2 of subtask 0 in its batch, key group \d+",
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
