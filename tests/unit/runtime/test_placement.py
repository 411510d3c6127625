"""Whether subtasks run where their state is is counted from what their tasks report."""

from __future__ import annotations

from jobs.runtime.placement import Placement
from jobs.runtime.reports import TaskReport
from state.identifiers import OperatorUid, SubtaskIndex
from state.subtask import StateSource

UID = OperatorUid("count")


def report(subtask: int, executor: str, source: StateSource | None = StateSource.WARM) -> TaskReport:
    return TaskReport("run", UID, SubtaskIndex(subtask), executor=executor, source=source)


def test_a_subtask_that_stays_with_its_state_has_not_moved() -> None:
    placement = Placement()
    for source in (StateSource.NEW, StateSource.WARM, StateSource.LOCAL):
        assert placement.saw([report(0, "a", source), report(1, "b", source)]) == []
    assert (placement.runs, placement.moved, placement.rebuilt) == (6, 0, 0)


def test_a_subtask_that_moves_or_rebuilds_its_state_is_named() -> None:
    placement = Placement()
    placement.saw([report(0, "a"), report(1, "b")])
    moves = placement.saw([report(0, "b", StateSource.REBUILT), report(1, "b")])
    assert [str(move) for move in moves] == ["count[0] runs on b, was on a; its state is rebuilt"]
    assert [str(move) for move in placement.saw([report(1, "b", StateSource.REBUILT)])] == [
        "count[1] runs on b; its state is rebuilt"
    ]
    assert (placement.runs, placement.moved, placement.rebuilt) == (5, 1, 2)


def test_a_subtask_with_nothing_to_do_is_not_counted() -> None:
    placement = Placement()
    assert placement.saw([report(0, "", None)]) == []
    assert placement.runs == 0
