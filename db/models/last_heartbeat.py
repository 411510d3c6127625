"""The table of the last heartbeats of attempts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKeyConstraint
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class LastHeartbeat(Base):
    """The changing part of a driver's last heartbeat.

    These rows are rewritten every second. They are narrow, have no index that a change could affect, and leave half of
    each page free, so that PostgreSQL rewrites them in place.
    """

    __tablename__ = "heartbeats"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "attempt"], ["attempts.job_id", "attempts.number"], ondelete="CASCADE"),
        {"postgresql_with": {"fillfactor": 50}},
    )

    job_id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at_ms: Mapped[int | None]
    last_commit_batch_id: Mapped[int | None]
    last_commit_at_ms: Mapped[int | None]
    metrics: Mapped[dict[str, Any] | None]
    rescale: Mapped[dict[str, Any] | None]  # the progress of the driver's latest live rescale
