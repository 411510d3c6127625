"""How often subtasks run where their state is, counted from their tasks' reports."""

from __future__ import annotations

from keyscale.identifiers import OperatorUid, SubtaskIndex
from keyscale.jobs.runtime.batch.locality import Locality
from keyscale.jobs.runtime.executor.task_reports import TaskReport
from keyscale.state.restore.opened_shards import StateSource

UID = OperatorUid("count")


def report(subtask: int, executor: str, source: StateSource | None = StateSource.WARM) -> TaskReport:
    return TaskReport("run", UID, SubtaskIndex(subtask), executor=executor, source=source)


def test_a_subtask_that_stays_with_its_state_has_not_moved() -> None:
    placement = Locality()
    for source in (StateSource.NEW, StateSource.WARM, StateSource.LOCAL):
        assert placement.saw([report(0, "a", source), report(1, "b", source)]) == []
    assert (placement.runs, placement.moved, placement.rebuilt) == (6, 0, 0)


def test_a_subtask_that_moves_or_rebuilds_its_state_is_named() -> None:
    placement = Locality()
    placement.saw([report(0, "a"), report(1, "b")])
    moves = placement.saw([report(0, "b", StateSource.REBUILT), report(1, "b")])
    assert [str(move) for move in moves] == ["count[0] runs on b, was on a; its state is rebuilt"]
    assert [str(move) for move in placement.saw([report(1, "b", StateSource.REBUILT)])] == [
        "count[1] runs on b; its state is rebuilt"
    ]
    assert (placement.runs, placement.moved, placement.rebuilt) == (5, 1, 2)


def test_a_subtask_with_nothing_to_do_is_not_counted() -> None:
    placement = Locality()
    assert placement.saw([report(0, "", None)]) == []
    assert placement.runs == 0
