"""The table of jobs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Identity, Index, false, text
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.vocabulary import DesiredState, JobStatus

from ..base import Base, closed_set


class Job(Base):
    """A job: its identity, present revision, desired state and status."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_created_at_ms", "created_at_ms", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    revision: Mapped[int] = mapped_column(default=1, server_default=text("1"))
    max_parallelism: Mapped[int]
    hash_id: Mapped[str]
    labels: Mapped[dict[str, str]] = mapped_column(default=dict, server_default="{}")
    user_number: Mapped[int] = mapped_column(Identity(), unique=True)  # chooses the user that the job runs as
    skip_lost_records: Mapped[bool] = mapped_column(default=False, server_default=false())
    time_reset_after: Mapped[int | None]  # the last attempt before the job's time begins again
    store_url: Mapped[str]
    restore: Mapped[dict[str, Any] | None]  # a pending restore; see lifecycle/restoring.py
    rewound_by: Mapped[int] = mapped_column(default=0, server_default=text("0"))  # the attempt that rewound last
    rewound_to: Mapped[str | None]
    desired: Mapped[DesiredState] = mapped_column(closed_set(DesiredState, "desired"))
    status: Mapped[JobStatus] = mapped_column(closed_set(JobStatus, "status"), index=True)
    failure: Mapped[dict[str, Any] | None]
    consecutive_failures: Mapped[int] = mapped_column(default=0)
    failures: Mapped[dict[str, Any] | None]
    restarts: Mapped[int] = mapped_column(default=0)
    next_start_at_ms: Mapped[int] = mapped_column(default=0)
    created_at_ms: Mapped[int]
    started_at_ms: Mapped[int | None]
    ended_at_ms: Mapped[int | None]
