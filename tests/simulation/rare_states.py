"""The rare states that a run of many histories must reach: if one is never reached, the generator is too tame.

The world counts them, wherever a part of it or the auditor notes one with `World.reach`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.watched_calls import AT_MOMENTS, WATCHED

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_DATA_PLANE = (
    "two drivers of a job were alive",
    "a driver woke after a newer attempt had begun",
    "a driver was fenced",
    "a driver was fenced while it opened its attempt",
    "a driver failed as the store did not answer",
    "a driver failed as its disk was full",
    "a driver failed in its sink",
    "a driver was refused a restore",
    "a driver drained its input",
    "a driver stopped with a savepoint",
    "a zombie planned or committed after a take-over, and was refused",
    "a write met its own earlier try",
    "a write was applied after its writer had given up",
    "a late write was refused",
    "a batch that one attempt had planned was committed by another",
    "an attempt opened right after another one, which had done nothing",
    "an attempt divided key groups by size",
    "an attempt opened at another parallelism",
    "an attempt opened after a batch that was planned only",
    "an attempt went back to a savepoint",
    "an attempt claimed a savepoint",
    "an attempt began from its log alone",
    "an attempt skipped a damaged checkpoint",
    "a job lost every checkpoint that it could start from",
    "an older attempt published a manifest",
    "a checkpoint named files of an earlier attempt",
    "a checkpoint had a subtask of several shards",
    "a savepoint was taken during a batch that was planned only",
    "a consolidation was completed",
    "a consolidation was given up",
    "the clean-up deleted a checkpoint",
    "the clean-up deleted what nothing had ever named",
    "a claimed savepoint was deleted",
    "an object came or went while it was listed",
    "a batch was published that was visible already",
    "a sink took rows back",
    "the commit of a sink was refused",
    "the commit of a sink was lost",
    "the commit of a sink was unanswered",
    "the commit of a sink was late",
    "a producer was fenced in a transaction",
    "a new driver ended a transaction of an older one",
    "a sink waited for a transaction of an older attempt",
    "a server did not see that a driver had died",
    "a message arrived twice",
    "an answer was lost",
    "a clock went back while a driver ran",
    "an answer of the store was damaged",
    *dict.fromkeys(AT_MOMENTS.values()),
    *(watched.state for watched in WATCHED),
)
OF_CONTROL_PLANE = (
    "a leader lost its lock while it was stopped",
    "a leader found that another one leads",
    "a driver found another control plane",
    "a driver of an ended attempt was told so",
    "a driver was replaced",
    "a standby was warm beside a running driver",
    "a rescale was completed",
    "a driver rescaled its job",
    "a new driver carried a live rescale out",
    "an upgrade was completed",
    "a change was rolled back",
    "a change was cancelled",
    "a change went back to an earlier revision",
    "a job failed for good",
    "a clone ran beside its original",
    "a double click was one change",
    "a control plane died in a transaction",
    "a job was deleted while a driver of it was alive",
)


def never_reached(reached: Mapping[str, int], *, has_control_plane: bool) -> list[str]:
    """Returns the rare states that no history of a run has reached."""
    wanted = OF_CONTROL_PLANE if has_control_plane else OF_DATA_PLANE
    return [state for state in wanted if not reached.get(state)]
