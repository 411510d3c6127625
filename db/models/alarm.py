"""The table of alarms."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class Alarm(Base):
    """A lasting alarm of a job that an event has reported."""

    __tablename__ = "alarms"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    since_ms: Mapped[int]
