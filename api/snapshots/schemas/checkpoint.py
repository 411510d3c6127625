"""Checkpoint statistics, under the names of Flink's REST API."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from keyscale.vocabulary import CheckpointStatus, SnapshotOwner

from ...shapes import Answer, ListAnswer


class StatisticsAnswer(Answer):
    """Distribution of a value over the completed checkpoints.

    `avg` is rounded down; percentiles are interpolated.
    """

    min: int
    max: int
    avg: int
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


class RangeAnswer(Answer):
    """Spread of a value over the subtasks of a checkpoint."""

    min: int
    max: int
    avg: int


class CountsAnswer(Answer):
    """The numbers of a job's checkpoints.

    `completed` includes checkpoints that were discarded later, and `restored` counts the attempts in the job's history.
    """

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class SummaryAnswer(Answer):
    """Statistics over the latest 1,000 completed checkpoints."""

    checkpointed_size: StatisticsAnswer
    state_size: StatisticsAnswer
    end_to_end_duration: StatisticsAnswer
    processed_data: StatisticsAnswer = Field(description="Input records since the previous checkpoint.")
    persisted_data: StatisticsAnswer = Field(description="Always 0: checkpoints hold no in-flight records.")


class CheckpointAnswer(Answer):
    """One checkpoint or savepoint of the history."""

    id: int
    status: CheckpointStatus
    is_savepoint: bool
    savepoint_id: str | None
    owner: SnapshotOwner = Field(
        description="PLATFORM: a checkpoint, or a savepoint taken for a change; the platform deletes it when nothing"
        " needs it."
    )
    trigger_timestamp: int
    latest_ack_timestamp: int | None
    checkpointed_size: int = Field(description="Bytes uploaded for this checkpoint.")
    state_size: int = Field(description="Bytes of the whole state.")
    end_to_end_duration: int
    processed_data: int
    persisted_data: int = 0
    num_subtasks: int
    num_acknowledged_subtasks: int
    checkpoint_type: Literal["CHECKPOINT", "SAVEPOINT"]
    attempt: int
    batch_id: int | None
    external_path: str | None = None
    discarded: bool = False
    failure_timestamp: int | None = None
    failure_message: str | None = None


class RestoredAnswer(Answer):
    """The last restore."""

    id: int
    restore_timestamp: int
    is_savepoint: bool
    external_path: str | None


class LatestAnswer(Answer):
    """The latest checkpoint of each kind."""

    completed: CheckpointAnswer | None
    savepoint: CheckpointAnswer | None
    failed: CheckpointAnswer | None
    restored: RestoredAnswer | None


class CheckpointsAnswer(ListAnswer):
    """Statistics of a job's checkpoints."""

    counts: CountsAnswer
    summary: SummaryAnswer
    latest: LatestAnswer
    history: list[CheckpointAnswer] = Field(description="The newest checkpoint first.")


class SubtaskDurations(Answer):
    """How long a subtask was stopped (sync) and its upload took (async)."""

    sync: int
    async_: int = Field(serialization_alias="async", validation_alias=AliasChoices("async_", "async"))


class LargeKeyGroup(Answer):
    """One of the largest key groups of a subtask."""

    key_group: int
    size_bytes: int = Field(description="Bytes; if entries is null, at least so many.")
    entries: int | None = Field(description="Entries; null if they are not counted.")


class SubtaskAnswer(Answer):
    """One subtask's part of a checkpoint."""

    index: int
    status: CheckpointStatus
    ack_timestamp: int | None
    end_to_end_duration: int
    checkpointed_size: int
    state_size: int = Field(
        description="Bytes of the files that it reads. After a rescale, subtasks may read the same file until it is"
        " rewritten."
    )
    checkpoint: SubtaskDurations
    start_delay: int
    key_group_start: int
    key_group_end: int
    files: int
    entries: int = Field(
        description="Approximate number of entries of the state; overwritten entries count until they are compacted."
    )
    key_group_entries: list[int] = Field(
        description="Entries of each key group, in order; empty if there are very many key groups."
    )
    key_group_bytes: list[int] = Field(
        description="Bytes of each key group, in order; empty if there are very many key groups."
    )
    largest_key_groups: list[LargeKeyGroup] = Field(
        description="Up to 10 key groups that are surely the largest, the largest first. A large subtask lists only key"
        " groups whose own files have at least twice the average of its key groups."
    )


class SubtasksDurationsSummary(Answer):
    """Spread of the durations."""

    sync: RangeAnswer
    async_: RangeAnswer = Field(serialization_alias="async", validation_alias=AliasChoices("async_", "async"))


class SubtasksSummary(Answer):
    """Spread over the subtasks of an operator."""

    checkpointed_size: RangeAnswer
    state_size: RangeAnswer
    entries: RangeAnswer
    end_to_end_duration: RangeAnswer
    checkpoint_duration: SubtasksDurationsSummary
    start_delay: RangeAnswer


class OperatorAnswer(Answer):
    """One operator's part of a checkpoint."""

    uid: str
    status: CheckpointStatus
    latest_ack_timestamp: int | None
    checkpointed_size: int
    state_size: int = Field(description="Bytes of its state. A file that several of its subtasks read counts once.")
    end_to_end_duration: int
    entries: int = Field(description="Approximate number of entries of the state.")
    num_subtasks: int
    num_acknowledged_subtasks: int
    summary: SubtasksSummary
    subtasks: list[SubtaskAnswer]


class CheckpointDetailAnswer(CheckpointAnswer):
    """A checkpoint with its operators and subtasks."""

    operators: list[OperatorAnswer]


class ExternalizationAnswer(Answer):
    """Whether checkpoints outlive the cluster and the job's cancellation."""

    enabled: bool
    delete_on_cancellation: bool


class CheckpointConfigAnswer(Answer):
    """How a job's checkpoints are taken."""

    mode: Literal["exactly_once"] = "exactly_once"
    interval: int
    timeout: int
    min_pause: int
    max_concurrent: int = 1
    externalization: ExternalizationAnswer
    state_backend: str
    checkpoint_storage: str
    tolerable_failed_checkpoints: int
    retained_count: int
    state_changelog_enabled: bool
