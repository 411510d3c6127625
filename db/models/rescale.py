"""The table of rescales."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.db.base import Base, closed_set
from keyscale.db.statuses import RescalePhase, RescaleStatus


class Rescale(Base):
    """A rescale: a persisted state machine that survives the control plane, with the times of its phases."""

    __tablename__ = "rescales"
    __table_args__ = (
        Index("ix_rescales_requested_at_ms", "job_id", "requested_at_ms", "id"),
        Index("uq_rescales_one_running", "job_id", unique=True, postgresql_where=text("status = 'IN_PROGRESS'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    status: Mapped[RescaleStatus] = mapped_column(closed_set(RescaleStatus, "status"))
    phase: Mapped[RescalePhase] = mapped_column(closed_set(RescalePhase, "phase"))
    phases: Mapped[list[dict[str, Any]]]
    from_parallelism: Mapped[int]
    to_parallelism: Mapped[int]
    old_attempt: Mapped[int]
    new_attempt: Mapped[int | None]
    savepoint_location: Mapped[str | None]
    savepoint_checkpoint_id: Mapped[int | None]
    requested_at_ms: Mapped[int]
    ended_at_ms: Mapped[int | None]
    stopped_at_ms: Mapped[int | None]
    resumed_at_ms: Mapped[int | None]
    failure: Mapped[dict[str, Any] | None]
