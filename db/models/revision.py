"""The table of revisions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from ..base import Base


class Revision(Base):
    """An immutable, numbered version of a job's specification.

    It is all that defines what the job does and how.
    """

    __tablename__ = "revisions"
    __table_args__ = (Index("ix_revisions_libraries", "libraries", postgresql_using="gin"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    artifact_id: Mapped[str] = mapped_column(ForeignKey("artifacts.id"), index=True)
    libraries: Mapped[list[str]] = mapped_column(
        default=list, server_default="[]"
    )  # ids of artifacts, and `package:NAME`
    parallelism: Mapped[int]
    parameters: Mapped[dict[str, Any]]
    secrets: Mapped[list[str] | None]  # names; None: the job is older than named secrets, and gets all
    spark_conf: Mapped[dict[str, str]]
    checkpoints: Mapped[dict[str, Any]]
    restart: Mapped[dict[str, Any] | None]
    batch_interval_ms: Mapped[int | None]
    created_at_ms: Mapped[int]
    created_by: Mapped[str | None]
    message: Mapped[str | None]
