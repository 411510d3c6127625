"""A record that a function fails on is diverted without a trace, or fails the batch and is told by its place alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import KeyedProcessFunction, ListStateDescriptor, MapStateDescriptor, OutputTag, ValueStateDescriptor
from jobs.errors import UserFunctionError
from jobs.process import Process
from jobs.testing import OperatorHarness
from jobs.topology import dead_letter_tag
from state.errors import SerializationError, StoreIOError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobs import ProcessContext, Row, RuntimeContext

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64())])
OUTPUT = {"user": "string", "total": "bigint"}
SEEN = OutputTag("seen", SCHEMA)
LETTERS = dead_letter_tag(SCHEMA)


class Totals(KeyedProcessFunction):
    """Changes states of every kind, timers and outputs, and then fails on amounts below zero."""

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
def test_a_diverted_record_leaves_nothing_but_its_dead_letter(batches: list[list[Any]]) -> None:
    tested, clean = harness(), harness()
    for records in batches:
        tested.process(*records)
        clean.process(*[record for record in records if record[1] >= 0])
    assert tested.take_output() == clean.take_output()
    assert tested.take_side_output(SEEN) == clean.take_side_output(SEEN)
    letters = tested.take_side_output(LETTERS)
    assert [row[:2] for row in letters] == [record for records in batches for record in records if record[1] < 0]
    assert tested.snapshot().families.keys() >= clean.snapshot().families.keys()
    assert {name: kept for name, kept in tested.snapshot().families.items() if kept} == {
        name: kept for name, kept in clean.snapshot().families.items() if kept
    }


def test_a_dead_letter_says_what_was_raised_without_its_message() -> None:
    tested = harness()
    tested.process(("ada", -1))
    ((user, amount, error),) = tested.take_side_output(LETTERS)
    assert (user, amount) == ("ada", -1)
    assert error.startswith("ValueError")
    assert "debt" not in error


def test_a_batch_that_fails_tells_the_records_place_and_not_its_content() -> None:
    tested = harness(diverting=False)
    with pytest.raises(
        UserFunctionError, match=r"ValueError.*at record 2 of subtask 0 in its batch, key group \d+"
    ) as failure:
        tested.process(("ada", 1), ("grace", -1))
    assert "grace" not in str(failure.value)


class Raising(KeyedProcessFunction):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def process_element(self, row: Row, context: ProcessContext) -> None:  # noqa: ARG002 - its signature
        raise self.error


def test_what_is_no_fault_of_the_record_fails_the_batch_all_the_same() -> None:
    with pytest.raises(StoreIOError):
        harness(function=Raising(StoreIOError("the disk is gone"))).process(("ada", 1))
    tested = harness(function=Raising(SerializationError("a str is no int64")))
    tested.process(("ada", 1))
    assert len(tested.take_side_output(LETTERS)) == 1
