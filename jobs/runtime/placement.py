"""Where subtasks run: whether each is still where its state is, counted from what the tasks report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state.subtask import StateSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobs.runtime.reports import TaskReport
    from state.identifiers import OperatorUid, SubtaskIndex


@dataclass(frozen=True, slots=True)
class Move:
    """A subtask that did not find its state where it ran, or runs elsewhere than before.

    Attributes:
        uid: The operator.
        subtask: The subtask.
        executor: Where it runs now.
        before: Where it ran before; None: it is the first time.
        source: Where its state came from.
    """

    uid: OperatorUid
    subtask: SubtaskIndex
    executor: str
    before: str | None
    source: StateSource

    def __str__(self) -> str:
        place = (
            f"on {self.executor}"
            if self.before in {None, self.executor}
            else f"on {self.executor}, was on {self.before}"
        )
        return f"{self.uid}[{self.subtask}] runs {place}; its state is {self.source.value}"


@dataclass(slots=True)
class Placement:
    """The executors of an attempt's subtasks.

    Attributes:
        runs: Tasks that worked with state, in all committed batches.
        moved: Those that ran on another executor than the task before them.
        rebuilt: Those whose state had to be rebuilt from the object store.
    """

    runs: int = 0
    moved: int = 0
    rebuilt: int = 0
    _executors: dict[tuple[OperatorUid, SubtaskIndex], str] = field(default_factory=dict)

    def saw(self, reports: Iterable[TaskReport]) -> list[Move]:
        """Takes note of a batch's tasks; gives those that have moved or had to rebuild their state."""
        moves = []
        for report in reports:
            if report.source is None:
                continue
            place = report.uid, report.subtask
            before = self._executors.get(place)
            self._executors[place] = report.executor
            has_moved, is_rebuilt = before not in {None, report.executor}, report.source is StateSource.REBUILT
            self.runs += 1
            self.moved += has_moved
            self.rebuilt += is_rebuilt
            if has_moved or is_rebuilt:
                moves.append(Move(report.uid, report.subtask, report.executor, before, report.source))
        return moves
