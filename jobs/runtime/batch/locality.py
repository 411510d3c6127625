"""How often subtasks run where their state is.

The numbers come from the tasks' reports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keyscale.state.doors.subtasks import StateSource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyscale.identifiers import OperatorUid, SubtaskIndex

    from ..executor.task_reports import TaskReport


@dataclass(frozen=True, slots=True)
class Move:
    """A subtask that changed its executor or had to rebuild its state.

    Attributes:
        uid: The operator.
        subtask: The subtask.
        executor: The executor that it runs on now.
        before: The executor that it ran on before, if any.
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
class Locality:
    """Counts of an attempt's tasks, by where they found their state.

    Attributes:
        runs: Tasks of all committed batches that used state.
        moved: Tasks that ran on another executor than the previous task.
        rebuilt: Tasks that had to rebuild their state from the object store.
    """

    runs: int = 0
    moved: int = 0
    rebuilt: int = 0
    _executors: dict[tuple[OperatorUid, SubtaskIndex], str] = field(default_factory=dict)

    def saw(self, reports: Iterable[TaskReport]) -> list[Move]:
        """Counts a batch's tasks; returns moved and rebuilt tasks."""
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
