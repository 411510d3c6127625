"""Functions keep lists per subtask, independent of keys, and a restart redistributes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyscale import KeyedBatchFunction, KeyedProcessFunction, ListStateDescriptor
from keyscale.jobs.errors import OperatorStateUnavailableError, UserFunctionError
from keyscale.jobs.graph.topology import dead_letter_tag
from keyscale.jobs.operators.process_operator import Process
from keyscale.jobs.testing.harness import OperatorHarness

if TYPE_CHECKING:
    from keyscale import KeyedBatch, ProcessContext, Row, RuntimeContext

POSITIONS = ListStateDescriptor("positions", pa.int64())
KNOWN = ListStateDescriptor("known", pa.string())
INPUT = {"user": "string", "amount": "bigint"}
RECORDS = [(f"user-{number}", number) for number in range(12)]


class Remembers(KeyedProcessFunction):
    """Keeps the amounts and users that a subtask has seen. After a restart it emits the lists that it was given."""

    def open(self, context: RuntimeContext) -> None:
        self.amounts = context.get_operator_list_state(POSITIONS)
        self.users = context.get_union_list_state(KNOWN)
        if context.is_restored:
            mine = [user for user in self.users.get() if hash_of(user) % context.parallelism == context.subtask_index]
            self.users.update(mine)

    def process_element(self, row: Row, context: ProcessContext) -> None:  # noqa: ARG002 - not used
        if row.amount < 0:
            self.amounts.clear()
            raise ValueError
        self.amounts.add(row.amount)
        self.users.add(row.user)


def hash_of(user: str) -> int:
    return int(user.removeprefix("user-"))


def harness(parallelism: int = 3) -> OperatorHarness:
    return OperatorHarness(Remembers(), input=INPUT, key=["user"], output=INPUT, parallelism=parallelism)


def amounts(of: OperatorHarness, parallelism: int) -> list[list[int]]:
    return [of.operator_state(subtask).list_state(POSITIONS).get() for subtask in range(parallelism)]


def users(of: OperatorHarness, parallelism: int) -> list[list[str]]:
    return [of.operator_state(subtask).union_list_state(KNOWN).get() for subtask in range(parallelism)]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_split_lists_are_cut_again_at_another_parallelism_and_union_lists_go_to_all_subtasks(parallelism: int) -> None:
    before = harness()
    before.process(*RECORDS)
    tested = before.restored(before.snapshot(), parallelism=parallelism)
    dealt = amounts(tested, parallelism)
    assert sorted(amount for part in dealt for amount in part) == list(range(12))
    if parallelism == 3:  # unchanged
        assert dealt == amounts(before, parallelism)
    else:
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    expected = [sorted(user for user, at in RECORDS if at % parallelism == subtask) for subtask in range(parallelism)]
    assert [sorted(part) for part in users(tested, parallelism)] == expected


def test_only_the_first_batch_after_a_restart_is_restored() -> None:
    before = harness()
    before.process(("user-1", 1))
    tested = before.restored(before.snapshot(), parallelism=2)
    tested.process(("user-2", 2))
    found = [user for part in users(tested, 2) for user in part]
    assert sorted(found) == ["user-1", "user-2"], "what was added later was not thrown away again"
    tested = tested.restored(tested.snapshot(), parallelism=4)
    assert sorted(user for part in users(tested, 4) for user in part) == ["user-1", "user-2"]


def test_a_failed_batch_leaves_operator_state_unchanged() -> None:
    tested = harness(parallelism=1)
    tested.process(*RECORDS)
    with pytest.raises(UserFunctionError):
        tested.process(("user-1", -1))
    assert amounts(tested, 1) == [list(range(12))]


def test_a_batch_function_may_have_operator_state_too() -> None:
    class Counts(KeyedBatchFunction):
        def open(self, context: RuntimeContext) -> None:
            self.rows = context.get_operator_list_state(POSITIONS)

        def process_batch(self, batch: KeyedBatch) -> None:
            self.rows.update([sum(self.rows.get()) + batch.records.num_rows])

    tested = OperatorHarness(Counts(), input=INPUT, key=["user"], output=INPUT)
    tested.process(*RECORDS)
    tested.process(*RECORDS)
    assert amounts(tested, 1) == [[24]]


def test_a_function_with_dead_letters_has_no_operator_state_since_it_cannot_be_undone() -> None:
    logic = Process(Remembers(), "dead-letters")
    tag = dead_letter_tag(pa.schema([("user", pa.string()), ("amount", pa.int64())]))
    tested = OperatorHarness(logic, input=INPUT, key=["user"], output=INPUT, side_outputs=[tag])
    with pytest.raises(OperatorStateUnavailableError, match="dead letters"):
        tested.process(*RECORDS)
