"""The table of jobs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Identity, Index, false
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.db.base import Base, closed_set
from keyscale.db.statuses import DesiredState, JobStatus


class Job(Base):
    """A job: its specification, the state that its user wants, and its status."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_created_at_ms", "created_at_ms", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    artifact_id: Mapped[str] = mapped_column(ForeignKey("artifacts.id"), index=True)
    parallelism: Mapped[int]
    max_parallelism: Mapped[int]
    hash_id: Mapped[str]
    labels: Mapped[dict[str, str]] = mapped_column(default=dict, server_default="{}")
    parameters: Mapped[dict[str, Any]]
    user_number: Mapped[int] = mapped_column(Identity(), unique=True)  # chooses the user that the job runs as
    secrets: Mapped[list[str] | None]  # names; None: the job was created before jobs named secrets, and gets all
    spark_conf: Mapped[dict[str, str]]
    checkpoints: Mapped[dict[str, Any]]
    restart: Mapped[dict[str, Any] | None]
    batch_interval_ms: Mapped[int | None]
    skip_lost_records: Mapped[bool] = mapped_column(default=False, server_default=false())
    store_url: Mapped[str]
    desired: Mapped[DesiredState] = mapped_column(closed_set(DesiredState, "desired"))
    status: Mapped[JobStatus] = mapped_column(closed_set(JobStatus, "status"), index=True)
    stop_operation_id: Mapped[str | None]
    failure: Mapped[dict[str, Any] | None]
    consecutive_failures: Mapped[int] = mapped_column(default=0)
    failures: Mapped[dict[str, Any] | None]
    restarts: Mapped[int] = mapped_column(default=0)
    next_start_at_ms: Mapped[int] = mapped_column(default=0)
    created_at_ms: Mapped[int]
    started_at_ms: Mapped[int | None]
    ended_at_ms: Mapped[int | None]
