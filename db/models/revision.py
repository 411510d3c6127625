"""The table of revisions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Computed, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class Revision(Base):
    """An immutable, numbered version of a job's specification.

    It is all that defines what the job does and how.

    Attributes:
        spec: The specification, a `JobSpec`. Two of its settings are columns as well, for a foreign key and an index.
    """

    __tablename__ = "revisions"
    __table_args__ = (Index("ix_revisions_libraries", "libraries", postgresql_using="gin"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    spec: Mapped[dict[str, Any]]
    artifact_id: Mapped[str] = mapped_column(
        ForeignKey("artifacts.id"), Computed("(spec ->> 'artifact_id'::text)", persisted=True), index=True
    )
    libraries: Mapped[list[str]] = mapped_column(Computed("(spec -> 'libraries'::text)", persisted=True))
    created_at_ms: Mapped[int]
    created_by: Mapped[str | None]
    message: Mapped[str | None]
