"""The table of diagnostics."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from keyscale.vocabulary import DiagnosticKind

from ..base import Base, closed_set


class Diagnostic(Base):
    """A look into a running job: the driver's request and answer.

    The answer may have data of the job, so the newest few of each job are kept, for an hour.
    """

    __tablename__ = "diagnostics"
    __table_args__ = (
        Index("ix_diagnostics_requested_at_ms", "requested_at_ms"),
        Index("ix_diagnostics_pending", "job_id", "attempt", postgresql_where=text("ended_at_ms IS NULL")),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    kind: Mapped[DiagnosticKind] = mapped_column(closed_set(DiagnosticKind, "kind"))
    request: Mapped[dict[str, Any]]  # as the driver gets it
    requested_at_ms: Mapped[int]
    requested_by: Mapped[str]
    until_ms: Mapped[int]  # an answer that has not come by then is given up
    ended_at_ms: Mapped[int | None]
    parts: Mapped[list[dict[str, Any]] | None] = mapped_column(deferred=True)
    failure: Mapped[dict[str, Any] | None]
