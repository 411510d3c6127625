"""A run's logic and plans are shipped once, and the plans again only from a new base on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyscale.identifiers import OperatorUid
from keyscale.jobs.runtime.batch import shipped_logic
from keyscale.jobs.runtime.batch.committed_state import PlanBase
from keyscale.jobs.runtime.batch.shipped_logic import ShippedLogic

ONE, TWO = OperatorUid("one"), OperatorUid("two")


class Payload:
    """A payload that says what it holds, and whether it is still there."""

    made: list[Payload]

    def __init__(self, holds: Any) -> None:
        self.holds, self.is_there = holds, True
        Payload.made.append(self)

    @classmethod
    def of(cls, context: str, holds: Any) -> Payload:
        assert context == "context"
        return cls(holds)

    def release(self) -> None:
        assert self.is_there, "released twice"
        self.is_there = False


def start(name: str) -> Any:
    return SimpleNamespace(version=f"version {name}", plan=SimpleNamespace(operator_state=f"operator state {name}"))


def state(base: PlanBase, position: int, *names: str) -> Any:
    starts = {ONE: tuple(start(f"{name} of one") for name in names), TWO: (start("of two"),)}
    return SimpleNamespace(plan_base=base, starts=starts, log_position=position)


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> ShippedLogic:
    Payload.made = []
    monkeypatch.setattr(shipped_logic, "BroadcastPayload", Payload)
    monkeypatch.setattr(shipped_logic, "pickled_plans", lambda starts: f"plans of {starts}")
    nodes = [SimpleNamespace(uid=uid, logic=f"logic of {uid}") for uid in (ONE, TWO)]
    return ShippedLogic(cast("Any", "context"), cast("Any", SimpleNamespace(operators=nodes)))


def test_plans_are_shipped_once_for_a_base_and_released_with_it(shipped: ShippedLogic) -> None:
    assert {uid: cast("Any", payload).holds for uid, payload in shipped.logic.items()} == {
        ONE: "logic of one",
        TWO: "logic of two",
    }
    first = PlanBase(5, cast("Any", {ONE: "a", TWO: "b"}))
    for position in (5, 8):
        starts = shipped.starts(state(first, position, "x", "y"))
        one, two = starts[ONE], starts[TWO]
        assert (one.versions, one.operator_states) == (
            ("version x of one", "version y of one"),
            ("operator state x of one", "operator state y of one"),
        )
        assert (one.base_position, one.position, two.versions) == (5, position, ("version of two",))
        assert [cast("Any", each.base).holds for each in (one, two)] == ["plans of a", "plans of b"]
    assert len(Payload.made) == 4
    equal = PlanBase(9, cast("Any", {ONE: "a", TWO: "b"}))
    again = shipped.starts(state(equal, 9, "x"))
    assert [payload.is_there for payload in Payload.made] == [True, True, False, False, True, True]
    assert again[ONE].base_position == 9
    shipped.release()
    assert not any(payload.is_there for payload in Payload.made)
