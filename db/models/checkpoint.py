"""The tables of checkpoints and of their subtasks."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, ForeignKeyConstraint, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.vocabulary import CheckpointStatus, SnapshotOwner

from ..base import Base, closed_set


class Checkpoint(Base):
    """A checkpoint or savepoint of a job, as its driver reported it.

    The columns are named as in Flink's statistics. The rows of a deleted job are removed later, a few at a time: there
    may be millions.
    """

    __tablename__ = "checkpoints"
    __table_args__ = (
        Index("ix_checkpoints_status", "job_id", "status", "is_savepoint", "checkpoint_id"),
        Index("ix_checkpoints_external_path", "job_id", "external_path"),
        Index(
            "ix_checkpoints_discarded",
            "discard_requested_at_ms",
            postgresql_where=text("discard_requested_at_ms IS NOT NULL AND objects_deleted_at_ms IS NULL"),
        ),
        Index(
            "ix_checkpoints_discarded_path",
            "external_path",
            postgresql_where=text("discard_requested_at_ms IS NOT NULL"),
        ),
        Index(
            "ix_checkpoints_savepoints_of_changes",
            "job_id",
            "savepoint_id",
            postgresql_where=text("is_savepoint AND owner = 'PLATFORM' AND status = 'COMPLETED'"),
        ),
    )

    job_id: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int]
    status: Mapped[CheckpointStatus] = mapped_column(closed_set(CheckpointStatus, "status"))
    is_savepoint: Mapped[bool]
    savepoint_id: Mapped[str | None]
    owner: Mapped[SnapshotOwner] = mapped_column(
        closed_set(SnapshotOwner, "owner"), default=SnapshotOwner.PLATFORM, server_default=SnapshotOwner.PLATFORM
    )
    trigger_timestamp: Mapped[int]
    latest_ack_timestamp: Mapped[int | None]
    end_to_end_duration: Mapped[int]
    checkpointed_size: Mapped[int]
    state_size: Mapped[int]
    processed_records: Mapped[int]
    external_path: Mapped[str | None]
    batch_id: Mapped[int | None]
    num_subtasks: Mapped[int]
    num_acknowledged_subtasks: Mapped[int]
    failure_timestamp: Mapped[int | None]
    failure_message: Mapped[str | None]
    discard_requested_at_ms: Mapped[int | None]  # its deletion was requested
    objects_deleted_at_ms: Mapped[int | None]
    verification: Mapped[dict[str, Any] | None]  # the last one


class CheckpointDay(Base):
    """A day's removed checkpoints of a job, as sums.

    The day of their begin is in UTC, counted from 1970.
    """

    __tablename__ = "checkpoint_days"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    completed: Mapped[int]
    failed: Mapped[int]
    checkpointed_size: Mapped[int]
    state_size_max: Mapped[int]
    end_to_end_duration: Mapped[int]
    end_to_end_duration_max: Mapped[int]
    processed_records: Mapped[int]


class CheckpointSubtask(Base):
    """One subtask's part of a checkpoint."""

    __tablename__ = "checkpoint_subtasks"
    __table_args__ = (
        ForeignKeyConstraint(
            ["job_id", "checkpoint_id"], ["checkpoints.job_id", "checkpoints.checkpoint_id"], ondelete="CASCADE"
        ),
    )

    job_id: Mapped[str] = mapped_column(primary_key=True)
    checkpoint_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    operator_uid: Mapped[str] = mapped_column(primary_key=True)
    subtask: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    status: Mapped[CheckpointStatus] = mapped_column(closed_set(CheckpointStatus, "status"))
    key_group_start: Mapped[int]
    key_group_end: Mapped[int]
    ack_timestamp: Mapped[int | None]
    end_to_end_duration: Mapped[int]
    start_delay: Mapped[int]
    sync_duration: Mapped[int]
    async_duration: Mapped[int]
    checkpointed_size: Mapped[int]
    state_size: Mapped[int]
    distinct_size: Mapped[int | None]
    files: Mapped[int]
    entries: Mapped[int] = mapped_column(default=0, server_default="0")
    key_group_entries: Mapped[list[int]] = mapped_column(default=list, server_default="[]")
    key_group_bytes: Mapped[list[int]] = mapped_column(default=list, server_default="[]")
    largest_key_groups: Mapped[list[dict[str, Any]]] = mapped_column(default=list, server_default="[]")
