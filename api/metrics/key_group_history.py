"""Key groups over time: their sizes at the checkpoints of a job."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from keyscale.db.repositories import checkpoints

from ..jobs.jobs import require_job
from .schemas.key_group_history import KeyGroupsAnswer, OperatorKeyGroups, OwnedRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyscale.db.models import Checkpoint, CheckpointSubtask

    from ..control_plane.context import Context

CHECKPOINTS_MAX = 100
VALUES_MAX = 200_000
"""Maximum number of sizes that are read: with many key groups and operators, of fewer checkpoints."""
ROWS_MAX = 512
"""Maximum number of rows: with more key groups, neighbouring key groups are summed."""


def show(context: Context, reference: str, operator: str | None) -> KeyGroupsAnswer:
    """Shows the key groups of a job's operators, or of one operator.

    Raises:
        JobNotFoundError: The job does not exist.
    """
    with context.reads() as session:
        job = require_job(session, reference)
        known = checkpoints.latest_with_parts(session, job.id, CHECKPOINTS_MAX)
        newest = checkpoints.parts_of(session, job.id, [each.checkpoint_id for each in known[:1]], operator)
        values = sum(len(part.key_group_bytes) for part in newest)
        chosen = spread_out(known[::-1], min(CHECKPOINTS_MAX, max(2, VALUES_MAX // max(1, values))))
        parts = checkpoints.parts_of(session, job.id, [each.checkpoint_id for each in chosen], operator)
    width = -(-job.max_parallelism // ROWS_MAX)
    return KeyGroupsAnswer(
        max_parallelism=job.max_parallelism,
        group_width=width,
        operators=histories(chosen, parts, job.max_parallelism, width),
    )


def spread_out(known: Sequence[Checkpoint], count: int) -> Sequence[Checkpoint]:
    """Selects `count` evenly spread checkpoints, with the first and the last.

    Pure.
    """
    if len(known) <= count:
        return known
    return [known[index * (len(known) - 1) // (count - 1)] for index in range(count)]


def histories(
    chosen: Sequence[Checkpoint], parts: Sequence[CheckpointSubtask], key_groups: int, width: int
) -> list[OperatorKeyGroups]:
    """Returns each operator's history of key group sizes.

    A checkpoint that lacks the size of a key group is left out. Pure.

    Args:
        chosen: The checkpoints, oldest first.
        parts: Their subtasks, by index.
        key_groups: Number of the job's key groups.
        width: How many neighbouring key groups are summed.
    """
    by_operator: dict[str, dict[int, list[CheckpointSubtask]]] = defaultdict(lambda: defaultdict(list))
    for part in parts:
        by_operator[part.operator_uid][part.checkpoint_id].append(part)
    found = []
    for uid, by_checkpoint in sorted(by_operator.items()):
        whole = [
            each
            for each in chosen
            if sum(len(part.key_group_bytes) for part in by_checkpoint.get(each.checkpoint_id, ())) == key_groups
        ]
        if not whole:
            continue
        members = [by_checkpoint[each.checkpoint_id] for each in whole]
        found.append(
            OperatorKeyGroups(
                uid=uid,
                subtasks=[
                    OwnedRange(
                        index=part.subtask, key_group_start=part.key_group_start, key_group_end=part.key_group_end
                    )
                    for part in members[-1]
                ],
                at_ms=[each.latest_ack_timestamp or each.trigger_timestamp for each in whole],
                bytes=[_summed([size for part in own for size in part.key_group_bytes], width) for own in members],
                entries=[_summed([size for part in own for size in part.key_group_entries], width) for own in members],
            )
        )
    return found


def _summed(values: Sequence[int], width: int) -> list[int]:
    return [sum(values[start : start + width]) for start in range(0, len(values), width)]
