"""The table of changes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, false, text
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base, closed_set
from ..statuses import ChangeKind, ChangePhase, ChangeStatus, UpgradeMode


class Change(Base):
    """A change, which carries a running job from one revision to another.

    It is a persisted state machine that survives the control plane, with the times of its phases.
    """

    __tablename__ = "changes"
    __table_args__ = (
        Index("ix_changes_requested_at_ms", "job_id", "requested_at_ms", "id"),
        Index("ix_changes_to_revision", "job_id", "to_revision", "requested_at_ms", "id"),
        Index("uq_changes_one_running", "job_id", unique=True, postgresql_where=text("status = 'IN_PROGRESS'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    kind: Mapped[ChangeKind] = mapped_column(closed_set(ChangeKind, "kind"))
    status: Mapped[ChangeStatus] = mapped_column(closed_set(ChangeStatus, "status"))
    phase: Mapped[ChangePhase] = mapped_column(closed_set(ChangePhase, "phase"))
    phases: Mapped[list[dict[str, Any]]]
    from_revision: Mapped[int]
    to_revision: Mapped[int]
    from_parallelism: Mapped[int]
    to_parallelism: Mapped[int]
    upgrade_mode: Mapped[UpgradeMode] = mapped_column(closed_set(UpgradeMode, "upgrade_mode"))
    allow_non_restored_state: Mapped[bool] = mapped_column(default=False, server_default=false())
    rewind_to: Mapped[str | None]  # the earlier savepoint from which the new revision starts
    old_attempt: Mapped[int]
    new_attempt: Mapped[int | None]
    savepoint_location: Mapped[str | None]
    requested_at_ms: Mapped[int]
    ended_at_ms: Mapped[int | None]
    stopped_at_ms: Mapped[int | None]
    resumed_at_ms: Mapped[int | None]
    cancel_requested_at_ms: Mapped[int | None]
    caught_up_at_ms: Mapped[int | None]
    figures_before: Mapped[dict[str, Any] | None]  # of the old attempt, when the change was requested
    figures_after: Mapped[dict[str, Any] | None]  # of the new attempt, some time after it caught up
    times: Mapped[dict[str, Any] | None]  # of the attempt that continued: the times of its steps
    failure: Mapped[dict[str, Any] | None]
