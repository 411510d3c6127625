"""The columns of attempts and checkpoints in which drivers' reports are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyscale.clock import now_ms
from keyscale.vocabulary import CheckpointStatus, DriverState

if TYPE_CHECKING:
    from keyscale.db.models import Attempt, Checkpoint
    from keyscale.jobs.protocol.messages import CheckpointReport, Heartbeat, SubtaskCheckpointReport


def store_heartbeat(attempt: Attempt, message: Heartbeat, now: int, heard_at_ms: int) -> bool:
    """Stores a heartbeat in its attempt.

    Args:
        attempt: The attempt.
        message: The heartbeat.
        now: The time of this host.
        heard_at_ms: The time that all replicas share.

    Returns:
        Whether to wake the reconciler.
    """
    state = attempt.driver_state if message.warms_up else message.state
    is_news = attempt.driver_state != state
    attempt.driver_state, attempt.heartbeat_at_ms = state, heard_at_ms
    attempt.restored_at_ms, attempt.slots = message.restored_at_ms, message.slots
    attempt.metrics = message.metrics.model_dump()
    if message.rescale is not None:
        attempt.rescale = message.rescale.model_dump()
    if message.state is DriverState.RUNNING and attempt.running_at_ms is None:
        attempt.running_at_ms = now
    if message.state is DriverState.SLEEPING and attempt.fell_asleep_at_ms is None:
        attempt.fell_asleep_at_ms = now
    if message.first_commit is not None:
        is_news |= attempt.first_commit_at_ms is None
        attempt.first_commit_batch_id = message.first_commit.batch_id
        attempt.first_commit_at_ms = message.first_commit.at_ms
    if message.last_commit is not None:
        attempt.last_commit_batch_id = message.last_commit.batch_id
        attempt.last_commit_at_ms = message.last_commit.at_ms
    if message.failure is not None:
        attempt.failure = message.failure.model_dump()
    return is_news


def store_checkpoint(checkpoint: Checkpoint, attempt: int, status: CheckpointStatus, report: CheckpointReport) -> None:
    """Stores a report in its checkpoint.

    The time of a first failure stays.
    """
    checkpoint.attempt, checkpoint.status = attempt, status
    for name in (
        "is_savepoint",
        "savepoint_id",
        "trigger_timestamp",
        "latest_ack_timestamp",
        "end_to_end_duration",
        "checkpointed_size",
        "state_size",
        "processed_records",
        "external_path",
        "batch_id",
        "failure_message",
    ):
        setattr(checkpoint, name, getattr(report, name))
    checkpoint.num_subtasks = len(report.subtasks)
    checkpoint.num_acknowledged_subtasks = sum(subtask.ack_timestamp is not None for subtask in report.subtasks)
    failed_at_ms = now_ms() if checkpoint.failure_timestamp is None else checkpoint.failure_timestamp
    checkpoint.failure_timestamp = failed_at_ms if status is CheckpointStatus.FAILED else None


def subtask_columns(report: SubtaskCheckpointReport) -> dict[str, Any]:
    """Returns a subtask's columns, without the key of its checkpoint."""
    columns = {name: value for name, value in report.model_dump().items() if name not in {"index", "status"}}
    return {**columns, "subtask": report.index, "status": CheckpointStatus(report.status)}
