"""Refused rows of a sink reach its dead letter sink, each once and with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from keyscale.jobs.errors import SinkRowsRefusedError
from keyscale.jobs.sinks import dead_letters
from keyscale.jobs.sinks.dead_letters import DeadLetters, refused
from keyscale.jobs.sinks.sink import SinkContext

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT = SinkContext("job", "table", 7, 3, "unique", forked_from="other")


class Letters:
    """A dead letter sink that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def prepare(self, frame: Any, context: SinkContext) -> str:
        self.calls.append((f"prepare {frame}", context))
        return "letters"

    def publish(self, token: str) -> None:
        self.calls.append(("publish", token))

    def discard(self, token: str) -> None:
        self.calls.append(("discard", token))

    def recover(self, context: SinkContext) -> None:
        self.calls.append(("recover", context))


def test_dead_letters_are_a_sink_of_their_own_in_the_same_batch() -> None:
    sink = Letters()
    letters = DeadLetters(cast("Any", sink))
    assert letters.prepare(cast("Any", "rows"), {"bad": 1}, CONTEXT) == "letters"
    letters.publish("letters")
    letters.publish(None)
    letters.discard("letters")
    letters.discard(None)
    letters.recover(CONTEXT)
    own = SinkContext("job", "table-dead-letters", 7, 3, "unique", forked_from="other")
    assert sink.calls == [("prepare rows", own), ("publish", "letters"), ("discard", "letters"), ("recover", own)]


def test_a_dead_letter_sink_is_checked_with_the_reason_as_a_column() -> None:
    checked: list[tuple[pa.Schema, SinkContext]] = []

    class Checked(Letters):
        def check(self, schema: pa.Schema, context: SinkContext) -> None:
            checked.append((schema, context))

    schema = pa.schema([("id", pa.int64())])
    for sink in (None, Letters(), Checked()):
        DeadLetters(cast("Any", sink)).check(schema, CONTEXT)
    ((found, context),) = checked
    assert found == pa.schema([("id", pa.int64()), ("error", pa.string())])
    assert context.uid == "table-dead-letters"


def test_without_a_sink_for_them_refused_rows_fail_the_batch_and_all_else_is_nothing() -> None:
    letters = DeadLetters(None)
    letters.publish("letters")
    letters.discard("letters")
    letters.recover(CONTEXT)
    with pytest.raises(SinkRowsRefusedError, match=r"batch 7 .*: 2 with bad; 1 with worse$"):
        letters.prepare(cast("Any", "rows"), {"worse": 1, "bad": 2}, CONTEXT)


class System:
    """A sink's system that refuses all given rows if one number is odd."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.statements = 0

    def accept(self, rows: Sequence[int]) -> str | None:
        self.statements += 1
        odd = [row for row in rows if row % 2]
        if odd:
            return f"{odd[0]} is odd"
        self.taken += rows
        return None


@pytest.mark.parametrize(
    ("rows", "statements_max"), [([], 1), ([4], 1), ([3], 1), (range(0, 64, 2), 1), ([*range(0, 64, 2), 65], 13)]
)
def test_each_row_is_taken_in_order_or_refused_in_few_statements(rows: Sequence[int], statements_max: int) -> None:
    system = System()
    assert list(refused(rows, system.accept)) == [(row, f"{row} is odd") for row in rows if row % 2]
    assert system.taken == [row for row in rows if row % 2 == 0]
    assert system.statements <= statements_max


def test_every_refused_row_is_found_among_many() -> None:
    system = System()
    assert [row for row, _ in refused(range(101), system.accept)] == list(range(1, 101, 2))
    assert system.taken == list(range(0, 101, 2))


def test_more_refused_rows_than_a_batch_may_have_fail_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "REFUSED_MAX", 3)
    assert len(list(refused([1, 3, 5], System().accept))) == 3
    with pytest.raises(SinkRowsRefusedError, match="more than 3"):
        list(refused([1, 3, 5, 7], System().accept))
