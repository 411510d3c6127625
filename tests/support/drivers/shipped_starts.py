"""Starts and logic as tasks get them, for tests without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from keyscale.jobs.runtime.executor.subtask_starts import ShippedStarts, pickled_plans
from keyscale.jobs.spark_internals.broadcast_payloads import BroadcastPayload
from tests.support.rehearsal.rehearsed_spark import RehearsedContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.identifiers import OperatorUid
    from keyscale.jobs.runtime.executor.subtask_starts import SubtaskStart


def payload(thing: Any) -> BroadcastPayload:
    """Returns an object as a task gets it."""
    return BroadcastPayload.of(cast("Any", RehearsedContext()), thing)


def shipped(uid: OperatorUid, starts: Sequence[SubtaskStart]) -> ShippedStarts:
    """Returns the starts of an operator with plans that are up to date."""
    return ShippedStarts(
        uid,
        versions=tuple(start.version for start in starts),
        operator_states=tuple(start.plan.operator_state for start in starts),
        base=payload(pickled_plans(starts)),
        base_position=0,
        position=0,
    )
