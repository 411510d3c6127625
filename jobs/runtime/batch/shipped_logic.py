"""Large parts of a run, shipped to the executors once.

They are the operators' logic, once per run, and the restore plans of all subtasks, once in a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...spark_internals.broadcast_payloads import BroadcastPayload
from ..executor.subtask_starts import ShippedStarts, pickled_plans

if TYPE_CHECKING:
    from pyspark import SparkContext

    from keyscale.identifiers import OperatorUid

    from ...graph.topology import Topology
    from .committed_state import CommittedState, PlanBase


class ShippedLogic:
    """Ships a run's large parts.

    It is created once per run. Its methods are for one thread at a time: batches and snapshots take turns.

    Args:
        context: The Spark context.
        topology: The job.

    Attributes:
        logic: The logic of each operator.
    """

    def __init__(self, context: SparkContext, topology: Topology) -> None:
        self._context = context
        self.logic = {node.uid: BroadcastPayload.of(context, node.logic) for node in topology.operators}
        self._base: PlanBase | None = None
        self._plans: dict[OperatorUid, BroadcastPayload] = {}

    def starts(self, committed: CommittedState) -> dict[OperatorUid, ShippedStarts]:
        """Returns where the tasks of each operator start.

        Ships all plans if the committed state has a new base.
        """
        base = committed.plan_base
        if base is not self._base:
            self._release_plans()
            self._plans = {
                uid: BroadcastPayload.of(self._context, pickled_plans(each)) for uid, each in base.starts.items()
            }
            self._base = base
        return {
            uid: ShippedStarts(
                uid,
                versions=tuple(start.version for start in starts),
                operator_states=tuple(start.plan.operator_state for start in starts),
                base=self._plans[uid],
                base_position=base.log_position,
                position=committed.log_position,
            )
            for uid, starts in committed.starts.items()
        }

    def release(self) -> None:
        """Deletes Spark's copies.

        No task may begin after that.
        """
        self._release_plans()
        for payload in self.logic.values():
            payload.release()

    def _release_plans(self) -> None:
        for payload in self._plans.values():
            payload.release()
        self._base, self._plans = None, {}
