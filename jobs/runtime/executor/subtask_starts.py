"""The state version that a subtask starts from.

A plan to rebuild the state names all its files and changelogs, so the plans of many subtasks are large. A task needs
its plan only if its state is neither open nor in local files. So tasks get the versions alone, and for the plans a
base: earlier plans, shipped once to each executor. A task that needs its plan takes it from the base and reads the
changes of later batches from the commit log.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.state.doors.subtasks import DeferredPlan, followed_in_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.identifiers import OperatorUid, SubtaskIndex
    from keyscale.state.doors.objects import ObjectStore
    from keyscale.state.doors.paths import Layout
    from keyscale.state.doors.subtasks import OperatorStatePlan, RestorePlan, StateVersion

    from ...spark_internals.broadcast_payloads import BroadcastPayload


@dataclass(frozen=True, slots=True)
class SubtaskStart:
    """The state version that a subtask starts a batch from.

    The plan rebuilds the version without local files.
    """

    version: StateVersion
    plan: RestorePlan


@dataclass(frozen=True, slots=True)
class ShippedStarts:
    """The starts of an operator's subtasks, as tasks get them.

    Attributes:
        uid: The operator.
        versions: Where each subtask starts, by index.
        operator_states: The files of each subtask's operator state, by index.
        base: The pickled plans of all subtasks, by index, as of an entry of the commit log.
        base_position: The position of that entry.
        position: The last entry of the commit log that the versions contain.
    """

    uid: OperatorUid
    versions: tuple[StateVersion, ...]
    operator_states: tuple[OperatorStatePlan, ...]
    base: BroadcastPayload
    base_position: int
    position: int

    @property
    def must_all_run(self) -> bool:
        """Whether every subtask runs in the batch, with or without records.

        All subtasks take over the operator state of an earlier run in the same batch.
        """
        return any(each.needs_redistribution for each in self.operator_states)

    def plan(self, subtask: SubtaskIndex, store: ObjectStore, layout: Layout) -> DeferredPlan:
        """Returns the plan of a subtask, loaded only when needed."""
        return DeferredPlan(self.operator_states[subtask], lambda: self._load(subtask, store, layout))

    def _load(self, subtask: SubtaskIndex, store: ObjectStore, layout: Layout) -> RestorePlan:
        plan: RestorePlan = pickle.loads(self.base.open()[subtask])  # noqa: S301 - pickled by our driver
        return followed_in_log(plan, store, layout, self.uid, subtask, after=self.base_position, until=self.position)


def pickled_plans(starts: Sequence[SubtaskStart]) -> list[bytes]:
    """Pickles the plans for `ShippedStarts.base`.

    They are pickled one by one, so that a task unpickles only its own plan.
    """
    return [pickle.dumps(start.plan) for start in starts]
