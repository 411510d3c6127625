"""The version of its state that a subtask starts from, and how a task finds the plan to rebuild it.

A plan names all files and changelogs of a subtask's state, so the plans of many subtasks are large. A task needs one
only if its state is neither open nor in local files. So tasks get the versions alone, and for the plans a base: the
plans as they were a while ago, shipped once to each executor. A task that needs its plan takes its own from the base
and reads from the commit log what batches have added since.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.state.documents.log_entries import BatchCommitted
from keyscale.state.log.commit_log import CommitLog
from keyscale.state.restore.plan import DeferredPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.state.documents.state_version import StateVersion
    from keyscale.state.identifiers import OperatorUid, SubtaskIndex
    from keyscale.state.layout import Layout
    from keyscale.state.objects.object_store import ObjectStore
    from keyscale.state.operator_state.operator_files import OperatorStatePlan
    from keyscale.state.restore.plan import RestorePlan

    from ...spark_internals.parcels import Parcel


@dataclass(frozen=True, slots=True)
class SubtaskStart:
    """The version of its state that a subtask starts a batch from, and the plan to rebuild it without local files."""

    version: StateVersion
    plan: RestorePlan


@dataclass(frozen=True, slots=True)
class ShippedStarts:
    """The starts of an operator's subtasks, as tasks get them.

    Attributes:
        uid: The operator.
        versions: Where each subtask starts, by index.
        operator_states: The files of each subtask's operator state, by index.
        base: The pickled plans of all subtasks, by index, as they were after an entry of the commit log.
        base_position: The position of that entry.
        position: The last entry of the commit log that the versions contain.
    """

    uid: OperatorUid
    versions: tuple[StateVersion, ...]
    operator_states: tuple[OperatorStatePlan, ...]
    base: Parcel
    base_position: int
    position: int

    def plan(self, subtask: SubtaskIndex, store: ObjectStore, layout: Layout) -> DeferredPlan:
        """Returns the plan of a subtask, which is loaded only when it is needed."""
        return DeferredPlan(self.operator_states[subtask], lambda: self._load(subtask, CommitLog(store, layout)))

    def _load(self, subtask: SubtaskIndex, log: CommitLog) -> RestorePlan:
        plan: RestorePlan = pickle.loads(self.base.open()[subtask])  # noqa: S301 - pickled by our driver
        for entry in log.between(self.base_position, self.position):
            if isinstance(entry, BatchCommitted):
                plan = plan.followed_by(entry.operators[self.uid][subtask])
        return plan


def pickled_plans(starts: Sequence[SubtaskStart]) -> list[bytes]:
    """Returns the plans in the form that `ShippedStarts.base` holds, so that a task unpickles no plan but its own."""
    return [pickle.dumps(start.plan) for start in starts]
